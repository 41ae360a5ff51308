"""``plan()``: the best verified schedule of all planners within a time limit."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnsched.collective.baselines import CLASSICAL
from gnnsched.collective.bounds import Bounds, bounds
from gnnsched.collective.schedule import Schedule
from gnnsched.collective.simulator import simulate
from gnnsched.collective.verify import verify
from gnnsched.planning.checkpoints import load_policy
from gnnsched.planning.schedulers import SCHEDULERS, PathCache, Sampled, check_numbers, schedule_with
from gnnsched.topology import InputError, Topology

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy

LADDER = (1, 2, 4, 8, 16, 32, 64, 128)
# Good enough: the ladder stops here.
NEAR_BOUND = 1.005
PLANNERS = ("greedy_augmented", "trees_augmented", "policy")
# Rules without a network gain little from many samples; on the ladder they get this many.
RULE_SAMPLES = 2
# The ladder ends, unfinished, below this many transfers: a rung would take minutes.
MOST_TRANSFERS = 2_000_000
# In a comparison no scheduler begins another sample after this many seconds.
COMPARISON_SECONDS = 3.0


@dataclass(frozen=True)
class Rung:
    """One planner at one chunk count: what it reached (seconds) and how long planning took."""

    chunks_per_server: int
    scheduler: str
    makespan_s: float
    plan_s: float


@dataclass(frozen=True)
class Plan:
    """A verified schedule, who made it and how good it is.

    ``plan_s``: from the loaded network to the chosen schedule, kernels and checkpoint loaded, without verification and
    comparison. ``ratio``: makespan over ``bounds.bound_s``, None for one participant. ``finished``: False where
    the time limit cut the ladder short.
    """

    schedule: Schedule
    scheduler: str
    chunks_per_server: int
    bounds: Bounds
    plan_s: float
    samples: int
    seed: int
    rungs: tuple[Rung, ...]
    finished: bool
    verified: bool = True

    @property
    def makespan_s(self) -> float:
        return self.schedule.makespan

    @property
    def ratio(self) -> float | None:
        return self.makespan_s / self.bounds.bound_s if self.bounds.bound_s > 0 else None


def warm_up() -> None:
    """Load (the first time compile) the kernels, so that planning afterwards is timed alone."""
    from gnnsched.topology.generators import star

    network = star([1e9, 1e9])
    for name in ("ring", "greedy_augmented"):
        schedule = schedule_with(name, network, 1e6, 1, 1).schedule
        verify(schedule)
        simulate(schedule)


class _Search:
    """The best schedule so far, and the clock."""

    def __init__(self, time_limit: float, progress: Callable[[str], None] | None) -> None:
        self.begin = time.monotonic()
        self.deadline = self.begin + time_limit
        self.target = 0.0
        self.progress = progress
        self.best: Sampled | None = None
        self.winner = ("", 0)
        self.rungs: list[Rung] = []
        self.finished = True

    @property
    def near_bound(self) -> bool:
        return self.best is not None and self.best.schedule.makespan <= self.target

    def offer(self, name: str, chunks_per_server: int, samples: int, run: Callable[[], Sampled]) -> float:
        """Run a planner and keep its schedule if it is the best; returns the seconds it took."""
        begin = time.monotonic()
        sampled = run()
        took = time.monotonic() - begin
        if name not in CLASSICAL and len(sampled.makespans) < samples:
            self.finished = False
        makespan = sampled.schedule.makespan
        self.rungs.append(Rung(chunks_per_server, name, makespan, took))
        if self.best is None or makespan < self.best.schedule.makespan:
            self.best, self.winner = sampled, (name, chunks_per_server)
        if self.progress is not None:
            self.progress(f"{name}, {chunks_per_server} chunks per server: {makespan:.6g} s")
        return took


def plan(
    topology: Topology,
    message_bytes: float = 64 * 2**20,
    chunks_per_server: int | None = None,
    scheduler: str = "auto",
    policy: "Policy | None" = None,
    checkpoint: str | os.PathLike[str] | None = None,
    samples: int = 16,
    seed: int = 0,
    time_limit: float = 10.0,
    device: str = "cpu",
    progress: Callable[[str], None] | None = None,
    lp_time_limit: float = 2.0,
) -> Plan:
    """Plan an AllReduce of ``message_bytes`` bytes among the topology's participants.

    ``chunks_per_server``: a number, or None for a ladder of 1, 2, 4, ... 128 that stops within 0.5 % of the
    bound or when ``time_limit`` (seconds) is over. ``scheduler``: a name of ``SCHEDULERS``, or "auto" for the best of
    policy, augmented greedy and augmented trees. ``policy`` or ``checkpoint``: the network to use (default: the
    shipped one). ``lp_time_limit`` (s) is for the LP bound, solved after planning. One seed gives one result, unless
    the clock cuts the ladder.

    Raises InputError for input that cannot be planned, RuntimeError should the referee refuse the plan.
    """
    if scheduler != "auto" and scheduler not in SCHEDULERS:
        raise InputError(f"scheduler {scheduler!r}: unknown; choose auto or one of {', '.join(SCHEDULERS)}")
    check_numbers(message_bytes, 1 if chunks_per_server is None else chunks_per_server, samples, seed)
    if not time_limit > 0:
        raise InputError(f"time limit: {time_limit} s is not positive; give seconds")
    if policy is None and scheduler in ("auto", "policy"):
        policy = load_policy(checkpoint, device)
    warm_up()
    search = _Search(time_limit, progress)
    # Where the ladder stops depends on the bound, so that it is part of planning's time; the LP is not.
    search.target = NEAR_BOUND * bounds(topology, message_bytes, lp_time_limit=0.0).bound_s
    paths = PathCache()
    names: Sequence[str] = PLANNERS if scheduler == "auto" else (scheduler,)
    servers = len(topology.participants)
    ladder = LADDER if chunks_per_server is None else (chunks_per_server,)
    last: dict[str, float] = {}
    for count in ladder:
        if chunks_per_server is None and count > 1 and 2 * servers * servers * count > MOST_TRANSFERS:
            search.finished = False
            break
        for name in names:
            now = time.monotonic()
            # A rung takes about twice as long as the one before: do not begin what cannot end in time.
            if search.best is not None and now + 2.0 * last.get(name, 0.0) > search.deadline:
                search.finished = False
                continue
            rule_on_ladder = chunks_per_server is None and scheduler == "auto" and name != "policy"
            own = min(samples, RULE_SAMPLES) if rule_on_ladder else samples
            took = search.offer(
                name,
                count,
                own,
                lambda name=name, count=count, own=own: schedule_with(  # type: ignore[misc]
                    name, topology, message_bytes, count, own, seed, policy, paths, search.deadline
                ),
            )
            last[name] = took
            if search.near_bound:
                break
        if search.near_bound:
            break
        if time.monotonic() > search.deadline and count != ladder[-1]:
            search.finished = False
            break
    assert search.best is not None
    plan_s = time.monotonic() - search.begin
    schedule = search.best.schedule
    verdict = verify(schedule)
    if not verdict.ok:
        raise RuntimeError(f"{search.winner[0]} made a wrong schedule: {verdict.fault}")
    return Plan(
        schedule,
        search.winner[0],
        search.winner[1],
        bounds(topology, message_bytes, lp_time_limit),
        plan_s,
        samples,
        seed,
        tuple(search.rungs),
        search.finished or search.near_bound,
    )


def compare(
    topology: Topology,
    message_bytes: float,
    chunks_per_server: int,
    samples: int = 16,
    seed: int = 0,
    policy: "Policy | None" = None,
    names: Sequence[str] = SCHEDULERS,
    progress: Callable[[str], None] | None = None,
) -> dict[str, float | None]:
    """Makespan in seconds of each scheduler at the same chunks per server; None where it is undefined.

    Each gets the same number of samples, as far as they begin within ``COMPARISON_SECONDS``. The policy is None
    without ``policy``.
    """
    result: dict[str, float | None] = {}
    paths = PathCache()
    for name in names:
        if progress is not None:
            progress(name)
        if name == "policy" and policy is None:
            result[name] = None
            continue
        deadline = time.monotonic() + COMPARISON_SECONDS
        sampled = schedule_with(
            name, topology, message_bytes, chunks_per_server, samples, seed, policy, paths, deadline
        )
        result[name] = sampled.schedule.makespan
    return result
