"""``plan()``: the best verified schedule of all planners within a time limit."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.bounds import Bounds, bounds
from gnnsched.collective.flows import NO_FLOWS, Flows
from gnnsched.collective.schedule import Schedule
from gnnsched.collective.simulator import simulate
from gnnsched.collective.verify import verify
from gnnsched.planning.checkpoints import load_policy
from gnnsched.planning.halves import PathCache
from gnnsched.planning.schedulers import SCHEDULERS, check_numbers, schedule_with
from gnnsched.planning.search import LATENCY_SHARE, NEAR_BOUND, PLANNERS, Rung, Search
from gnnsched.topology import InputError, Topology

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy

# In a comparison no scheduler begins another sample after this many seconds.
COMPARISON_SECONDS = 3.0


@dataclass(frozen=True)
class Plan:
    """A verified schedule, who made it and how good it is.

    ``plan_s``: from the loaded network to the chosen schedule, kernels and checkpoint loaded, without verification and
    comparison. ``ratio``: makespan over ``bounds.bound_s``, None for one participant. ``finished``: False where the
    time limit cut the search short. ``root``: index of the server at which all ``chunks_per_server`` chunks are
    rooted, None where each participant has so many. ``shape``: name of the known shape whose trees were kept to, None
    for packed ones.
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
    root: int | None = None
    shape: str | None = None

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
    flows: Flows = NO_FLOWS,
    ready: NDArray[np.float64] | None = None,
) -> Plan:
    """Plan an AllReduce of ``message_bytes`` bytes among the topology's participants.

    ``chunks_per_server``: a number, or None for a ladder of 1, 2, 4, ... 128 that stops within 0.5 % of the
    bound or when ``time_limit`` (seconds) is over. ``scheduler``: a name of ``SCHEDULERS``, or "auto" for the best of
    policy, augmented greedy and augmented trees; with the ladder it also tries all chunks at the network's centre
    where latency counts and trees of known shapes (chains, straight to everybody), and ends with more samples of the
    policy at the best chunk counts. ``policy`` or ``checkpoint``: the network to use (default: the shipped one).
    ``lp_time_limit`` (s) is for the LP bound, solved after planning. ``flows``: in-flight flows, which the plan keeps
    clear of; ``ready`` (num_nodes,): seconds from when on each server's own contribution is there. One seed gives one
    result, unless the clock cuts the search.

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
    search = Search(topology, message_bytes, policy, samples, seed, time_limit, progress, flows, ready)
    # Where the search stops depends on the bound, so that it is part of planning's time; the LP is not.
    fast = bounds(topology, message_bytes, 0.0, flows, ready)
    # Beside flows phases may overlap, and the bound is none: no plan is good enough before its time.
    if not search.disturbed:
        search.target = NEAR_BOUND * fast.bound_s
    if chunks_per_server is not None:
        search.one(PLANNERS if scheduler == "auto" else (scheduler,), chunks_per_server)
    elif scheduler == "auto":
        search.all(fast.latency_s >= LATENCY_SHARE * fast.bound_s)
    else:
        search.climb(scheduler)
    assert search.best is not None
    assert search.winner is not None
    plan_s = time.monotonic() - search.begin
    schedule = search.best.schedule
    verdict = verify(schedule)
    if not verdict.ok:
        raise RuntimeError(f"{search.winner.scheduler} made a wrong schedule: {verdict.fault}")
    return Plan(
        schedule,
        search.winner.scheduler,
        search.winner.chunks_per_server,
        bounds(topology, message_bytes, lp_time_limit, flows, ready),
        plan_s,
        samples,
        seed,
        tuple(search.rungs),
        search.finished or search.near_bound,
        root=search.winner.root,
        shape=search.winner.shape,
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
    flows: Flows = NO_FLOWS,
    ready: NDArray[np.float64] | None = None,
) -> dict[str, float | None]:
    """Makespan in seconds of each scheduler at the same chunks per server; None where it is undefined.

    All of them beside the same ``flows`` and with the same ``ready`` times; see ``plan``. Each gets the same number of
    samples, as far as they begin within ``COMPARISON_SECONDS``. The policy is None
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
            name,
            topology,
            message_bytes,
            chunks_per_server,
            samples,
            seed,
            policy,
            paths,
            deadline,
            flows=flows,
            ready=ready,
        )
        result[name] = sampled.schedule.makespan
    return result
