"""The simulator: planned times for right schedules, the definition for disturbed ones, closed forms."""

import numpy as np
import pytest
from hand_schedules import direct_ring, from_rows, network, random_network, star, to_rows, tree_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_replay import replay

from gnnsched.collective.bounds import bounds
from gnnsched.collective.fair_sharing import simulate_fair
from gnnsched.collective.schedule import BROADCAST, REDUCE, Schedule
from gnnsched.collective.simulator import simulate
from gnnsched.topology import InputError, Topology


def disturbed(topology: Topology, bandwidth: np.ndarray, latency: np.ndarray) -> Topology:
    return Topology.from_arrays(
        "disturbed",
        topology.node_ids,
        topology.is_switch,
        topology.link_source,
        topology.link_target,
        bandwidth,
        latency,
        topology.is_participant,
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_a_right_schedule_simulates_to_its_planned_times(seed: int, per_server: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = tree_schedule(random_network(rng), rng, per_server)
    result = simulate(schedule)
    assert result.truncated is None
    scale = 1e-11 * max(schedule.makespan, 1.0)
    assert result.start == pytest.approx(schedule.transfers.start, abs=scale)
    assert result.end == pytest.approx(schedule.transfers.end, abs=scale)
    assert result.makespan == pytest.approx(schedule.makespan, rel=1e-11)
    if len(schedule.topology.participants) > 1:
        # No time is lost: each link's busy time is in the makespan, and no schedule beats the LP.
        assert (result.link_busy_s <= result.makespan * (1 + 1e-9)).all()
        assert result.makespan >= bounds(schedule.topology, schedule.message_bytes).lp_bound_s * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_disturbed_replays_follow_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = tree_schedule(random_network(rng), rng, 1)
    topology = schedule.topology
    factor = rng.choice([1.0, 1.0, 0.5, 0.3, 2.0], topology.num_links)
    other = disturbed(topology, topology.bandwidth * factor, topology.latency)
    result = simulate(schedule, other)
    assert result.truncated is None
    assert result.start == pytest.approx(
        np.array(replay(schedule, other)), abs=1e-9 * result.makespan + 1e-11
    )
    assert result.makespan >= schedule.makespan or (factor > 1).any()


def test_half_a_link_costs_what_it_must() -> None:
    # A ring of three, the one way round, link 0 -> 1 at half speed: every step waits for it.
    rows = []
    for chunk in range(3):
        for step in range(4):
            s = (chunk + 1 + step) % 3
            phase = REDUCE if step < 2 else BROADCAST
            rows.append((phase, chunk, s, (s + 1) % 3, [2 * s], 1.0, float(step), step + 1.0))
    ring = direct_ring(3)
    schedule = from_rows(ring, 3.0, [0, 1, 2], rows)
    assert simulate(schedule).makespan == 4.0
    slow = ring.bandwidth.copy()
    slow[0] = 0.5
    result = simulate(schedule, disturbed(ring, slow, ring.latency))
    # Link 0 carries 4 chunks of 2 s each, from time 0 on; the last one ends the schedule.
    assert result.makespan == 8.0
    assert result.bottleneck == 0
    assert result.link_busy_s.tolist() == [8.0, 0.0, 4.0, 0.0, 4.0, 0.0]


def test_nobody_overtakes_in_a_links_order() -> None:
    # Two transfers planned over one link, the first one late because its data is late.
    line = network(3, 0, [(0, 1, 1.0), (1, 2, 1.0)])
    rows = [
        (REDUCE, 0, 2, 1, [3], 1.0, 0.0, 1.0),
        (REDUCE, 0, 1, 0, [1], 1.0, 1.0, 2.0),
        (REDUCE, 1, 1, 0, [1], 1.0, 2.0, 3.0),
    ]
    schedule = from_rows(line, 2.0, [0, 0], rows)
    slow = line.bandwidth.copy()
    slow[3] = 0.25
    assert simulate(schedule, disturbed(line, slow, line.latency)).start.tolist() == [0.0, 4.0, 5.0]


def test_what_is_left_of_a_link_is_used() -> None:
    # Rate 1 and rate 0.5 side by side on a link of 2; a third of rate 1 must wait for the first to end.
    net = network(4, 1, [(0, 4, 2.0), (1, 4, 1.0), (2, 4, 0.5), (3, 4, 1.0)])
    rows = [
        (REDUCE, 0, 1, 0, [2, 1], 1.0, 0.0, 2.0),
        (REDUCE, 0, 2, 0, [4, 1], 0.5, 0.0, 4.0),
        (REDUCE, 0, 3, 0, [6, 1], 1.0, 0.0, 2.0),
    ]
    assert simulate(from_rows(net, 2.0, [0], rows)).start.tolist() == [0.0, 0.0, 2.0]


def latency_knot() -> Schedule:
    """Transfer 0 is first on the link that it enters and second on one that it reaches 10 s later.

    Links: 0: s0->w0, 2: w0->w1 (10 s), 4: w1->s1, 6: s2->w0, 8: s3->w1. Transfer 0: s0 to s1; transfer 1: s3
    to s1, planned 2 s before transfer 0 gets to link 4.
    """
    cables = [(0, 4, 1.0), (4, 5, 1.0, 10.0), (5, 1, 1.0), (2, 4, 1.0), (3, 5, 1.0)]
    rows = [(REDUCE, 0, 0, 1, [0, 2, 4], 1.0, 0.0, 11.0), (REDUCE, 1, 3, 1, [8, 4], 1.0, 8.0, 9.0)]
    return from_rows(network(4, 2, cables), 2.0, [1, 1], rows)


def test_a_links_order_may_look_ahead_in_time() -> None:
    schedule = latency_knot()
    assert simulate(schedule).start.tolist() == [0.0, 8.0]
    slow = schedule.topology.bandwidth.copy()
    slow[8] = 0.2
    # Transfer 1 now holds link 4 from 8 to 13 s: transfer 0 may enter it 3 s later, so it starts at 3 s.
    result = simulate(schedule, disturbed(schedule.topology, slow, schedule.topology.latency))
    assert result.start.tolist() == [3.0, 8.0]
    assert result.truncated is None


def test_an_order_that_cannot_be_kept_truncates_with_a_reason() -> None:
    # Transfer 1 is behind 0 on link 0 and, because its way to link 4 is quick, before it there.
    cables = [(0, 4, 1.0), (4, 5, 1.0, 10.0), (5, 1, 1.0), (4, 5, 1.0)]
    rows = [(REDUCE, 0, 0, 1, [0, 2, 4], 1.0, 0.0, 11.0), (REDUCE, 1, 0, 1, [0, 6, 4], 1.0, 1.0, 2.0)]
    schedule = from_rows(network(4, 2, cables), 2.0, [1, 1], rows)
    assert simulate(schedule).start.tolist() == [0.0, 1.0]
    quick = disturbed(schedule.topology, schedule.topology.bandwidth, schedule.topology.latency * 0.05)
    result = simulate(schedule, quick)
    assert "wait for each other" in result.truncated


def test_renamed_nodes_take_the_same_time() -> None:
    rng = np.random.default_rng(4)
    schedule = tree_schedule(star([1.0, 2.0, 2.0, 5.0], 0.3), rng, 2)
    base = schedule.topology
    renamed = Topology.from_arrays(
        "renamed",
        ["gpu-10", "gpu-2", 7, (1, 2), "w"],
        base.is_switch,
        base.link_source,
        base.link_target,
        base.bandwidth,
        base.latency,
    )
    other = from_rows(renamed, schedule.message_bytes, schedule.roots.tolist(), to_rows(schedule))
    assert simulate(other).makespan == simulate(schedule).makespan


def test_no_transfers_take_no_time() -> None:
    empty = from_rows(network(2, 0, [(0, 1, 1.0)], relays=[1]), 8.0, [0], [])
    for result in (simulate(empty), simulate_fair(empty)):
        assert (result.makespan, result.bottleneck, result.truncated) == (0.0, None, None)
        assert result.link_busy_s.tolist() == [0.0, 0.0]


def test_another_network_and_impossible_rates_are_refused() -> None:
    schedule = latency_knot()
    with pytest.raises(InputError, match="other links"):
        simulate(schedule, direct_ring(6))
    rows = to_rows(schedule)
    rows[1] = (*rows[1][:5], 0.0, *rows[1][6:])
    with pytest.raises(InputError, match="transfer 1"):
        simulate(from_rows(schedule.topology, 2.0, [1, 1], rows))


@pytest.mark.parametrize("n", [2, 3, 5])
def test_fair_sharing_on_a_star(n: int) -> None:
    """Everyone pushes to one root, which sends back to all: n - 1 share its NIC, twice, with latency."""
    net = star([1.0] * n, 0.25)
    rows = [(REDUCE, 0, i, 0, [2 * i, 1], 1.0, 2.0 * i, 2.0 * i + 2.5) for i in range(1, n)]
    late = 2.0 * n + 2.5
    rows += [(BROADCAST, 0, 0, i, [0, 2 * i + 1], 1.0, late + 2 * i, late + 2 * i + 2.5) for i in range(1, n)]
    result = simulate_fair(from_rows(net, 2.0, [0], rows))
    assert result.start[: n - 1] == pytest.approx(0.0)
    assert result.end[: n - 1] == pytest.approx(2.0 * (n - 1) + 0.5)
    assert result.makespan == pytest.approx(2 * (2.0 * (n - 1) + 0.5))
    assert result.bottleneck in (0, 1)


def test_fair_sharing_fills_what_others_leave() -> None:
    # s1 and s2 share link 1 of bandwidth 2; s1 is held to 0.5 by its own link, so s2 gets 1.5.
    net = network(3, 1, [(0, 3, 2.0), (1, 3, 0.5), (2, 3, 5.0)])
    rows = [(REDUCE, 0, 1, 0, [2, 1], 0.5, 0.0, 6.0), (REDUCE, 0, 2, 0, [4, 1], 2.0, 6.0, 7.5)]
    result = simulate_fair(from_rows(net, 3.0, [0], rows))
    assert result.start.tolist() == [0.0, 0.0]
    assert result.end == pytest.approx(np.array([6.0, 2.0]))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_fair_sharing_respects_data_and_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = tree_schedule(random_network(rng), rng, 2)
    result = simulate_fair(schedule)
    t = schedule.transfers
    size = schedule.chunk_bytes
    for i in range(len(t)):
        path = t.path_links[t.path_start[i] : t.path_start[i + 1]]
        shortest = schedule.topology.latency[path].sum() + size / schedule.topology.bandwidth[path].min()
        assert result.end[i] - result.start[i] >= shortest * (1 - 1e-9)
        came = (
            (t.chunk == t.chunk[i])
            & (t.target == t.source[i])
            & (t.phase == t.phase[i])
            & (t.end <= t.start[i])
        )
        assert (result.end[came] <= result.start[i] * (1 + 1e-9)).all()
    if len(schedule.topology.participants) > 1:
        assert result.makespan >= bounds(schedule.topology, schedule.message_bytes).lp_bound_s * (1 - 1e-9)
