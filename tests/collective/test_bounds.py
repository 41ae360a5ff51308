"""Bounds: the design's table, closed forms, brute force over cuts, and how they change with the network."""

from itertools import combinations

import numpy as np
import pytest
from hand_schedules import direct_ring, network, random_network, star
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from gnnsched.collective.bounds import (
    algorithm_bandwidth,
    all_gather_bound,
    allreduce_lp_bound,
    bounds,
    bus_bandwidth,
    latency_bound,
    reduce_scatter_bound,
    rs_ag_bound,
)
from gnnsched.topology import Topology
from gnnsched.topology import generators as make

UNIT = 12.5e9

# Name, network with NICs of UNIT, T_AG, RS+AG, LP in units of M / UNIT.
TABLE = [
    ("bcube_4_1", lambda: make.bcube(4, 1, UNIT), 15 / 32, 15 / 16, 15 / 16),
    ("bcube_8_1", lambda: make.bcube(8, 1, UNIT), 63 / 128, 63 / 64, 63 / 64),
    ("bcube_4_2", lambda: make.bcube(4, 2, UNIT), 21 / 64, 21 / 32, 21 / 32),
    ("dcell_4_1", lambda: make.dcell(4, 1, UNIT), 19 / 40, 19 / 20, 19 / 20),
    ("dcell_6_1", lambda: make.dcell(6, 1, UNIT), 41 / 84, 41 / 42, 41 / 42),
    ("dcell_2_2", lambda: make.dcell(2, 2, UNIT), 41 / 126, 41 / 63, 41 / 63),
    ("jellyfish_20x4x2", lambda: make.jellyfish(20, 4, 2, 0, UNIT), 39 / 40, 39 / 20, 39 / 20),
    ("fat_tree_4", lambda: make.fat_tree(4, UNIT), 15 / 16, 15 / 8, 15 / 8),
    ("torus_8x8", lambda: make.torus(8, 8, bandwidth=UNIT), 63 / 256, 63 / 128, 63 / 128),
    ("dgx_2x8", lambda: make.dgx(2, 8, 12 * UNIT, UNIT), 15 / 208, 15 / 104, 15 / 104),
    ("star_uneven", lambda: make.star([10 * UNIT] * 4 + [UNIT] * 4), 7 / 8, 7 / 4, 1.0),
    ("hub_4", lambda: make.hub(4, UNIT), 4 / 5, 8 / 5, 1.0),
]


@pytest.mark.parametrize(
    ("build", "gather", "rs_ag", "lp"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_table_of_the_design(build, gather: float, rs_ag: float, lp: float) -> None:
    topology, message = build(), 2.0**30
    assert all_gather_bound(topology, message) == pytest.approx(gather * message / UNIT, rel=1e-14)
    assert rs_ag_bound(topology, message) == pytest.approx(rs_ag * message / UNIT, rel=1e-14)
    value, note = allreduce_lp_bound(topology, message, 60.0)
    assert note is None
    assert value == pytest.approx(lp * message / UNIT, rel=1e-8)


def scaled(topology: Topology, keep: np.ndarray, factor: float) -> Topology:
    return Topology.from_arrays(
        topology.name,
        topology.node_ids,
        topology.is_switch,
        topology.link_source[keep],
        topology.link_target[keep],
        topology.bandwidth[keep] * factor,
        topology.latency[keep],
        topology.is_participant,
    )


def one_way(topology: Topology, rng: np.random.Generator) -> Topology:
    """The same links with a bandwidth of their own in each direction."""
    return Topology.from_arrays(
        topology.name,
        topology.node_ids,
        topology.is_switch,
        topology.link_source,
        topology.link_target,
        topology.bandwidth * rng.choice([1.0, 1.5, 1 / 3, 0.7123456789], topology.num_links),
        topology.latency,
        topology.is_participant,
    )


def gather_by_brute_force(topology: Topology) -> float:
    worst = 0.0
    nodes = range(topology.num_nodes)
    count = len(topology.participants)
    for size in range(1, topology.num_nodes):
        for chosen in combinations(nodes, size):
            side = np.isin(np.arange(topology.num_nodes), chosen)
            inside = int((side & topology.is_participant).sum())
            if 0 < inside < count:
                leaving = side[topology.link_source] & ~side[topology.link_target]
                worst = max(worst, inside / topology.bandwidth[leaving].sum())
    return worst / count


def lp_by_flows(topology: Topology) -> float:
    """The program as the design states it, with a flow per participant and phase."""
    links, servers, people = topology.num_links, topology.servers.tolist(), topology.participants.tolist()
    columns = len(servers) + 2 * links * (1 + len(people))
    out, inn = len(servers), len(servers) + links
    less, less_limit, equal, equal_limit = [], [], [], []
    for e in range(links):
        row = np.zeros(columns)
        row[[out + e, inn + e]] = 1
        less.append(row)
        less_limit.append(topology.bandwidth[e])
    for w in np.flatnonzero(topology.is_switch):
        leaves, enters = np.flatnonzero(topology.link_source == w), np.flatnonzero(topology.link_target == w)
        for base, sign in ((out, 1), (inn, -1)):
            row = np.zeros(columns)
            row[base + leaves] = sign
            row[base + enters] = -sign
            less.append(row)
            less_limit.append(0.0)
    for number, v in enumerate(people):
        for phase, base in ((0, out), (1, inn)):
            flow = len(servers) + 2 * links + (2 * number + phase) * links
            for e in range(links):
                row = np.zeros(columns)
                row[flow + e], row[base + e] = 1, -1
                less.append(row)
                less_limit.append(0.0)
            for node in range(topology.num_nodes):
                if node == v:
                    continue
                row = np.zeros(columns)
                row[flow + np.flatnonzero(topology.link_source == node)] += 1
                row[flow + np.flatnonzero(topology.link_target == node)] -= 1
                if node in servers:
                    row[servers.index(node)] = -1 if phase == 0 else 1
                equal.append(row)
                equal_limit.append(0.0)
    objective = np.zeros(columns)
    objective[: len(servers)] = -1
    result = linprog(objective, np.array(less), less_limit, np.array(equal), equal_limit)
    return -1.0 / result.fun


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_gather_equals_brute_force_over_cuts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_network(rng)
    if seed % 2:
        topology = one_way(topology, rng)
    assert all_gather_bound(topology) == pytest.approx(gather_by_brute_force(topology), rel=1e-7)
    assert reduce_scatter_bound(topology) == pytest.approx(
        gather_by_brute_force(topology.reversed()), rel=1e-7
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_lp_by_cuts_equals_lp_by_flows_and_is_at_most_rs_ag(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_network(rng)
    if not topology.is_switch.any() and seed % 2:
        topology = one_way(topology, rng)
    value, note = allreduce_lp_bound(topology, 1.0, 60.0)
    assert note is None
    assert value == pytest.approx(lp_by_flows(topology), rel=1e-6)
    assert value <= rs_ag_bound(topology) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_bounds_follow_the_network(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_network(rng)
    everything = np.ones(topology.num_links, bool)
    base = rs_ag_bound(topology)
    assert rs_ag_bound(scaled(topology, everything, 2.0)) == base / 2
    assert rs_ag_bound(topology, 3.0) == pytest.approx(3 * base, rel=1e-14)
    assert latency_bound(scaled(topology, everything, 2.0)) == latency_bound(topology)
    keep = everything.copy()
    keep[rng.integers(topology.num_links)] = False
    assert rs_ag_bound(scaled(topology, keep, 1.0)) >= base
    assert latency_bound(scaled(topology, keep, 1.0)) >= latency_bound(topology)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_renumbering_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_network(rng)
    node, link = rng.permutation(topology.num_nodes), rng.permutation(topology.num_links)
    where = np.argsort(node)
    other = Topology.from_arrays(
        "renumbered",
        [topology.node_ids[i] for i in node],
        topology.is_switch[node],
        where[topology.link_source[link]],
        where[topology.link_target[link]],
        topology.bandwidth[link],
        topology.latency[link],
        topology.is_participant[node],
    )
    assert rs_ag_bound(other) == rs_ag_bound(topology)
    assert latency_bound(other) == latency_bound(topology)
    assert allreduce_lp_bound(other)[0] == pytest.approx(allreduce_lp_bound(topology)[0], rel=1e-8)


def test_parallel_cables_are_one_capacity_and_the_quicker_latency() -> None:
    pair = network(2, 0, [(0, 1, 100.0, 3.0)] * 3 + [(0, 1, 100.0, 1.0)])
    assert all_gather_bound(pair, 8.0) == 4.0 / 400.0
    assert latency_bound(pair) == 1.0


def test_latency_runs_over_relays_and_counts_participants_only() -> None:
    line = network(4, 0, [(0, 1, 1.0, 1.0), (1, 2, 1.0, 0.0), (2, 3, 1.0, 50.0)], relays=[3])
    assert latency_bound(line) == 1.0
    result = bounds(line, 1e-6)
    assert result.bound_s == 1.0
    assert result.rs_ag_s < 1.0


def test_unbalanced_one_way_switch_has_no_lp_bound() -> None:
    # r -> w, w -> a, w -> b, a -> r, b -> r: the switch gives out twice what it takes in.
    topology = Topology.from_arrays(
        "funnel", ["r", "a", "b", "w"], [0, 0, 0, 1], [0, 3, 3, 1, 2], [3, 1, 2, 0, 0], [1.0] * 5, [0.0] * 5
    )
    assert rs_ag_bound(topology) == pytest.approx(4 / 3, rel=1e-14)
    value, note = allreduce_lp_bound(topology)
    assert value is None
    assert "'w'" in note


def test_lp_says_so_when_its_time_ends() -> None:
    value, note = allreduce_lp_bound(make.fat_tree(4), 1.0, 0.0)
    assert value is None
    assert "within 0 s" in note
    result = bounds(make.fat_tree(4), 1.0, lp_time_limit=0.0)
    assert result.lp_bound_s is None
    assert result.bound_s > 0


def test_a_root_may_be_a_server_that_only_relays() -> None:
    # A relaying hub: every leaf sends M and receives M at once.
    hub = network(5, 0, [(0, i, 1.0) for i in range(1, 5)], relays=[0])
    assert allreduce_lp_bound(hub)[0] == pytest.approx(1.0, rel=1e-8)


def test_one_participant_takes_no_time() -> None:
    topology = network(2, 0, [(0, 1, 1.0, 1.0)], relays=[1])
    result = bounds(topology, 1e9)
    assert (result.bound_s, result.rs_ag_s, result.latency_s, result.lp_bound_s) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 10])
def test_closed_forms_at_any_size(n: int) -> None:
    assert rs_ag_bound(star([4.0] * n)) == pytest.approx(2 * (n - 1) / n / 4.0, rel=1e-14)
    if n > 2:
        assert rs_ag_bound(direct_ring(n, 4.0)) == pytest.approx(2 * (n - 1) / n / 8.0, rel=1e-14)


def test_an_island_is_never_reached() -> None:
    assert all_gather_bound(Topology.from_arrays("island", "ab", [0, 0], [0], [1], [1.0], [0.0])) == np.inf


def test_algbw_and_busbw() -> None:
    assert algorithm_bandwidth(8.0, 2.0) == 4.0
    assert bus_bandwidth(8.0, 2.0, 4) == 4.0 * 6 / 4
    assert algorithm_bandwidth(8.0, 0.0) is None
    assert bus_bandwidth(8.0, 2.0, 1) is None
    assert bus_bandwidth(8.0, 0.0, 1) is None
