"""The compiled list scheduler against a plain one, its paths against networkx, and the mirror image."""

import networkx as nx
import numpy as np
import pytest

from gnnsched.collective.baselines.flow_trees import FlowTrees, over_servers
from gnnsched.collective.baselines.list_schedule import list_schedule
from gnnsched.collective.baselines.routes import relay_sequences, switch_paths
from gnnsched.collective.mirror import allreduce_from_broadcast, mirror
from gnnsched.collective.schedule import BROADCAST, REDUCE, Transfers
from gnnsched.collective.verify import verify
from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators.server_centric import bcube, torus
from gnnsched.topology.generators.switched import fat_tree, star

TOLERANCE = 1e-7


def random_network(rng: np.random.Generator, symmetric: bool = True) -> Topology:
    """Strongly connected: 2 to 8 servers (some only relay), 0 to 4 switches, parallel links, mixed speeds."""
    servers, switches = int(rng.integers(2, 9)), int(rng.integers(0, 5))
    nodes = servers + switches
    order = rng.permutation(nodes)
    cables = [(int(order[i]), int(order[rng.integers(i)])) for i in range(1, nodes)]
    cables += [tuple(rng.choice(nodes, 2, replace=False).tolist()) for _ in range(rng.integers(0, 2 * nodes))]
    speeds = [1.0] if rng.random() < 0.3 else [1.0, 2.0, 10.0]
    slow = float(rng.choice([0.0, 0.1, 5.0]))
    source, target, bandwidth, latency = [], [], [], []
    for a, b in cables:
        speed, delay = float(rng.choice(speeds)), slow * float(rng.random())
        for s, d in ((a, b), (b, a)):
            source.append(s)
            target.append(d)
            bandwidth.append(speed if symmetric else speed * float(rng.choice([1.0, 2.0])))
            latency.append(delay)
    takes_part = np.arange(nodes) < servers
    if servers > 3 and rng.random() < 0.4:
        takes_part[rng.choice(servers, 2, replace=False)] = False
    return Topology.from_arrays(
        "random",
        [f"n{i}" for i in range(nodes)],
        np.arange(nodes) >= servers,
        source,
        target,
        bandwidth,
        latency,
        takes_part,
    )


def random_trees(topology: Topology, rng: np.random.Generator) -> FlowTrees:
    """A random tree over the participants for each of a few chunks, with random steps."""
    participants = topology.participants
    chunks = int(rng.integers(1, 12))
    roots, edges = [], []
    for chunk in range(chunks):
        order = rng.permutation(participants)
        roots.append(order[0])
        edges += [
            (chunk, order[rng.integers(i)], order[i], i if rng.random() < 0.5 else rng.integers(9))
            for i in range(1, len(order))
        ]
    # Steps grow from parent to child, as over_servers asks for and every algorithm has it.
    depth: dict[tuple[int, int], int] = {(c, int(root)): -1 for c, root in enumerate(roots)}
    rows = []
    for chunk, parent, child, step in edges:
        depth[chunk, int(child)] = depth[chunk, int(parent)] + 1 + int(step)
        rows.append((chunk, int(parent), int(child), depth[chunk, int(child)]))
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return FlowTrees(
        np.array(roots, np.int32),
        columns[0].astype(np.int32),
        columns[1].astype(np.int32),
        columns[2].astype(np.int32),
        columns[3],
    )


def pair_paths(topology: Topology, source: int, target: int) -> list[list[int]]:
    found = switch_paths(topology, np.array([source], np.int32), np.array([target], np.int32))
    return [
        found.links[found.path_start[i] : found.path_start[i + 1]].tolist() for i in range(found.first[1])
    ]


def plain_list_schedule(topology: Topology, chunk_bytes: float, trees: FlowTrees) -> list[tuple]:
    """The documented rule, trying all that waits each time: start, chunk, source, target, path, end."""
    order = np.lexsort((np.arange(len(trees.chunk)), trees.chunk, trees.step))
    waiting = [(int(trees.chunk[i]), int(trees.parent[i]), int(trees.child[i])) for i in order]
    paths = {(s, d): pair_paths(topology, s, d) for _, s, d in waiting}
    rate = {
        (s, d): [min(topology.bandwidth[link] for link in path) for path in found]
        for (s, d), found in paths.items()
    }
    tolerance = TOLERANCE * chunk_bytes / max((max(r) for r in rate.values()), default=1.0)
    arrival = {(chunk, int(root)): 0.0 for chunk, root in enumerate(trees.roots)}
    booked: dict[int, list[tuple[float, float]]] = {link: [] for link in range(topology.num_links)}

    def free_from(path: list[int], speed: float) -> float:
        earliest, ahead = -np.inf, 0.0
        for link in path:
            used = 0.0
            for end, taken in sorted(booked[link], reverse=True):
                used += taken
                if used > topology.bandwidth[link] * (1 + 1e-9) - speed:
                    earliest = max(earliest, end - ahead)
                    break
            ahead += topology.latency[link]
        return earliest

    done = []
    while waiting:
        now = min(
            max(arrival[c, s], free_from(path, speed))
            for c, s, d in waiting
            if (c, s) in arrival
            for path, speed in zip(paths[s, d], rate[s, d])
        )
        for transfer in list(waiting):
            c, s, d = transfer
            if arrival.get((c, s), np.inf) > now + tolerance:
                continue
            for path, speed in zip(paths[s, d], rate[s, d]):
                earliest = free_from(path, speed)
                if earliest <= now + tolerance:
                    start, ahead = max(now, arrival[c, s], earliest), 0.0
                    for link in path:
                        booked[link].append((start + ahead + chunk_bytes / speed, speed))
                        ahead += topology.latency[link]
                    arrival[c, d] = start + ahead + chunk_bytes / speed
                    waiting.remove(transfer)
                    done.append((start, c, s, d, path, arrival[c, d]))
                    break
    return sorted(done)


def as_rows(plan: Transfers) -> list[tuple]:
    return sorted(
        (
            float(plan.start[i]),
            int(plan.chunk[i]),
            int(plan.source[i]),
            int(plan.target[i]),
            plan.path_links[plan.path_start[i] : plan.path_start[i + 1]].tolist(),
            float(plan.end[i]),
        )
        for i in range(len(plan))
    )


def test_the_compiled_scheduler_agrees_exactly_with_the_plain_one() -> None:
    transfers = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        topology = random_network(rng, symmetric=seed % 3 > 0)
        trees = over_servers(topology, random_trees(topology, rng))
        chunk_bytes = float(rng.choice([1.0, 7.3]))
        plan = list_schedule(topology, chunk_bytes, trees)
        assert as_rows(plan) == plain_list_schedule(topology, chunk_bytes, trees), seed
        assert (np.diff(plan.start) >= 0).all()
        assert (plan.phase == BROADCAST).all()
        transfers += len(plan)
    assert transfers > 1000


def test_random_trees_become_right_schedules_on_one_way_and_mixed_networks() -> None:
    asymmetric = 0
    for seed in range(150):
        rng = np.random.default_rng(1000 + seed)
        topology = random_network(rng, symmetric=seed % 2 > 0)
        trees = random_trees(topology, rng)
        schedule = allreduce_from_broadcast(
            topology,
            3.0 * len(trees.roots),
            trees.roots,
            lambda network, trees=trees: list_schedule(network, 3.0, trees),
            {"name": "random trees"},
        )
        verdict = verify(schedule)
        assert verdict.ok, (seed, verdict.fault)
        asymmetric += topology.opposite is None
    assert asymmetric > 30


def test_switch_paths_are_shortest_and_distinct_and_reach_all_that_networkx_reaches() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        topology = random_network(rng)
        for s in topology.servers.tolist():
            inner = [*np.flatnonzero(topology.is_switch).tolist(), s]
            for d in topology.servers.tolist():
                if d == s:
                    continue
                graph = nx.DiGraph()
                graph.add_nodes_from((s, d))
                for a, b in zip(topology.link_source.tolist(), topology.link_target.tolist()):
                    if a in inner and (b in inner or b == d):
                        graph.add_edge(a, b, cables=graph.get_edge_data(a, b, {"cables": 0})["cables"] + 1)
                found = pair_paths(topology, s, d)
                if not nx.has_path(graph, s, d):
                    assert found == []
                    continue
                shortest = [tuple(nodes) for nodes in nx.all_shortest_paths(graph, s, d)]
                walks = [(s, *topology.link_target[path].tolist()) for path in found]
                assert all(
                    (topology.link_source[path].tolist() == list(w[:-1])) for path, w in zip(found, walks)
                )
                assert set(walks) <= set(shortest)
                ways = sum(
                    int(np.prod([graph[a][b]["cables"] for a, b in nx.utils.pairwise(nodes)]))
                    for nodes in shortest
                )
                assert len(found) == min(ways, 8) == len({tuple(path) for path in found})


def test_many_equal_paths_are_spread_over_all_core_switches() -> None:
    topology = fat_tree(8)
    used = set()
    for d in topology.servers[64:80].tolist():
        for path in pair_paths(topology, int(topology.servers[0]), d)[:1]:
            used.add(int(topology.link_target[path[2]]))
    assert len(used) == 16


def test_hops_over_servers_where_no_switch_reaches() -> None:
    topology = bcube(4, 1, latency=0.0)
    s, t = 0, 5  # the addresses 00 and 11
    assert pair_paths(topology, s, t) == []
    pairs = np.array([s], np.int32), np.array([t], np.int32)
    assert sorted(relay_sequences(topology, *pairs)[0]) == [(0, 1, 5), (0, 4, 5)]
    trees = FlowTrees(
        np.array([0], np.int32),
        np.zeros(3, np.int32),
        np.array([0, 0, 0], np.int32),
        np.array([5, 4, 1], np.int32),
        np.arange(3),
    )
    hops = over_servers(topology, trees)
    assert sorted(hops.child.tolist()) == [1, 4, 5]  # each once, though one relay was a target, too
    assert hops.parent[hops.child == 5] in (1, 4)


def test_fast_link_carries_slow_transfers_side_by_side() -> None:
    topology = star([10.0] + [1.0] * 10, latency=0.0)
    trees = FlowTrees(
        np.array([0], np.int32),
        np.zeros(10, np.int32),
        np.zeros(10, np.int32),
        np.arange(1, 11, dtype=np.int32),
        np.zeros(10, np.int64),
    )
    plan = list_schedule(topology, 3.0, trees)
    assert plan.start.tolist() == [0.0] * 10
    assert plan.end.tolist() == [3.0] * 10


def test_latency_delays_arrival_and_occupies_nothing() -> None:
    topology = star([1.0, 1.0], latency=5.0)
    trees = FlowTrees(
        np.zeros(3, np.int32),
        np.arange(3, dtype=np.int32),
        np.zeros(3, np.int32),
        np.ones(3, np.int32),
        np.zeros(3, np.int64),
    )
    plan = list_schedule(topology, 2.0, trees)
    assert plan.start.tolist() == [0.0, 2.0, 4.0]
    assert plan.end.tolist() == [12.0, 14.0, 16.0]


def test_an_edge_without_a_root_is_refused() -> None:
    topology = star([1.0] * 3)
    trees = FlowTrees(
        np.array([0], np.int32),
        np.zeros(1, np.int32),
        np.array([1], np.int32),
        np.array([2], np.int32),
        np.zeros(1, np.int64),
    )
    with pytest.raises(ValueError, match="root"):
        list_schedule(topology, 1.0, trees)


def test_no_path_is_refused_with_the_names() -> None:
    topology = Topology.from_arrays("gap", ["a", "b"], [False, False], [0], [1], [1.0], [0.0])
    with pytest.raises(InputError, match="gap: no path from 'b' to 'a'"):
        relay_sequences(topology, np.array([1], np.int32), np.array([0], np.int32))


def test_mirror_image_by_hand() -> None:
    # 0 -> 1 -> 2 over two cables of unequal latency: links 0: 0>1, 1: 1>0, 2: 1>2, 3: 2>1.
    topology = Topology.from_arrays(
        "line", "abc", [False] * 3, [0, 1, 1, 2], [1, 0, 2, 1], [1.0, 1.0, 2.0, 2.0], [0.5, 0.5, 3.0, 3.0]
    )
    trees = FlowTrees(
        np.array([0], np.int32),
        np.zeros(2, np.int32),
        np.array([0, 1], np.int32),
        np.array([1, 2], np.int32),
        np.arange(2),
    )
    plan = list_schedule(topology, 2.0, trees)
    assert plan.end.tolist() == [2.5, 6.5]
    image = mirror(topology, plan)
    assert image.source.tolist() == [2, 1]
    assert image.target.tolist() == [1, 0]
    assert image.path_links.tolist() == [3, 1]
    assert image.start.tolist() == [0.0, 4.0]
    assert image.end.tolist() == [4.0, 6.5]
    assert (image.phase == REDUCE).all()
    assert image.rate.tolist() == [2.0, 1.0]


def test_one_way_networks_plan_the_reduce_half_on_the_reversed_network() -> None:
    # A one-way ring: the reduce half must go on round it, over the same links.
    topology = Topology.from_arrays(
        "one way", "abc", [False] * 3, [0, 1, 2], [1, 2, 0], [1.0] * 3, [0.25] * 3
    )
    asked = []

    def plan_for(network: Topology) -> Transfers:
        asked.append(network)
        root = FlowTrees(
            np.array([0], np.int32),
            np.zeros(2, np.int32),
            np.zeros(2, np.int32),
            np.array([1, 2], np.int32),
            np.arange(2),
        )
        return list_schedule(network, 3.0, root)

    schedule = allreduce_from_broadcast(topology, 3.0, np.array([0], np.int32), plan_for, {"name": "hand"})
    assert len(asked) == 2
    assert verify(schedule).ok
    reduce = schedule.transfers.phase == REDUCE
    assert schedule.transfers.source[reduce].tolist() == [1, 2]
    assert schedule.makespan == pytest.approx(4 * 3.25)
    asked.clear()
    allreduce_from_broadcast(torus(3), 3.0, np.array([0], np.int32), plan_for, {"name": "hand"})
    assert len(asked) == 1
