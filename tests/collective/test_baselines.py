"""Classical baselines: hand-computed times, right on any network and any number of servers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_list_schedule import random_network

from gnnsched.collective.baselines import CLASSICAL, classical_schedule
from gnnsched.collective.baselines.double_tree import double_trees, twin_trees
from gnnsched.collective.baselines.halving_doubling import binomial_trees
from gnnsched.collective.baselines.ring import depth_first_tree, tree_paths
from gnnsched.collective.schedule import BROADCAST, Schedule
from gnnsched.collective.verify import verify
from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators.heterogeneous import random_heterogeneous
from gnnsched.topology.generators.server_centric import bcube, dcell, hub, torus
from gnnsched.topology.generators.switched import dgx, dumbbell, fat_tree, jellyfish, leaf_spine, star

B = 12.5e9
NUMBERS = (1, 2, 3, 5, 6, 7, 10)


def even_star(servers: int, bandwidth: float = 1.0) -> Topology:
    return star([bandwidth] * servers, latency=0.0)


def sent_and_received(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Bytes sent and received by each participant."""
    t, topology = schedule.transfers, schedule.topology
    sent = np.bincount(t.source, minlength=topology.num_nodes)[topology.participants]
    received = np.bincount(t.target, minlength=topology.num_nodes)[topology.participants]
    return sent * schedule.chunk_bytes, received * schedule.chunk_bytes


def assert_right(schedule: Schedule, chunks_per_server: int) -> None:
    verdict = verify(schedule)
    assert verdict.ok, (schedule.topology.name, dict(schedule.planner), verdict.fault)
    n = len(schedule.topology.participants)
    assert schedule.num_chunks == n * chunks_per_server
    if n == 1:
        assert len(schedule.transfers) == 0
        assert schedule.makespan == 0.0
        return
    for bytes_moved in sent_and_received(schedule):
        assert (bytes_moved >= schedule.message_bytes * (1 - 1e-9)).all()


@pytest.mark.parametrize("servers", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("chunks_per_server", [1, 3])
def test_ring_and_parameter_servers_on_a_star_take_their_closed_forms(
    servers: int, chunks_per_server: int
) -> None:
    topology = even_star(servers, 4.0)
    message = 24.0
    share = 2 * (servers - 1) / servers * message / 4.0
    expected = {
        "ring": share,
        "sharded_parameter_server": share,
        "parameter_server": 2 * (servers - 1) * message / 4.0,
    }
    for name, seconds in expected.items():
        assert classical_schedule(name, topology, message, chunks_per_server).makespan == pytest.approx(
            seconds, rel=1e-12
        )


def test_fast_parameter_server_serves_all_at_once() -> None:
    # Ten slow NICs fill the fast one: everybody pushes M at b, then pulls M at b.
    topology = star([10.0] + [1.0] * 10, latency=0.0)
    assert classical_schedule("parameter_server", topology, 5.0, 2).makespan == pytest.approx(10.0)


def test_double_tree_by_hand() -> None:
    # Four servers: tree 0 is 0 > 2 > {1, 3} with chunks 0 and 2, tree 1 is 3 > 1 > {2, 0} with chunks 1, 3.
    # In units of a chunk: chunk 0 reaches 2, 1 and 3 at 1, 2 and 3; 2 sends chunk 2 from 3 to 5.
    schedule = classical_schedule("double_tree", even_star(4), 4.0, 1)
    assert schedule.roots.tolist() == [0, 3, 0, 3]
    assert schedule.makespan == pytest.approx(2 * 5.0)
    # Two servers: each sends one half at once, so that a phase takes M / 2b.
    assert classical_schedule("double_tree", even_star(2), 4.0, 3).makespan == pytest.approx(4.0)
    # Many chunks: every server sends and receives about M a phase; the pipeline's ends vanish.
    assert classical_schedule("double_tree", even_star(8), 1.0, 64).makespan == pytest.approx(2.0, rel=0.05)


def test_halving_doubling_by_hand() -> None:
    # Powers of two: log2(N) exchanges without contention, (N-1)/N of M each way in both phases.
    for servers in (2, 4, 8):
        schedule = classical_schedule("halving_doubling", even_star(servers), 1.0, 2)
        assert schedule.makespan == pytest.approx(2 * (servers - 1) / servers)
    # Three: 0 and 2 exchange (chunks 0, 1 at 0; chunk 2 at 2), then 0 sends all three to 1: it sends five.
    schedule = classical_schedule("halving_doubling", even_star(3), 3.0, 1)
    assert schedule.roots.tolist() == [0, 0, 2]
    assert schedule.makespan == pytest.approx(2 * 5.0)


@pytest.mark.parametrize("name", CLASSICAL)
@pytest.mark.parametrize("servers", [2, 3, 4, 6, 7])
def test_bytes_on_a_star_add_up(name: str, servers: int) -> None:
    schedule = classical_schedule(name, even_star(servers), 1.0, 2)
    sent, received = sent_and_received(schedule)
    for moved in (sent, received):
        assert moved.sum() == pytest.approx(2 * (servers - 1))
        assert (moved >= 1 - 1e-9).all()
    assert len(schedule.transfers) == 2 * (servers - 1) * schedule.num_chunks


def test_twin_trees() -> None:
    first, _ = twin_trees(8)
    assert first.tolist() == [-1, 2, 4, 2, 0, 6, 4, 6]
    for n in range(1, 70):
        children = np.zeros((2, n), int)
        for tree, parent in enumerate(twin_trees(n)):
            assert (parent < 0).sum() == 1
            for rank in range(n):
                at, hops = rank, 0
                while parent[at] >= 0:
                    at, hops = parent[at], hops + 1
                assert hops <= n.bit_length()
                if parent[rank] >= 0:
                    children[tree, parent[rank]] += 1
        assert (children.sum(axis=0) <= 2).all()  # what makes both trees together use each NIC once
        if n % 2 == 0:
            assert not (children > 0).all(axis=0).any()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 10, 16, 19])
def test_trees_span_all_participants(n: int) -> None:
    participants = np.arange(3, 3 + 2 * n, 2, dtype=np.int32)
    for trees in (double_trees(participants, 2 * n), binomial_trees(participants, 2 * n)):
        for chunk in range(2 * n):
            edges = trees.chunk == chunk
            reached = [trees.roots[chunk], *trees.child[edges].tolist()]
            assert sorted(reached) == participants.tolist()


def test_depth_first_ring_beats_id_order_where_ids_alternate_and_uses_each_link_once() -> None:
    # Two switches; even servers on one, odd ones on the other: in id order every hop crosses the middle.
    n = 8
    cables = [(i, n + i % 2, 1.0) for i in range(n)] + [(n, n + 1, 1.0)]
    source = [a for a, b, _ in cables] + [b for a, b, _ in cables]
    target = [b for a, b, _ in cables] + [a for a, b, _ in cables]
    topology = Topology.from_arrays(
        "alternating", list(range(n + 2)), [False] * n + [True] * 2, source, target, [1.0] * 18, [0.0] * 18
    )
    schedule = classical_schedule("ring", topology, 1.0, 1)
    assert schedule.planner["order"] == "depth_first"
    assert schedule.makespan == pytest.approx(2 * 7 / 8)
    network = jellyfish(20, 4, 2, 7, latency=0.0)
    order, parent = depth_first_tree(network)
    paths = tree_paths(network, order, parent)
    assert len(paths) == 40
    links = [link for found in paths.values() for link in found[0]]
    assert len(links) == len(set(links))
    assert classical_schedule("ring", network, B, 1).makespan == pytest.approx(39 / 20)


# Times in units of M/b as a fluid simulation gave them (ring in id order, parameter server, sharded), and the
# bound. Relays that reduce and keep make trees of the parameter servers' stars, so these may well be faster.
COLUMNS = {
    "bcube_4_1": (bcube(4, 1, latency=0.0), B, 15 / 16, (1.875, 15, 1.5)),
    "bcube_8_1": (bcube(8, 1, latency=0.0), B, 63 / 64, (1.97, 63, 1.75)),
    "dcell_4_1": (dcell(4, 1, latency=0.0), B, 19 / 20, (3.8, 24, 2.4)),
    "dcell_2_2": (dcell(2, 2, latency=0.0), B, 41 / 63, (3.9, 40.7, 3.13)),
    "jellyfish": (jellyfish(20, 4, 2, 0, latency=0.0), B, 39 / 20, (3.9, 78, 3.62)),
    "fat_tree_4": (fat_tree(4, latency=0.0), B, 15 / 8, (1.875, 30, 1.875)),
    "torus_8x8": (torus(8, 8, latency=0.0), B, 63 / 128, (1.97, 31.5, 2.0)),
    "dgx_2x8": (dgx(2, 8, 12 * B, B, latency=0.0), B, 15 / 104, (1.875, 17.1, 1.07)),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_order_of_magnitude_of_the_fluid_columns(case: str) -> None:
    topology, bandwidth, bound, columns = COLUMNS[case]
    for name, fluid in zip(("ring", "parameter_server", "sharded_parameter_server"), columns):
        schedule = classical_schedule(name, topology, bandwidth, 4)
        assert bound * (1 - 1e-9) <= schedule.makespan <= 1.05 * fluid


def test_fat_tree_reaches_its_columns_exactly() -> None:
    topology = fat_tree(4, latency=0.0)
    for name, ratio in (("ring", 1.875), ("parameter_server", 30.0), ("halving_doubling", 1.875)):
        assert classical_schedule(name, topology, B, 2).makespan == pytest.approx(ratio)


SUITE = [
    *(star([B] * n) for n in NUMBERS),
    *(torus(n) for n in NUMBERS[1:]),
    *(hub(n - 1) for n in NUMBERS[1:]),
    *(leaf_spine(n, 1, 2) for n in (2, 3)),
    bcube(2, 1),
    bcube(3, 1),
    bcube(4, 1),
    dcell(2, 1),
    dcell(4, 1),
    jellyfish(10, 3, 2, 0),
    fat_tree(4),
    torus(4, 4),
    dgx(2, 4),
    leaf_spine(4, 4, 1, 4.0),
    dumbbell(8),
    star([10 * B] * 4 + [B] * 4),
]


@pytest.mark.parametrize("name", CLASSICAL)
def test_every_baseline_is_right_on_small_networks_of_every_family(name: str) -> None:
    for topology in SUITE:
        for chunks_per_server in (1, 2):
            assert_right(classical_schedule(name, topology, 2.0**20, chunks_per_server), chunks_per_server)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    symmetric=st.booleans(),
    chunks_per_server=st.integers(1, 3),
    name=st.sampled_from(list(CLASSICAL)),
)
def test_every_baseline_is_right_on_random_networks(
    seed: int, symmetric: bool, chunks_per_server: int, name: str
) -> None:
    topology = random_network(np.random.default_rng(seed), symmetric)
    schedule = classical_schedule(name, topology, 100.0, chunks_per_server)
    assert_right(schedule, chunks_per_server)
    broadcast = schedule.transfers.phase == BROADCAST
    assert schedule.planner["name"] == name
    assert schedule.transfers.start[broadcast].min(initial=np.inf) >= schedule.transfers.end[~broadcast].max(
        initial=0.0
    ) * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), name=st.sampled_from(list(CLASSICAL)))
def test_twice_the_bandwidth_is_half_the_time_and_names_do_not_count(seed: int, name: str) -> None:
    slow = random_heterogeneous(np.random.default_rng(seed), latency=0.0)
    fast = Topology.from_arrays(
        "fast",
        [f"x{100 - i}" for i in range(slow.num_nodes)],
        slow.is_switch,
        slow.link_source,
        slow.link_target,
        slow.bandwidth * 2,
        slow.latency,
        slow.is_participant,
    )
    times = [classical_schedule(name, network, 2.0**20, 2).makespan for network in (slow, fast)]
    assert times[0] == pytest.approx(2 * times[1], rel=1e-9)


@pytest.mark.parametrize("name", CLASSICAL)
def test_bad_requests_end_in_one_line(name: str) -> None:
    topology = even_star(3)
    with pytest.raises(InputError, match="0 chunks per server: give at least 1"):
        classical_schedule(name, topology, 1.0, 0)
    for message in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="positive number of bytes"):
            classical_schedule(name, topology, message, 1)
    none = Topology.from_arrays(
        "none", ["a", "b"], [False] * 2, [0, 1], [1, 0], [1.0] * 2, [0.0] * 2, [False] * 2
    )
    with pytest.raises(InputError, match="no server takes part"):
        classical_schedule(name, none, 1.0, 1)
    islands = Topology.from_arrays(
        "islands", list("abcd"), [False] * 4, [0, 1, 2, 3], [1, 0, 3, 2], [1.0] * 4, [0.0] * 4
    )
    with pytest.raises(InputError, match="islands: no path from"):
        classical_schedule(name, islands, 1.0, 1)
