"""Trees of known shapes: trees indeed, in the right order, and as good as the algorithms that they follow."""

import numpy as np
import pytest

from gnnsched.collective.baselines import classical_schedule
from gnnsched.collective.decode.decoder import Instance
from gnnsched.collective.decode.shapes import CHAIN, CHAIN_BY_ID, DIRECT, FARTHEST, Shape
from gnnsched.collective.verify import verify
from gnnsched.planning import schedule_with
from gnnsched.topology import Topology
from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.generators import bcube, dcell, dgx, dumbbell, fat_tree, hub, leaf_spine, star, torus

MESSAGE = 2.0**26
NETWORKS = [
    star([1e9] * 5),
    star([1e9, 2e9, 4e9]),
    bcube(3, 1),
    dcell(3, 1),
    torus(3, 3),
    dgx(2, 3),
    dumbbell(3),
    hub(4),
    leaf_spine(3, 2, 2),
]


def one_way(servers: int) -> Topology:
    builder = NetworkBuilder("one way", "test")
    for i in range(servers):
        builder.server(i)
    for i in range(servers):
        builder.link(i, (i + 1) % servers, 1e9 * (1 + i % 2), 1e-6)
    return builder.build()


@pytest.mark.parametrize("name", [CHAIN, CHAIN_BY_ID, DIRECT, FARTHEST])
@pytest.mark.parametrize("network", [*NETWORKS, one_way(5)], ids=lambda t: t.name)
def test_every_chunk_has_a_tree_whose_tails_never_grow_on_the_way(network: Topology, name: str) -> None:
    shape = Shape(name, network, 2)
    instance = Instance(network, MESSAGE, 2, shape=shape)
    trees, paths = shape.trees(instance.chunk_bytes), shape.paths
    participants = np.flatnonzero(instance.participants)
    for c, root in enumerate(instance.roots):
        parent = trees.path[c]
        assert parent[root] == -1
        for d in participants[participants != root]:
            at, way = int(d), []
            while at != root:
                assert at not in way
                way.append(at)
                assert paths.target[parent[at]] == at
                at = int(paths.source[parent[at]])
            if name in (CHAIN, CHAIN_BY_ID):
                # Who lies on the way to the next one passes on in the step in which it receives.
                assert (np.diff(trees.tail[c, way]) >= 0).all()


def best_of(shapes: tuple[str, ...], network: Topology, message: float, chunks: int) -> float:
    made = [
        schedule_with("trees_augmented", network, message, chunks, 1, shape=name).schedule for name in shapes
    ]
    for schedule in made:
        verdict = verify(schedule)
        assert verdict.ok, verdict.fault
    return min(schedule.makespan for schedule in made)


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda t: t.name)
def test_chains_are_as_fast_as_the_ring(network: Topology, chunks: int) -> None:
    ring = classical_schedule("ring", network, MESSAGE, chunks).makespan
    assert best_of((CHAIN, CHAIN_BY_ID), network, MESSAGE, chunks) <= ring * (1 + 1e-9)


@pytest.mark.parametrize("name", [CHAIN, CHAIN_BY_ID, DIRECT, FARTHEST])
@pytest.mark.parametrize("servers", [2, 5, 8])
def test_load_of_a_shape_on_a_switch_by_hand(servers: int, name: str) -> None:
    """Each server's link carries what all the others send it, whoever sends it; and the way is two links long."""
    bandwidth, latency = 2e9, 3e-6
    shape = Shape(name, star([bandwidth] * servers, latency=latency), 4)
    busy = MESSAGE * (servers - 1) / servers / bandwidth
    assert shape.least_seconds(MESSAGE / (4 * servers)) == pytest.approx(busy + 2 * latency, rel=1e-9)


def test_load_of_a_shape_is_spread_over_ways_alike() -> None:
    """Two spines halve what crosses from leaf to leaf; the plan is no faster than the load says."""
    bandwidth = 1e9
    network = leaf_spine(2, 2, 2, uplink_bandwidth=bandwidth)
    load = Shape(DIRECT, network, 1).least_seconds(MESSAGE / 4)
    # Each server of a leaf sends its chunk to both servers of the other.
    assert load == pytest.approx(4 * MESSAGE / 4 / (2 * bandwidth), rel=1e-3)
    made = schedule_with("trees_augmented", network, MESSAGE, 1, 1, shape=DIRECT).schedule
    assert made.makespan >= 2 * load * (1 - 1e-9)


@pytest.mark.parametrize("servers", [2, 5, 8])
@pytest.mark.parametrize("name", [CHAIN, CHAIN_BY_ID])
def test_a_chain_on_a_switch_by_hand(servers: int, name: str) -> None:
    """N - 1 steps of a chunk each, there and back; each step crosses two links."""
    bandwidth, latency = 2e9, 3e-6
    network = star([bandwidth] * servers, latency=latency)
    step = MESSAGE / servers / bandwidth + 2 * latency
    assert best_of((name,), network, MESSAGE, 1) == pytest.approx(2 * (servers - 1) * step, rel=1e-9)


@pytest.mark.parametrize("network", [star([1e9] * 6), fat_tree(4), leaf_spine(3, 2, 2)], ids=lambda t: t.name)
def test_straight_to_everybody_takes_one_trip_where_nothing_but_latency_counts(network: Topology) -> None:
    """The farthest pair of servers, there and back."""
    instance = Instance(network, 1.0, 1, shape=Shape(DIRECT, network, 1))
    farthest = 2 * float(instance.paths.latency.max())
    assert best_of((DIRECT, FARTHEST), network, 1.0, 1) == pytest.approx(farthest, rel=1e-3)


def test_from_one_root_the_farthest_comes_first() -> None:
    """Two servers behind a link of much latency: sent to first, they have it when the near ones do."""
    builder = NetworkBuilder("far and near", "test")
    switch = builder.switch("w")
    for i in range(5):
        builder.cable(builder.server(i), switch, 1e9, 1e-6 if i < 3 else 1e-3)
    network = builder.build()
    root = int(network.participants[0])
    instance = Instance(network, 4e5, 1, root=root, shape=Shape(FARTHEST, network, 1, root))
    made = schedule_with("trees_augmented", network, 4e5, 1, 1, root=root, shape=FARTHEST).schedule
    # Four sends of 0.4 ms each leave the root, the far ones first: 2 * 0.4 ms and the way decide.
    assert made.makespan == pytest.approx(2 * max(2 * 4e-4 + 1e-3, 4 * 4e-4), rel=0.01)
    assert len(instance.roots) == 1
