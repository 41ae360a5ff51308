"""Retiming: closed forms, what must come back unchanged, and right schedules whatever is in the way."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsched.collective.decode.paths import candidate_paths
from gnnsched.collective.flows import NO_FLOWS, Flows, on_links
from gnnsched.collective.retiming import retime
from gnnsched.collective.schedule import Schedule
from gnnsched.collective.simulator import simulate
from gnnsched.collective.verify import verify
from gnnsched.envs.flows import draw_flows
from gnnsched.planning import schedule_with
from gnnsched.topology import InputError
from gnnsched.topology.generators import bcube, dgx, hub, jellyfish, random_heterogeneous, star

MESSAGE = 2.0**26
MODES = [(keep, cap) for keep in (True, False) for cap in (True, False)]


def planned(name: str, seed: int = 0) -> Schedule:
    network = {"bcube": bcube(3, 1), "dgx": dgx(2, 3), "jellyfish": jellyfish(6, 3, 2, 1)}[name]
    return schedule_with("greedy_augmented", network, MESSAGE, 2, 2, seed).schedule


@pytest.mark.parametrize("name", ["bcube", "dgx", "jellyfish"])
def test_kept_and_capped_an_undisturbed_plan_keeps_its_times(name: str) -> None:
    schedule = planned(name)
    timed = retime(schedule, True, True)
    assert timed.makespan <= schedule.makespan * (1 + 1e-9)
    np.testing.assert_allclose(timed.makespan, schedule.makespan, rtol=1e-3)
    assert verify(timed).ok


def sent_by_one(flows: Flows, ready: float = 0.0) -> Schedule:
    """Two servers on a cable, 1 byte/s: one chunk rooted at the second, a second each way."""
    network = hub(1, 1.0, latency=0.0)
    schedule = schedule_with("greedy", network, 1.0, 1, 1, root=int(network.servers[1])).schedule
    late = np.zeros(network.num_nodes)
    late[network.servers[0]] = ready
    return retime(replace(schedule, flows=flows, ready=late), True, False)


def out_link() -> np.ndarray:
    network = hub(1, 1.0, latency=0.0)
    return np.flatnonzero(network.link_source == network.servers[0])


@pytest.mark.parametrize(
    ("rate", "since", "until", "ready", "end"),
    [
        (1.0, 0.0, 0.5, 0.0, 2.5),  # waits until the flow is through
        (0.5, 0.0, 10.0, 0.0, 3.0),  # shares the link rather than wait: 2 s at half the rate
        (0.5, 0.0, 0.75, 0.0, 2.75),  # waiting for the whole link is better than half of it
        (1.0, 0.5, 1.0, 0.0, 3.0),  # no second fits in before the flow
        (1.0, 5.0, 6.0, 0.0, 2.0),  # nor is there need to wait for one that comes after
        (1.0, 0.0, 0.5, 2.0, 4.0),  # the first server is ready late
    ],
)
def test_one_cable_by_hand(rate: float, since: float, until: float, ready: float, end: float) -> None:
    link = out_link()
    flows = on_links(link, np.array([rate]), np.array([since]), np.array([until]))
    timed = sent_by_one(flows, ready)
    assert timed.makespan == pytest.approx(end)
    assert verify(timed).ok
    assert simulate(timed).makespan == pytest.approx(end)


def test_a_flow_for_ever_leaves_its_share_or_nothing() -> None:
    link = out_link()
    half, all_of_it = (
        on_links(link, np.array([rate]), np.zeros(1), np.array([np.inf])) for rate in (0.5, 1.0)
    )
    assert sent_by_one(half).makespan == pytest.approx(3.0)
    with pytest.raises(InputError, match="for ever"):
        sent_by_one(all_of_it)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(MODES), st.booleans())
def test_right_whatever_is_in_the_way(seed: int, mode: tuple[bool, bool], late: bool) -> None:
    rng = np.random.default_rng(seed)
    network = random_heterogeneous(rng, max_servers=7)
    name = ("greedy_augmented", "ring", "trees_augmented")[seed % 3]
    schedule = schedule_with(name, network, MESSAGE, 2, 1, seed % 7).schedule
    flows = draw_flows(network, candidate_paths(network), 6, schedule.makespan, rng)
    ready = None
    if late:
        ready = np.where(network.is_switch, 0.0, rng.uniform(0, schedule.makespan, network.num_nodes))
    timed = retime(replace(schedule, flows=flows, ready=ready), *mode)
    verdict = verify(timed)
    assert verdict.ok, verdict.fault
    assert len(timed.transfers) == len(schedule.transfers)
    # The simulator, which knows the flows as well, finds the same times.
    result = simulate(timed)
    assert result.truncated is None
    np.testing.assert_allclose(result.start, timed.transfers.start, atol=1e-6 * timed.makespan)


def test_a_schedule_that_forgets_the_flows_is_wrong() -> None:
    """And so is one that takes a contribution before it is there; both are right as they were planned."""
    network = star([1e9] * 3)
    schedule = schedule_with("greedy_augmented", network, MESSAGE, 1, 1).schedule
    link = int(schedule.transfers.path_links[0])
    flows = on_links(np.array([link]), np.array([0.5e9]), np.zeros(1), np.array([1.0]))
    assert verify(schedule).ok
    fault = verify(replace(schedule, flows=flows)).fault
    assert fault is not None
    assert "in-flight flow 0" in fault
    late = np.zeros(network.num_nodes)
    late[schedule.transfers.source[0]] = 1e-3
    fault = verify(replace(schedule, ready=late)).fault
    assert fault is not None
    assert "holds no contribution" in fault


@pytest.mark.parametrize(
    ("flows", "word"),
    [
        (NO_FLOWS._replace(rate=np.ones(1)), "unequal length"),
        (on_links(np.array([99]), np.ones(1), np.zeros(1), np.ones(1)), "no link 99"),
        (on_links(np.array([0]), np.ones(1), np.ones(1), np.ones(1)), "no positive numbers"),
        (on_links(np.array([0]), np.array([np.nan]), np.zeros(1), np.ones(1)), "no positive numbers"),
        (NO_FLOWS._replace(links=np.zeros(1, np.int32)), "not divided"),
    ],
)
def test_verdict_on_flows_that_say_nothing(flows: Flows, word: str) -> None:
    schedule = schedule_with("greedy", star([1e9] * 2), MESSAGE, 1, 1).schedule
    fault = verify(replace(schedule, flows=flows)).fault
    assert fault is not None
    assert word in fault


@pytest.mark.parametrize("ready", [np.zeros(2), np.full(3, np.nan), np.array([0.0, -1.0, 0.0])])
def test_verdict_on_ready_times_that_say_nothing(ready: np.ndarray) -> None:
    schedule = schedule_with("greedy", star([1e9] * 2), MESSAGE, 1, 1).schedule
    fault = verify(replace(schedule, ready=ready)).fault
    assert fault is not None
    assert "ready time" in fault
