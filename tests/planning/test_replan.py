"""Replanning: every result is one right AllReduce that keeps its past and leaves alone what failed, or is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsched.collective.schedule import REDUCE, Schedule
from gnnsched.collective.simulator import simulate
from gnnsched.collective.verify import verify
from gnnsched.models.policy import Policy
from gnnsched.planning import schedule_with
from gnnsched.planning.live import LivePlan
from gnnsched.planning.replan import Failure, links_between, replan
from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators import bcube, dgx, hub, jellyfish, random_heterogeneous, star, torus

MESSAGE = 2.0**26
POLICY = Policy().eval()
NETWORKS = [bcube(3, 1), torus(3, 3), jellyfish(6, 3, 2, 1), dgx(2, 3), star([1e9] * 4), hub(3)]


def planned(network: Topology, seed: int = 0, chunks: int = 2) -> Schedule:
    return schedule_with("greedy_augmented", network, MESSAGE, chunks, 1, seed).schedule


def check(before: Schedule, after: Schedule, failure: Failure, dead: np.ndarray) -> None:
    """Right as a whole; the past is the past; what failed is used no more."""
    verdict = verify(after)
    assert verdict.ok, verdict.fault
    result = simulate(after)
    assert result.truncated is None
    assert result.makespan == pytest.approx(after.makespan, rel=1e-6)
    t, old = after.transfers, before.transfers
    begun = old.start < failure.moment
    past = t.start < failure.moment
    assert past.sum() == begun.sum()
    np.testing.assert_array_equal(np.sort(t.start[past]), np.sort(old.start[begun]))
    owner = np.repeat(np.arange(len(t)), np.diff(t.path_start))
    passed = np.concatenate(([0.0], np.cumsum(after.topology.latency[t.path_links])))
    begin = t.start[owner] + passed[:-1] - passed[t.path_start[:-1]][owner]
    end = begin + after.chunk_bytes / t.rate[owner]
    end = np.where(t.lost[owner], np.minimum(end, t.end[owner]), end)
    on_dead = dead[t.path_links] & (end > failure.moment * (1 + 1e-9)) & (end > begin)
    assert not on_dead.any()
    # whatever was cut ends at the failure
    assert (t.end[t.lost] <= failure.moment * (1 + 1e-9)).all() or before.transfers.lost.any()


def dead_links(network: Topology, failure: Failure) -> np.ndarray:
    dead = np.zeros(network.num_links, bool)
    dead[list(failure.links)] = True
    for server in failure.servers:
        dead |= (network.link_source == server) | (network.link_target == server)
    return dead


def cut_apart(network: Topology, failure: Failure) -> bool:
    """Whether some participant that is left cannot reach another one, by plain search."""
    dead = dead_links(network, failure)
    members = [int(v) for v in network.participants if int(v) not in failure.servers]
    for first in members:
        seen, edge = {first}, [first]
        while edge:
            node = edge.pop()
            for link in np.flatnonzero((network.link_source == node) & ~dead):
                if int(network.link_target[link]) not in seen:
                    seen.add(int(network.link_target[link]))
                    edge.append(int(network.link_target[link]))
        if not set(members) <= seen:
            return True
    return False


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6))
def test_random_failures(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = NETWORKS[seed % len(NETWORKS)]
    if seed % 7 == 0:
        network = random_heterogeneous(rng, max_servers=7)
    before = planned(network, seed % 3, int(rng.integers(1, 4)))
    moment = float(rng.uniform(0.0, 1.1)) * before.makespan
    links: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()
    if rng.random() < 0.6:
        for _ in range(int(rng.integers(1, 3))):
            link = int(rng.integers(network.num_links))
            ends = int(network.link_source[link]), int(network.link_target[link])
            links += links_between(network, *ends, bool(rng.random() < 0.3))
    else:
        servers = (int(rng.choice(network.servers)),)
    failure = Failure(moment, links, servers, bool(rng.random() < 0.7))
    name = ("greedy_augmented", "policy", "trees_augmented")[seed % 3]
    after = attempt(before, failure, name)
    dead = dead_links(network, failure)
    if isinstance(after, str) and "--exclude-lost" in after:
        assert servers
        assert not failure.exclude_lost
        # with leave to exclude it, it goes on or the network is cut
        after = attempt(before, replace(failure, exclude_lost=True), name)
    if isinstance(after, str):
        assert "cuts" in after
        assert "\n" not in after
        assert cut_apart(network, failure)
    else:
        check(before, after, failure, dead)


def attempt(before: Schedule, failure: Failure, name: str) -> Schedule | str:
    """The result, or why there is none."""
    try:
        return replan(before, failure, name, POLICY)
    except InputError as error:
        return str(error)


def cable_of(network: Topology, server: int) -> tuple[int, int]:
    """The ends of a server's first link."""
    node = int(network.servers[server])
    return node, int(network.link_target[network.link_source == node][0])


def test_nothing_fails_and_nothing_is_left_to_do() -> None:
    before = planned(bcube(3, 1))
    late = replan(
        before,
        Failure(2 * before.makespan, links_between(before.topology, 0, int(before.topology.link_target[0]))),
    )
    np.testing.assert_array_equal(late.transfers.start, before.transfers.start)
    assert late.transfers.aborted is None
    same = replan(before, Failure(0.3 * before.makespan))
    assert verify(same).ok
    assert same.transfers.aborted is None
    assert same.makespan <= 1.3 * before.makespan


def two() -> Schedule:
    """Two servers on a cable, 1 byte/s, one chunk of 1 byte rooted at the second: 0-1 s to it, 1-2 s back."""
    network = hub(1, 1.0, latency=0.0)
    return schedule_with("greedy", network, 1.0, 1, 1, root=int(network.servers[1])).schedule


def test_by_hand() -> None:
    before = two()
    first, second = (int(node) for node in before.topology.servers)
    with pytest.raises(InputError, match="cuts"):
        replan(before, Failure(0.5, links_between(before.topology, first, second)))
    # the way there fails after it has been used: the way back goes on
    there = links_between(before.topology, first, second, one_way=True)
    after = replan(before, Failure(1.5, there))
    assert after.makespan == pytest.approx(2.0)
    # the second server dies with the sum: the first still has its own and is alone
    with pytest.raises(InputError, match="1 of 1 chunks"):
        replan(before, Failure(1.5, servers=(second,)))
    alone = replan(before, Failure(1.5, servers=(second,), exclude_lost=True))
    assert verify(alone).ok
    assert alone.lost == (second,)
    assert alone.transfers.lost.all()


def test_three_servers_and_one_that_dies_with_a_partial_sum() -> None:
    """What others had sent to it they send again; its own is missing unless it was passed on."""
    network = star([1.0] * 3, latency=0.0)
    before = schedule_with("ring", network, 3.0, 1).schedule
    t = before.transfers
    victim = int(network.servers[1])
    moment = float(t.end[(t.phase == REDUCE)].min()) * 1.01
    with pytest.raises(InputError, match="--exclude-lost"):
        replan(before, Failure(moment, servers=(victim,)))
    after = replan(before, Failure(moment, servers=(victim,), exclude_lost=True))
    assert verify(after).ok
    got = (after.transfers.target == victim) & (after.transfers.start < moment)
    assert after.transfers.lost[got].any()
    # the verdict depends on who may be missing
    assert not verify(replace(after, lost=())).ok


def test_an_aborted_transfer_delivers_nothing() -> None:
    """Marked as aborted, a transfer that mattered is missed; unmarked, one that was cut short is too short."""
    before = planned(bcube(3, 1))
    aborted = np.zeros(len(before.transfers), bool)
    aborted[0] = True
    assert not verify(replace(before, transfers=replace(before.transfers, aborted=aborted))).ok
    link = int(before.transfers.path_links[0])
    ends = int(before.topology.link_source[link]), int(before.topology.link_target[link])
    after = replan(
        before, Failure(0.5 * float(before.transfers.end[0]), links_between(before.topology, *ends))
    )
    assert after.transfers.lost.any()
    assert verify(after).ok
    fault = verify(replace(after, transfers=replace(after.transfers, aborted=None))).fault
    assert fault is not None
    assert "its end is not" in fault
    longer = np.where(after.transfers.lost, after.transfers.end + before.makespan, after.transfers.end)
    assert not verify(replace(after, transfers=replace(after.transfers, end=longer))).ok


@pytest.mark.parametrize("moment", [-1.0, np.nan, np.inf])
def test_moments_that_are_none(moment: float) -> None:
    with pytest.raises(InputError, match="moment"):
        replan(two(), Failure(moment))


def test_links_that_are_not_there() -> None:
    network = star([1e9] * 3)
    with pytest.raises(InputError, match="no link"):
        links_between(network, int(network.servers[0]), int(network.servers[1]))


# The live plan


def test_a_live_plan_takes_event_after_event() -> None:
    network = bcube(3, 1)
    before = planned(network, chunks=4)
    live = LivePlan(before)
    server, switch = (
        int(network.servers[0]),
        int(network.link_target[network.link_source == network.servers[0]][0]),
    )
    third = before.makespan / 4
    live.link_down(third, server, switch)
    down = live.schedule
    assert verify(down).ok
    live.bandwidth_changed(
        1.5 * third,
        int(network.servers[4]),
        int(network.link_target[network.link_source == network.servers[4]][0]),
        1e9,
    )
    assert verify(live.schedule).ok
    live.link_up(2 * third, server, switch)
    assert verify(live.schedule).ok
    used = live.schedule.transfers
    owner = np.repeat(np.arange(len(used)), np.diff(used.path_start))
    cable = np.isin(used.path_links, links_between(network, server, switch))
    starts = used.start[owner[cable]]
    assert not ((starts > third) & (starts < 2 * third)).any()
    assert (starts >= 2 * third).any()
    with pytest.raises(InputError, match="in order"):
        live.link_down(third, server, switch)
    kept = live.schedule
    with pytest.raises(InputError, match="bandwidth"):
        live.bandwidth_changed(3 * third, server, switch, 1e15)
    with pytest.raises(InputError, match="is a switch"):
        live.server_lost(3 * third, switch)
    assert live.schedule is kept
    patient = LivePlan(before, exclude_lost=True)
    patient.server_lost(third, server)
    assert verify(patient.schedule).ok
    assert patient.schedule.lost == (server,)
    patient.server_lost(2 * third, int(network.servers[5]))
    assert verify(patient.schedule).ok


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_failure_after_failure(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = NETWORKS[seed % 3]
    live = LivePlan(planned(network), "greedy_augmented", exclude_lost=True)
    moment = 0.0
    for _ in range(4):
        moment += float(rng.uniform(0.0, 0.3)) * live.schedule.makespan
        link = int(rng.integers(network.num_links))
        ends = int(network.link_source[link]), int(network.link_target[link])
        before = live.schedule
        kind = int(rng.integers(4))
        try:
            if kind == 0:
                live.server_lost(moment, int(rng.choice(network.servers)))
            elif kind == 1:
                live.link_up(moment, *ends)
            elif kind == 2:
                live.bandwidth_changed(moment, *ends, float(network.bandwidth[link] * rng.uniform(0.2, 1.0)))
            else:
                live.link_down(moment, *ends)
        except InputError:
            assert live.schedule is before
            continue
        verdict = verify(live.schedule)
        assert verdict.ok, verdict.fault
