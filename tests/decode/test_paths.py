"""Candidate paths against enumeration and networkx."""

from collections import Counter, defaultdict
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from gnnsched.collective.decode.paths import PATHS_PER_PAIR, Paths, candidate_paths
from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators import (
    bcube,
    dcell,
    dgx,
    fat_tree,
    jellyfish,
    leaf_spine,
    random_heterogeneous,
    star,
    torus,
)

GIVEN = [
    bcube(2, 1),
    bcube(3, 1),
    dcell(2, 1),
    torus(3, 3),
    dgx(2, 4),
    fat_tree(4),
    star([1e9] * 4),
    jellyfish(6, 3, 2, 1),
    *(random_heterogeneous(seed, 3, 7) for seed in range(12)),
]


def link_cost(topology: Topology) -> np.ndarray:
    """A hop, and more of it the slower the link is than the median one, at most ten times."""
    return 1.0 + np.clip(np.median(topology.bandwidth) / topology.bandwidth, 0.1, 10.0)


def hops(paths: Paths, path: int) -> list[int]:
    return paths.links[paths.start[path] : paths.start[path + 1]].tolist()


def all_walks(topology: Topology, source: int, target: int) -> list[tuple[float, list[int]]]:
    """Every loop-free way through switches only, with its cost, cheapest first."""
    cost, leaving = link_cost(topology), defaultdict(list)
    for link, node in enumerate(topology.link_source.tolist()):
        leaving[node].append(link)
    found = []

    def extend(node: int, seen: set[int], links: list[int]) -> None:
        for link in leaving[node]:
            to = int(topology.link_target[link])
            if to == target:
                found.append((float(cost[[*links, link]].sum()), [*links, link]))
            elif topology.is_switch[to] and to not in seen:
                extend(to, seen | {to}, [*links, link])

    extend(source, {source}, [])
    return sorted(found)


@pytest.mark.parametrize("topology", GIVEN, ids=lambda t: t.name)
def test_paths_are_walks_through_switches_with_their_columns_right(topology: Topology) -> None:
    paths = candidate_paths(topology)
    assert paths.num_paths > 0
    for p in range(paths.num_paths):
        links = hops(paths, p)
        assert topology.link_source[links[0]] == paths.nodes[paths.source[p]]
        assert topology.link_target[links[-1]] == paths.nodes[paths.target[p]]
        assert paths.source[p] != paths.target[p]
        inner = topology.link_target[links[:-1]]
        np.testing.assert_array_equal(inner, topology.link_source[links[1:]])
        assert topology.is_switch[inner].all()
        assert len(set(inner.tolist())) == len(inner)
        latency = topology.latency[links]
        assert paths.latency[p] == pytest.approx(latency.sum())
        np.testing.assert_allclose(
            paths.offset[paths.start[p] : paths.start[p + 1]], np.cumsum(latency) - latency, atol=1e-18
        )
        assert paths.rate[p] == topology.bandwidth[links].min()
    assert len({tuple(hops(paths, p)) for p in range(paths.num_paths)}) == paths.num_paths


@pytest.mark.parametrize("topology", GIVEN, ids=lambda t: t.name)
def test_indices_into_the_paths(topology: Topology) -> None:
    paths = candidate_paths(topology)
    for d in range(paths.num_servers):
        into = range(paths.into[d], paths.into[d + 1])
        assert set(into) == set(np.flatnonzero(paths.target == d).tolist())
        groups = [
            set(range(paths.group[g], paths.group[g + 1]))
            for g in range(paths.group_into[d], paths.group_into[d + 1])
        ]
        by_last = defaultdict(set)
        for p in into:
            by_last[hops(paths, p)[-1]].add(p)
        assert sorted(map(sorted, groups)) == sorted(map(sorted, by_last.values()))
    for e in range(topology.num_links):
        through = paths.through_paths[paths.through[e] : paths.through[e + 1]].tolist()
        assert sorted(through) == [p for p in range(paths.num_paths) if e in hops(paths, p)]


@pytest.mark.parametrize(
    "topology",
    [bcube(2, 1), dcell(2, 1), leaf_spine(2, 2, 3), star([1e9, 2e9, 4e9])]
    + [random_heterogeneous(seed, 3, 4) for seed in range(20)],
    ids=lambda t: t.name,
)
@pytest.mark.parametrize("most", [1, 2, 4])
def test_paths_of_a_pair_are_its_cheapest_by_enumeration(topology: Topology, most: int) -> None:
    """The first is a cheapest one and none beyond the limit; where few walks exist, all of them are there."""
    paths, cost = candidate_paths(topology, paths_per_pair=most), link_cost(topology)
    cables = Counter(zip(topology.link_source.tolist(), topology.link_target.tolist()))
    # Parallel cables raise the limit: each needs a path of its own.
    most = max(most, *cables.values())
    own = defaultdict(list)
    for p in range(paths.num_paths):
        own[int(paths.source[p]), int(paths.target[p])].append(float(cost[hops(paths, p)].sum()))
    for s, source in enumerate(paths.nodes.tolist()):
        for d, target in enumerate(paths.nodes.tolist()):
            if s == d:
                continue
            walks = [price for price, _ in all_walks(topology, source, target)]
            found = sorted(own[s, d])
            assert len(found) <= most
            assert bool(found) == bool(walks)
            if walks:
                assert found[0] == pytest.approx(walks[0])
                assert all(price >= best - 1e-9 for price, best in zip(found, walks))


@pytest.mark.parametrize("topology", GIVEN, ids=lambda t: t.name)
def test_cheapest_price_agrees_with_dijkstra(topology: Topology) -> None:
    paths, cost = candidate_paths(topology, targets_per_server=10**6), link_cost(topology)
    for s, source in enumerate(paths.nodes.tolist()):
        graph = nx.DiGraph()
        for link in range(topology.num_links):
            a, b = int(topology.link_source[link]), int(topology.link_target[link])
            # servers other than the source are ends only
            if a == source or topology.is_switch[a]:
                old = graph.get_edge_data(a, b, {"weight": np.inf})["weight"]
                graph.add_edge(a, b, weight=min(old, float(cost[link])))
        best = nx.single_source_dijkstra_path_length(graph, source)
        for d, target in enumerate(paths.nodes.tolist()):
            mine = [
                cost[hops(paths, p)].sum() for p in np.flatnonzero((paths.source == s) & (paths.target == d))
            ]
            if target in best and target != source:
                assert min(mine) == pytest.approx(best[target])
            else:
                assert not mine


def test_equal_paths_are_spread_over_the_servers() -> None:
    """Where there is room for one path a pair, servers do not all prefer the same switch."""
    topology = leaf_spine(2, 4, 8)
    paths = candidate_paths(topology, paths_per_pair=1)
    middle = {hops(paths, p)[1] for p in range(paths.num_paths) if len(hops(paths, p)) == 4}
    # two leaves with an uplink to each spine
    assert len(middle) > 2


def test_targets_are_limited_to_near_and_some_far_ones() -> None:
    topology = fat_tree(4)
    paths = candidate_paths(topology, targets_per_server=4)
    for s in range(paths.num_servers):
        targets = set(paths.target[paths.source == s].tolist())
        assert len(targets) == 4
        # the other server on the same edge switch is the nearest
        assert s ^ 1 in targets
        assert any(d // 4 != s // 4 for d in targets)


def test_relays_join_only_where_participants_cannot_do_without() -> None:
    topology = torus(3, 3)
    participant = np.zeros(9, bool)
    participant[[0, 4, 8]] = True  # no two are neighbours
    paths = candidate_paths(replace(topology, is_participant=participant))
    assert paths.num_servers == 9
    switched = bcube(3, 0)
    participant = ~switched.is_switch
    participant[0] = False
    paths = candidate_paths(replace(switched, is_participant=participant))
    assert paths.nodes.tolist() == [1, 2]


def test_parallel_cables_are_different_paths() -> None:
    topology = Topology.from_arrays(
        "pair", ["a", "b"], [False] * 2, [0, 0, 0, 1], [1, 1, 1, 0], [1e9] * 4, [0.0] * 4
    )
    paths = candidate_paths(topology)
    assert sorted(zip(paths.source.tolist(), paths.target.tolist())) == [(0, 1)] * 3 + [(1, 0)]
    assert sorted(hops(paths, p) for p in range(4)) == [[0], [1], [2], [3]]


def test_unreachable_participant_is_refused() -> None:
    topology = Topology.from_arrays("one way", ["a", "b"], [False] * 2, [0], [1], [1e9], [0.0])
    with pytest.raises(InputError, match="one way"):
        candidate_paths(topology)


def test_no_more_than_the_limit_a_pair() -> None:
    paths = candidate_paths(fat_tree(8))
    pairs = paths.source.astype(np.int64) * paths.num_servers + paths.target
    assert np.unique(pairs, return_counts=True)[1].max() == PATHS_PER_PAIR
