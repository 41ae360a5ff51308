"""Packed trees: each one a tree over the participants, loads and tails by brute force."""

from dataclasses import replace

import numpy as np
import pytest

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.packing import Trees, pack_trees
from gnnsched.collective.decode.paths import Paths, candidate_paths
from gnnsched.topology import Topology
from gnnsched.topology.generators import (
    bcube,
    dcell,
    dgx,
    jellyfish,
    leaf_spine,
    random_heterogeneous,
    star,
    torus,
)

CHUNK = 1e6


def there(servers: int, roots: np.ndarray) -> np.ndarray:
    """Each chunk at its root alone."""
    return np.arange(servers)[:, None] == roots


def packed(
    topology: Topology, per_server: int = 2, seed: int = 0, chunk: float = CHUNK
) -> tuple[Paths, np.ndarray, np.ndarray, Trees]:
    paths = candidate_paths(topology)
    needs = topology.is_participant[paths.nodes]
    roots = np.repeat(np.flatnonzero(needs), per_server).astype(np.int32)
    trees = pack_trees(
        paths,
        topology.bandwidth,
        chunk,
        np.repeat(needs[:, None], len(roots), 1),
        there(len(needs), roots),
        np.zeros(topology.num_links),
        np.random.default_rng(seed),
    )
    return paths, needs, roots, trees


def with_relays(topology: Topology, seed: int) -> Topology:
    participant = ~topology.is_switch
    servers = topology.servers
    participant[np.random.default_rng(seed).permutation(servers)[: len(servers) // 2]] = False
    return replace(topology, is_participant=participant)


GIVEN = [bcube(3, 1), dcell(2, 1), torus(3, 3), dgx(2, 3), jellyfish(6, 3, 1, 2), star([1e9, 2e9, 4e9])]
GIVEN += [random_heterogeneous(seed, 3, 8) for seed in range(10)]
GIVEN += [with_relays(random_heterogeneous(seed, 6, 9), seed) for seed in range(10)]


@pytest.mark.parametrize("topology", GIVEN, ids=lambda t: t.name)
def test_every_tree_spans_the_participants_and_relays_only_on_the_way(topology: Topology) -> None:
    paths, needs, roots, trees = packed(topology)
    for c, root in enumerate(roots):
        parent = trees.path[c]
        assert parent[root] == -1
        reached = {int(root)}
        for d in np.flatnonzero(parent >= 0):
            assert paths.target[parent[d]] == d
            at, way = int(d), []
            while at != root:
                assert parent[at] >= 0
                assert at not in way
                way.append(at)
                at = int(paths.source[parent[at]])
            reached |= set(way)
        assert reached == {int(root)} | set(np.flatnonzero(parent >= 0).tolist())
        assert set(np.flatnonzero(needs).tolist()) <= reached
        feeding = set(paths.source[parent[parent >= 0]].tolist())
        assert all(needs[d] or d in feeding for d in reached)


@pytest.mark.parametrize("topology", GIVEN, ids=lambda t: t.name)
def test_loads_tails_and_prices(topology: Topology) -> None:
    paths, _, roots, trees = packed(topology)
    load = np.zeros(topology.num_links)
    for p in trees.path[trees.path >= 0]:
        for link in paths.links[paths.start[p] : paths.start[p + 1]]:
            load[link] += CHUNK / topology.bandwidth[link]
    np.testing.assert_allclose(trees.load, load, rtol=1e-9, atol=1e-15)

    duration = paths.latency + CHUNK / paths.rate

    def tail(c: int, d: int) -> float:
        below = [
            tail(c, int(e)) for e in np.flatnonzero(trees.path[c] >= 0) if paths.source[trees.path[c, e]] == d
        ]
        return float(duration[trees.path[c, d]]) + max(below, default=0.0)

    for c in range(len(roots)):
        for d in range(paths.num_servers):
            expected = tail(c, d) if trees.path[c, d] >= 0 else 0.0
            assert trees.tail[c, d] == pytest.approx(expected)
    assert (trees.price > 0).all()


@pytest.mark.parametrize(
    "topology",
    [bcube(4, 1), dcell(4, 1), torus(4, 4), jellyfish(10, 3, 2, 0), dgx(2, 8)],
    ids=lambda t: t.name,
)
def test_packing_spreads_over_the_links(topology: Topology) -> None:
    """At 16 chunks per server the fullest link is within a few percent of the bound, never below it."""
    _, _, roots, trees = packed(topology, per_server=16)
    bound = all_gather_bound(topology, CHUNK * len(roots))
    assert bound * (1 - 1e-9) <= trees.load.max() <= 1.06 * bound


def test_packing_is_decided_by_its_seed() -> None:
    first, again, other = (packed(bcube(3, 1), 2, seed)[3] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.path, again.path)
    assert not np.array_equal(first.path, other.path)


def hops(paths: Paths, roots: np.ndarray, trees: Trees) -> np.ndarray:
    """Transfers (C, S) from the root to each server."""
    result = np.zeros(trees.path.shape, np.int64)
    for c, root in enumerate(roots.tolist()):
        for d in range(paths.num_servers):
            at = d
            while at != root:
                result[c, d] += 1
                at = int(paths.source[trees.path[c, at]])
    return result


@pytest.mark.parametrize(
    "topology", [star([50e9] * 8), jellyfish(10, 3, 2, 0), leaf_spine(3, 4, 2)], ids=lambda t: t.name
)
def test_small_messages_get_shallow_trees(topology: Topology) -> None:
    """Where latency is most of a transfer, chains give way to direct paths; on a star to those alone."""
    depth = {}
    for chunk in (1e2, 1e9):
        paths, _, roots, trees = packed(topology, 1, chunk=chunk)
        depth[chunk] = hops(paths, roots, trees)
    assert depth[1e2].max(1).mean() < depth[1e9].max(1).mean()
    assert depth[1e2].mean() < depth[1e9].mean()
    if topology.name.startswith("star"):
        assert depth[1e2].max() == 1


def test_others_work_is_got_out_of_the_way() -> None:
    """Two equal cables, one of them taken for long: the trees keep to the other, and the load tells both."""
    topology = Topology.from_arrays(
        "pair", ["a", "b"], [False] * 2, [0, 0, 1, 1], [1, 1, 0, 0], [1e9] * 4, [0.0] * 4
    )
    paths = candidate_paths(topology)
    roots = np.repeat(np.arange(2), 8).astype(np.int32)
    loads = []
    for taken in (0.0, 1.0):
        others = np.array([taken, 0.0, taken, 0.0])
        trees = pack_trees(
            paths,
            topology.bandwidth,
            CHUNK,
            np.ones((2, 16), bool),
            there(2, roots),
            others,
            np.random.default_rng(0),
        )
        loads.append(trees.load)
    work = CHUNK / 1e9
    np.testing.assert_allclose(loads[0], 4 * work)
    np.testing.assert_allclose(loads[1], [1.0, 8 * work, 1.0, 8 * work])


def test_a_slow_detour_is_left_alone() -> None:
    """Two servers with a fast and a hundred times slower cable: the fast one carries everything."""
    topology = Topology.from_arrays(
        "pair", ["a", "b"], [False] * 2, [0, 0, 1, 1], [1, 1, 0, 0], [1e9, 1e7, 1e9, 1e7], [0.0] * 4
    )
    _, _, _, trees = packed(topology, per_server=8)
    assert trees.load[[1, 3]].tolist() == [0.0, 0.0]
