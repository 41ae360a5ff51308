"""The front door: the best verified schedule, the ladder of chunk counts, and the clock."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import one_way_ring, relays_between, small_networks, switched, untrained_policy

from gnnsched.collective.decode.shapes import FARTHEST, Shape
from gnnsched.collective.simulator import simulate
from gnnsched.collective.verify import Verdict, verify
from gnnsched.planning import SCHEDULERS, Plan, front_door, plan, schedule_with, search, warm_up
from gnnsched.planning.search import (
    CENTRE_CHUNKS,
    LADDER,
    MOST_SHAPED,
    NEAR_BOUND,
    PLANNERS,
    RULE_SAMPLES,
    RULES,
    SHAPE_CHUNKS,
)
from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators import bcube, dgx, dumbbell, hub, random_heterogeneous

MESSAGE = 2.0**26
NO_LIMIT = 1e9
POLICY = untrained_policy()


def planned(network: Topology, chunks_per_server: int | None = None, **changes: object) -> Plan:
    arguments: dict = {"policy": POLICY, "samples": 2, "time_limit": NO_LIMIT} | changes
    return plan(network, arguments.pop("message_bytes", MESSAGE), chunks_per_server, **arguments)


def assert_consistent(made: Plan) -> None:
    """A right schedule, and a record of the search that fits it."""
    assert verify(made.schedule).ok
    assert made.verified
    assert simulate(made.schedule).makespan == pytest.approx(made.makespan_s, rel=1e-9)
    assert made.makespan_s == min(rung.makespan_s for rung in made.rungs)
    winner = next(rung for rung in made.rungs if rung.makespan_s == made.makespan_s)
    assert (winner.scheduler, winner.chunks_per_server) == (made.scheduler, made.chunks_per_server)
    assert winner.root == made.root
    assert made.schedule.planner["name"] == made.scheduler
    roots = len(made.schedule.topology.participants) if made.root is None else 1
    assert made.schedule.num_chunks == made.chunks_per_server * roots
    assert made.root is None or (made.schedule.roots == made.root).all()
    assert made.ratio is not None
    assert made.ratio == made.makespan_s / made.bounds.bound_s
    assert made.root is not None or made.ratio >= 1.0 - 1e-9


# Which schedule


@pytest.mark.parametrize("network", small_networks().values(), ids=lambda network: network.name)
def test_auto_is_the_best_of_its_planners(network: Topology) -> None:
    """At the same chunks and samples, unless one was near the bound and the others were not asked."""
    made = planned(network, 2, samples=RULE_SAMPLES, seed=3)
    assert_consistent(made)
    assert made.finished
    assert made.scheduler in PLANNERS
    for name in PLANNERS:
        alone = planned(network, 2, samples=RULE_SAMPLES, seed=3, scheduler=name)
        assert made.makespan_s <= max(alone.makespan_s, NEAR_BOUND * made.bounds.bound_s)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_named_scheduler_plans_alone(name: str) -> None:
    for network in (dgx(2, 2), one_way_ring(), relays_between()):
        made = planned(network, 1, scheduler=name, seed=2)
        assert_consistent(made)
        assert [rung.scheduler for rung in made.rungs] == [name]
        assert made.makespan_s == schedule_with(name, network, MESSAGE, 1, 2, 2, POLICY).schedule.makespan


@given(st.integers(0, 2**32 - 1), st.sampled_from([None, 1, 3]), st.sampled_from([1e3, 2.0**20, 2.0**30]))
@settings(max_examples=20)
def test_random_networks(seed: int, chunks_per_server: int | None, message_bytes: float) -> None:
    network = random_heterogeneous(seed, 3, 6)
    made = planned(
        network, chunks_per_server, samples=1, seed=seed % 7, message_bytes=message_bytes, time_limit=0.2
    )
    assert_consistent(made)
    if made.bounds.lp_bound_s is not None:
        assert made.makespan_s >= made.bounds.lp_bound_s * (1 - 1e-6)


def test_one_server() -> None:
    """No transfers, no time, no ratio."""
    for name in ("auto", *SCHEDULERS):
        made = planned(switched(1, "10Gbps"), scheduler=name)
        assert len(made.schedule.transfers) == 0
        assert made.makespan_s == 0.0
        assert made.ratio is None
        assert made.finished
        assert len(made.rungs) == 1
        assert verify(made.schedule).ok


@pytest.mark.parametrize("servers", [2, 3, 5, 6, 7, 10])
def test_equal_servers_on_a_switch_reach_the_bound(servers: int) -> None:
    made = planned(switched(servers, "10Gbps"))
    assert_consistent(made)
    assert made.ratio is not None
    assert made.ratio <= NEAR_BOUND
    # 2 (N-1)/N messages through a network card
    assert made.bounds.bound_s == pytest.approx(2 * (servers - 1) / servers * MESSAGE / 1.25e9)


def test_units_and_scale_of_the_bandwidth() -> None:
    times = [planned(switched(5, b), 2).makespan_s for b in ("400Gbps", "50GB/s", "100GB/s")]
    assert times[0] == times[1]
    assert times[2] == pytest.approx(times[0] / 2, rel=1e-12)


# The ladder


@pytest.mark.parametrize("network", [bcube(3, 1), hub(3), dumbbell(3)], ids=lambda network: network.name)
def test_ladder_stops_near_the_bound(network: Topology) -> None:
    """Known shapes, then each planner on each rung in turn; near enough is the end. Then the policy goes on."""
    made = planned(network)
    assert_consistent(made)
    assert made.finished
    shaped = [rung for rung in made.rungs if rung.shape is not None]
    assert made.rungs[: len(shaped)] == tuple(shaped)
    tried = {(rung.shape, rung.chunks_per_server): rung.makespan_s for rung in shaped}
    assert len(tried) == len(shaped)
    best = np.inf
    for name in MOST_SHAPED:
        for count in SHAPE_CHUNKS:
            # Left out: what could not have been better.
            chunk_bytes = MESSAGE / (len(network.participants) * count)
            hopeless = 2 * Shape(name, network, count).least_seconds(chunk_bytes) >= best
            assert ((name, count) in tried) != hopeless
            best = min(best, tried.get((name, count), np.inf))
    if any(rung.makespan_s <= NEAR_BOUND * made.bounds.bound_s for rung in shaped):
        assert len(made.rungs) == len(shaped)
        return
    asked = [(count, name) for count in LADDER for name in PLANNERS]
    done = [(rung.chunks_per_server, rung.scheduler) for rung in made.rungs[len(shaped) :]]
    turn = next(
        (i for i, (one, other) in enumerate(zip(done, asked)) if one != other), min(len(done), len(asked))
    )
    assert all(name == "policy" for _, name in done[turn:])
    near = [rung.makespan_s <= NEAR_BOUND * made.bounds.bound_s for rung in made.rungs[len(shaped) :]]
    assert not any(near[:-1])
    assert near[-1] or turn < len(done)


def test_small_messages_may_be_rooted_at_the_centre() -> None:
    """The hub of a star of servers is one hop from everybody; its leaves are two hops apart."""
    network = hub(5)
    made = planned(network, message_bytes=64.0)
    assert_consistent(made)
    assert made.root is not None
    assert network.node_ids[made.root] == "hub"
    # there and back again, each one hop
    assert made.makespan_s == pytest.approx(2 * network.latency[0], rel=0.05)
    tried = [(rung.chunks_per_server, rung.scheduler) for rung in made.rungs if rung.root is not None]
    assert tried == [(count, name) for count in CENTRE_CHUNKS for name in (*RULES, "trees_augmented")]
    centred = [rung.shape for rung in made.rungs if rung.root is not None]
    assert centred == [None, None, FARTHEST] * len(CENTRE_CHUNKS)
    assert all(rung.root is None for rung in planned(network, message_bytes=2.0**32).rungs)


def test_ladder_ends_where_more_chunks_only_add_latency() -> None:
    made = planned(dumbbell(3), message_bytes=64.0)
    assert made.finished
    ladder = {rung.chunks_per_server for rung in made.rungs if rung.root is None}
    assert max(ladder) < LADDER[-1]


@pytest.mark.parametrize(("message_bytes", "first"), [(64.0, "policy"), (2.0**30, RULES[0])])
def test_the_policy_comes_first_where_latency_counts(message_bytes: float, first: str) -> None:
    """On large networks there may be no time for what comes after."""
    made = planned(dgx(2, 3), message_bytes=message_bytes)
    assert next(rung.scheduler for rung in made.rungs if rung.root is None and rung.shape is None) == first


def test_ladder_of_one_scheduler() -> None:
    made = planned(dumbbell(2), scheduler="parameter_server")
    assert [rung.chunks_per_server for rung in made.rungs] == list(LADDER)
    assert {rung.scheduler for rung in made.rungs} == {"parameter_server"}
    assert made.finished


def test_ladder_never_loses_to_a_fixed_count() -> None:
    """It ends near the bound or has tried every count with the same samples."""
    network = dumbbell(2)
    made = planned(network, samples=1)
    for count in (1, 4, 16):
        fixed = planned(network, count, samples=1)
        assert made.makespan_s <= max(fixed.makespan_s, NEAR_BOUND * made.bounds.bound_s)


def test_rungs_of_too_many_transfers_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """But the first rung is always there, and so is a count that was asked for."""
    monkeypatch.setattr(search, "MOST_TRANSFERS", 2 * 6 * 6 * 4)
    made = planned(dumbbell(3), scheduler="random")
    assert [rung.chunks_per_server for rung in made.rungs] == [1, 2, 4]
    monkeypatch.setattr(search, "MOST_TRANSFERS", 1)
    assert [rung.chunks_per_server for rung in planned(dumbbell(3), scheduler="random").rungs] == [1]
    assert [rung.chunks_per_server for rung in planned(dumbbell(3), 2, scheduler="random").rungs] == [2]


# The clock


def test_time_limit_cuts_the_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of a second a look: a verified plan in any case, and it says that it was cut short."""
    looks = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: float(next(looks)))
    short = planned(dumbbell(3), samples=4, time_limit=0.5)
    assert_consistent(short)
    assert not short.finished
    assert len(short.rungs) == 1
    longer = planned(dumbbell(3), samples=4, time_limit=60.0)
    assert_consistent(longer)
    assert 1 < len(longer.rungs) < len(LADDER) * len(PLANNERS)
    assert not longer.finished
    assert longer.makespan_s <= short.makespan_s


def test_a_slow_planner_is_passed_over_while_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rung takes twice as long as the one before: what cannot end in time is not begun.

    The slow one has time for a second turn at its first rung when the ladder has ended.
    """
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    original = search.schedule_with

    def timed(name: str, *arguments: object) -> object:
        now[0] += 4.0 if name == "policy" else 0.1
        return original(name, *arguments)

    monkeypatch.setattr(search, "schedule_with", timed)
    monkeypatch.setattr(front_door, "warm_up", lambda: None)
    monkeypatch.setattr(search, "LADDER", (1, 2, 4))
    made = planned(dumbbell(3), samples=1, time_limit=10.0)
    packed = [rung for rung in made.rungs if rung.shape is None]
    by_name = {name: [r.chunks_per_server for r in packed if r.scheduler == name] for name in PLANNERS}
    assert by_name == {"greedy_augmented": [1, 2, 4], "trees_augmented": [1, 2, 4], "policy": [1, 1]}
    assert not made.finished


def test_progress_is_told_of_every_rung() -> None:
    told: list[str] = []
    made = planned(dumbbell(2), 2, progress=told.append)
    assert len(told) == len(made.rungs)
    for text, rung in zip(told, made.rungs):
        assert rung.scheduler in text
        assert "2 chunks per server" in text


# What goes wrong


def test_a_wrong_schedule_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up()
    monkeypatch.setattr(front_door, "warm_up", lambda: None)
    monkeypatch.setattr(front_door, "verify", lambda schedule: Verdict(False, "chunk 0 is lost"))
    with pytest.raises(RuntimeError, match="chunk 0 is lost"):
        planned(dgx(2, 2), 1)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"scheduler": "taccl"}, "choose auto or one of policy, ring"),
        ({"message_bytes": 0}, "message size"),
        ({"message_bytes": float("nan")}, "message size"),
        ({"message_bytes": float("inf")}, "message size"),
        ({"chunks_per_server": 0}, "chunks per server"),
        ({"samples": 0}, "samples"),
        ({"seed": -3}, "seed"),
        ({"time_limit": 0}, "time limit"),
        ({"time_limit": float("nan")}, "time limit"),
    ],
)
def test_bad_numbers_are_refused_in_one_line(changes: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        planned(dgx(2, 2), **changes)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    """Found before any planning, and only where one is needed."""
    folder = tmp_path / "nowhere"
    for name in ("auto", "policy"):
        with pytest.raises(InputError, match="no such checkpoint folder") as caught:
            plan(dgx(2, 2), 1e6, scheduler=name, checkpoint=folder)
        assert str(folder) in str(caught.value)
    made = plan(dgx(2, 2), 1e6, 1, scheduler="greedy", checkpoint=folder)
    assert np.isfinite(made.makespan_s)
