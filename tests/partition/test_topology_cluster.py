"""Topologies as clusters: compact blocks, symmetric ones planned once, and times that are those of the plans."""

from dataclasses import replace
from itertools import combinations, product

import networkx as nx
import numpy as np
import pytest
from small_jobs import profile

from gnnsched.collective.bounds import bounds
from gnnsched.partition.cluster import MAX_DEGREE, collective_time, degrees
from gnnsched.partition.job_graph import mirrored
from gnnsched.partition.kernel import try_place
from gnnsched.partition.placement import QUANTUM
from gnnsched.partition.symmetry import Symmetry
from gnnsched.partition.topology_cluster import PLANNED, SAMPLES, TopologyCluster
from gnnsched.partition.world import make_world
from gnnsched.planning import plan
from gnnsched.topology import InputError, Topology
from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.generators import bcube, fat_tree, hub, random_heterogeneous, star, torus

# Servers of a BCube(3, 1) by row and column: 0 1 2 / 3 4 5 / 6 7 8, one switch per row and one per column.
ROWS = [(0, 1), (3, 5), (7, 8), (0, 3), (2, 8), (4, 7)]
DIAGONALS = [(0, 4), (1, 5), (2, 7), (3, 8), (5, 6)]


def part_of(topology: Topology, workers: tuple[int, ...]) -> Topology:
    """Only these take part, as in the plans."""
    participant = np.zeros(topology.num_nodes, bool)
    participant[topology.participants[list(workers)]] = True
    return replace(topology, is_participant=participant)


def isomorphic(topology: Topology, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether some symmetry maps one set of workers onto the other, by networkx alone."""

    def graph(workers: tuple[int, ...]) -> nx.MultiDiGraph:
        made = nx.MultiDiGraph()
        chosen = set(topology.participants[list(workers)].tolist())
        for node in range(topology.num_nodes):
            made.add_node(node, kind=(bool(topology.is_switch[node]), node in chosen))
        links = zip(topology.link_source, topology.link_target, topology.bandwidth, topology.latency)
        for tail, head, speed, delay in links:
            made.add_edge(int(tail), int(head), kind=(round(float(np.log(speed)), 6), float(delay)))
        return made

    matcher = nx.algorithms.isomorphism.MultiDiGraphMatcher(
        graph(one),
        graph(other),
        node_match=lambda a, b: a["kind"] == b["kind"],
        edge_match=lambda a, b: (
            sorted(x["kind"] for x in a.values()) == sorted(x["kind"] for x in b.values())
        ),
    )
    return bool(matcher.is_isomorphic())


# Symmetry


def test_pairs_of_a_row_are_not_pairs_of_a_diagonal() -> None:
    """A pair of a row has a switch in common, one of a diagonal has none."""
    symmetry = Symmetry(bcube(3, 1))
    for pair in ROWS:
        assert symmetry.representative(pair) == ROWS[0]
    for pair in DIAGONALS:
        assert symmetry.representative(pair) == DIAGONALS[0]
    assert symmetry.representative((0, 1, 2)) == (0, 1, 2)
    assert symmetry.representative((1, 4, 7)) == (0, 1, 2)
    assert symmetry.representative((0, 1, 3)) == (0, 1, 3)
    assert symmetry.representative((5, 7, 8)) == (0, 1, 3)
    assert symmetry.representative((0, 4, 8)) == (0, 4, 8)


@pytest.mark.parametrize(
    "topology",
    [
        bcube(2, 1),
        bcube(2, 1, level_bandwidths=(1e9, 4e9)),
        star([1e9, 2e9, 1e9, 2e9, 1e9]),
        torus(2, 3),
        fat_tree(2),
        random_heterogeneous(5, 4, 6),
    ],
    ids=lambda topology: topology.name,
)
def test_representatives_are_the_classes_of_all_symmetries(topology: Topology) -> None:
    """Not too few, which would plan for the wrong set, and not too many, which would plan twice."""
    symmetry = Symmetry(topology)
    count = len(topology.participants)
    for size in range(2, min(count, 4)):
        seen: list[tuple[int, ...]] = []
        for workers in combinations(range(count), size):
            same = [other for other in seen if isomorphic(topology, workers, other)]
            assert symmetry.representative(workers) == (same[0] if same else workers)
            if not same:
                seen.append(workers)


def test_link_speeds_and_latencies_tell_sets_apart() -> None:
    def line(speeds: tuple[float, ...], delays: tuple[float, ...]) -> Symmetry:
        builder = NetworkBuilder("line", "test")
        servers = [builder.server(i) for i in range(4)]
        for i in range(3):
            builder.cable(servers[i], servers[i + 1], speeds[i], delays[i])
        return Symmetry(builder.build())

    for symmetry, same in (
        (line((1e9, 1e9, 1e9), (0.0, 0.0, 0.0)), True),
        (line((1e9, 1e9, 2e9), (0.0, 0.0, 0.0)), False),
        (line((1e9, 1e9, 1e9), (1e-6, 0.0, 0.0)), False),
    ):
        assert symmetry.representative((0, 1)) == (0, 1)
        assert (symmetry.representative((2, 3)) == (0, 1)) == same


def test_sets_that_colours_of_neighbours_cannot_tell_apart() -> None:
    """A ring of six and two triangles, all on one hub: each server has two neighbours of its own kind and the hub."""
    builder = NetworkBuilder("rings", "test")
    hub_of_all = builder.switch("hub")
    servers = [builder.server(i) for i in range(12)]
    ring = [(i, (i + 1) % 6) for i in range(6)]
    triangles = [(6, 7), (7, 8), (8, 6), (9, 10), (10, 11), (11, 9)]
    for one, other in ring + triangles:
        builder.cable(servers[one], servers[other], 1e9, 0.0)
    for server in servers:
        builder.cable(server, hub_of_all, 1e9, 0.0)
    symmetry = Symmetry(builder.build())
    six, two_threes = tuple(range(6)), tuple(range(6, 12))
    assert symmetry.representative(six) == six
    assert symmetry.representative(two_threes) == two_threes
    assert symmetry.representative((6, 7, 8)) == (6, 7, 8)
    assert symmetry.representative((9, 10, 11)) == (6, 7, 8)


# Times


def test_planned_times_are_those_of_the_plans() -> None:
    topology = bcube(3, 1)
    cluster = TopologyCluster(topology)
    for pair in (ROWS[0], DIAGONALS[0]):
        for size, chunks in PLANNED.items():
            made = plan(part_of(topology, pair), size, chunks, samples=SAMPLES, lp_time_limit=0.0)
            assert collective_time(pair, size, cluster) == made.makespan_s
    row, diagonal = (collective_time(pair, 2**26, cluster) for pair in (ROWS[0], DIAGONALS[0]))
    for pair in ROWS:
        assert collective_time(pair, 2**26, cluster) == row
    for pair in DIAGONALS:
        assert collective_time(pair, 2**26, cluster) == diagonal
    assert diagonal != row


def test_times_between_and_beyond_the_planned_sizes() -> None:
    cluster = TopologyCluster(bcube(2, 1))
    small, second, middle, large = PLANNED
    at = {size: collective_time((0, 1), size, cluster) for size in PLANNED}
    assert collective_time((0, 1), (small + second) / 2, cluster) == pytest.approx(
        (at[small] + at[second]) / 2
    )
    # Beyond the largest, what the last bytes cost goes on.
    slope = (at[large] - at[middle]) / (large - middle)
    assert collective_time((0, 1), 10 * large, cluster) == pytest.approx(at[large] + 9 * large * slope)
    # Latency does not go away with the bytes.
    assert collective_time((0, 1), 1.0, cluster) == at[small]
    assert collective_time((1, 0), large, cluster) == at[large]
    assert collective_time((0, 0), large, cluster) == 0.0


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_with_a_factor_times_are_multiples_of_the_bound(factor: float) -> None:
    topology = bcube(3, 1)
    cluster = TopologyCluster(topology, factor=factor)
    for workers in (ROWS[0], DIAGONALS[1], (0, 1, 3), tuple(range(9))):
        for size in PLANNED:
            bound = bounds(part_of(topology, workers), size, lp_time_limit=0.0).bound_s
            assert collective_time(workers, size, cluster) == pytest.approx(factor * bound, rel=1e-12)


def test_what_is_planned_is_told_once_for_all_that_is_alike() -> None:
    said: list[str] = []
    cluster = TopologyCluster(bcube(3, 1), factor=1.0, progress=said.append)
    for pair in (*ROWS, *DIAGONALS):
        collective_time(pair, 1e6, cluster)
    assert said == ["planning for 2 servers of bcube_3_1"] * 2


def test_a_message_goes_the_way_of_the_least_seconds_per_byte() -> None:
    """Slow straight on, 1 s of latency and 0.5 byte/s; or around, 2 and 4 bytes/s, with 0.25 s each."""
    builder = NetworkBuilder("triangle", "test")
    servers = [builder.server(i) for i in range(3)]
    builder.cable(servers[0], servers[1], 0.5, 1.0)
    builder.cable(servers[0], servers[2], 2.0, 0.25)
    builder.cable(servers[2], servers[1], 4.0, 0.25)
    cluster = TopologyCluster(builder.build(), factor=1.0)
    # Bytes flow through: the slowest link counts, and all latencies.
    assert cluster.transfer_time(0, 1, 8.0) == pytest.approx(0.5 + 8.0 / 2.0)
    assert cluster.transfer_time(1, 0, 8.0) == pytest.approx(0.5 + 8.0 / 2.0)
    assert cluster.transfer_time(1, 2, 8.0) == pytest.approx(0.25 + 8.0 / 4.0)
    assert cluster.transfer_time(1, 1, 8.0) == 0.0
    assert cluster.transfer_time(0, 1, 0.0) == 0.0


def test_a_message_takes_one_of_parallel_cables() -> None:
    """The fastest one, and its latency."""
    builder = NetworkBuilder("double", "test")
    servers = [builder.server(i) for i in range(2)]
    for bandwidth, latency in ((1.0, 0.5), (4.0, 0.25), (2.0, 0.125)):
        builder.cable(servers[0], servers[1], bandwidth, latency)
    cluster = TopologyCluster(builder.build(), factor=1.0)
    assert cluster.transfer_time(0, 1, 8.0) == pytest.approx(0.25 + 8.0 / 4.0)
    assert cluster.transfer_time(1, 0, 8.0) == pytest.approx(0.25 + 8.0 / 4.0)


# Blocks


@pytest.mark.parametrize(
    "topology",
    # In the last two the servers that are nearest to one another are not those that communicate fastest.
    [
        bcube(2, 1),
        bcube(3, 1),
        star([1e9] * 3 + [4e9] * 3),
        random_heterogeneous(9, 6, 10),
        random_heterogeneous(46, 6, 10),
    ],
    ids=lambda topology: topology.name,
)
def test_blocks_are_sorted_and_of_one_kind_where_they_communicate_alike(topology: Topology) -> None:
    cluster = TopologyCluster(topology, factor=1.0)
    count = len(topology.participants)
    assert cluster.num_workers == count
    assert degrees(cluster) == [d for d in (1, *range(2, MAX_DEGREE + 1, 2)) if d <= count]
    for degree in degrees(cluster):
        blocks = cluster.blocks(degree)
        rows = [tuple(row) for row in blocks.workers.tolist()]
        assert all(list(row) == sorted(set(row)) for row in rows)
        assert len(set(rows)) == len(rows)
        assert {worker for row in rows for worker in row} == set(range(count))
        assert blocks.kind[0] == 0
        assert set(blocks.kind.tolist()) == set(range(blocks.num_kinds))
        if degree == 1:
            assert rows == [(worker,) for worker in range(count)]
            continue
        times = np.array([collective_time(row, 2**26, cluster) for row in rows])
        # The fastest first, within the rounding that makes equal ones equal.
        assert (np.diff(times) > -1e-5 * times[:-1]).all()
        for kind in range(blocks.num_kinds):
            own = times[blocks.kind == kind]
            assert own.max() <= 1.021 * own.min()
    assert len(cluster.blocks(count + 1)) == 0


def test_blocks_are_compact() -> None:
    """Pairs have a switch in common, and sixes are two rows or columns before anything else."""
    cluster = TopologyCluster(bcube(3, 1), factor=1.0)
    for one, other in cluster.blocks(2).workers.tolist():
        assert one // 3 == other // 3 or one % 3 == other % 3
    first = cluster.blocks(6).workers[0].tolist()
    assert len({worker // 3 for worker in first}) == 2 or len({worker % 3 for worker in first}) == 2
    # Fast servers before slow ones.
    fast = TopologyCluster(star([1e9, 4e9, 1e9, 4e9, 4e9, 4e9]), factor=1.0)
    assert fast.blocks(4).workers[0].tolist() == [1, 3, 4, 5]


def test_jobs_run_on_a_topology() -> None:
    """On a hub of servers all blocks are alike, and a step takes its computing and what its AllReduces take."""
    cluster = TopologyCluster(hub(4, 1e9, latency=0.0), factor=1.0)
    job = mirrored(profile([4.0], activation=[2.0**25]), steps=1)
    world = make_world(cluster, [job], 1.0)
    assert world.tables.degree.tolist() == [1, 2, 4]
    # One op and its partner: halves of 4 s each way; then 2^25 bytes in between, and as many of weights.
    between = collective_time((0, 1), 2**25, cluster)
    assert world.tables.jct[0, 1, 0] == pytest.approx(4.0 + 2 * between)
    assert between == pytest.approx(2**25 / 1e9, rel=0.2)


def test_a_job_keeps_to_one_block_of_a_topology() -> None:
    """An op that is split two ways sits inside the job's block of four, whichever servers are taken."""
    cluster = TopologyCluster(random_heterogeneous(9, 8, 8), factor=1.0)
    job = mirrored(profile([1.5 * QUANTUM, 4.0], activation=[8.0, 8.0]), steps=1)
    worlds = [make_world(cluster, [job], 1.0, holding) for holding in ("faithful", "exact")]
    assert np.array_equal(worlds[0].tables.jct, worlds[1].tables.jct)
    tables = worlds[0].tables
    four = tables.degree.tolist().index(4)
    assert np.flatnonzero(tables.uses[0, four]).tolist() == [four - 1, four]
    count = cluster.num_workers
    held = np.zeros(count, bool)
    placed = 0
    for taken in product((0.0, 9.0), repeat=count):
        if try_place(tables, np.array(taken), 0.0, 0, four, held) > 0.0:
            assert np.flatnonzero(held).tolist() in cluster.blocks(4).workers.tolist()
            placed += 1
    assert placed > 10


# Refusals


def test_networks_that_are_no_cluster_are_refused() -> None:
    with pytest.raises(InputError, match="fewer than two participants"):
        TopologyCluster(part_of(hub(3), (0,)))
    # Validated networks hang together; arrays put together by hand may not.
    islands = Topology(
        "islands",
        (0, 1, 2, 3),
        np.zeros(4, bool),
        np.ones(4, bool),
        np.array([0, 1, 2, 3], np.int32),
        np.array([1, 0, 3, 2], np.int32),
        np.ones(4),
        np.zeros(4),
    )
    with pytest.raises(InputError, match="islands: not all participants reach each other") as caught:
        degrees(TopologyCluster(islands, factor=1.0))
    assert "\n" not in str(caught.value)
