"""Several AllReduces on one network: planned in turn, each beside what those before it have booked.

Who goes first is a choice: with few jobs all orders are tried, with more the shortest come first. One after the other,
each alone on the network, is among the candidates, so that a joint plan is never worse than that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.fair_sharing import simulate_fair_together
from gnnsched.collective.flows import NO_FLOWS, Flows, from_moment, join_flows
from gnnsched.collective.retiming import retime_together
from gnnsched.collective.schedule import Schedule
from gnnsched.collective.verify import verify
from gnnsched.planning.halves import PathCache
from gnnsched.planning.schedulers import schedule_with
from gnnsched.topology import InputError, Topology

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy

# Of at most so many jobs all orders are tried.
ALL_ORDERS = 3


@dataclass(frozen=True)
class Job:
    """An AllReduce of ``message_bytes`` bytes among ``participants`` (node indices), ready at ``ready_s`` seconds."""

    name: str
    participants: tuple[int, ...]
    message_bytes: float
    ready_s: float = 0.0


@dataclass(frozen=True)
class JobsPlan:
    """Schedules of several jobs, each with the others' transfers among its flows; times in seconds.

    ``done_s``: from each job's ready time to its end. ``alone_s``: the same, had it the network to itself;
    ``sequential_s``: one after the other in the best order; ``blind_s``: each planned as if alone, the links
    shared in the best of several ways. ``joint``: False where one after the other is the plan.
    """

    jobs: tuple[Job, ...]
    schedules: tuple[Schedule, ...]
    done_s: NDArray[np.float64]
    alone_s: NDArray[np.float64]
    sequential_s: NDArray[np.float64]
    blind_s: NDArray[np.float64]
    joint: bool

    @property
    def makespan_s(self) -> float:
        return max(schedule.makespan for schedule in self.schedules)

    @property
    def fairness(self) -> float:
        """Jain's index of the jobs' slowdowns against having the network alone: 1 where all are slowed down alike."""
        slowdown = self.done_s / np.maximum(self.alone_s, 1e-300)
        return float(slowdown.sum() ** 2 / (len(slowdown) * (slowdown**2).sum()))


def plan_jobs(
    topology: Topology,
    jobs: Sequence[Job],
    chunks_per_server: int = 4,
    scheduler: str = "policy",
    policy: "Policy | None" = None,
    samples: int = 8,
    seed: int = 0,
    flows: Flows = NO_FLOWS,
    progress: Callable[[str], None] | None = None,
) -> JobsPlan:
    """Plan all ``jobs`` for the least mean time from ready to done, beside in-flight ``flows``.

    Raises InputError for jobs that cannot be planned, RuntimeError should the referee refuse the plan.
    """
    if not jobs:
        raise InputError("jobs: none given; name at least one")
    planner = _Planner(
        topology, tuple(jobs), chunks_per_server, scheduler, policy, samples, seed, flows, progress
    )
    return planner.best()


class _Planner:
    """The arguments of ``plan_jobs``, and what all orders share."""

    def __init__(
        self,
        topology: Topology,
        jobs: tuple[Job, ...],
        chunks_per_server: int,
        scheduler: str,
        policy: "Policy | None",
        samples: int,
        seed: int,
        flows: Flows,
        progress: Callable[[str], None] | None,
    ) -> None:
        self.jobs = jobs
        self.networks = [topology.with_participants(job.participants) for job in jobs]
        self.paths = [PathCache() for _ in jobs]
        self.count, self.scheduler, self.policy = chunks_per_server, scheduler, policy
        self.samples, self.seed, self.flows, self.progress = samples, seed, flows, progress
        self.ready = np.array([job.ready_s for job in jobs])

    def planned(self, number: int, moment: float, flows: Flows) -> Schedule:
        """A job from ``moment`` (s) on, beside ``flows``."""
        made = schedule_with(
            self.scheduler,
            self.networks[number],
            self.jobs[number].message_bytes,
            self.count,
            self.samples,
            self.seed,
            self.policy,
            self.paths[number],
            flows=from_moment(flows, moment) if flows.num_flows else flows,
        )
        return replace(made.schedule.delayed(moment), flows=flows)

    def in_turn(self, order: Sequence[int], waiting: bool) -> list[Schedule]:
        """All jobs in ``order``: each beside what is booked already or, ``waiting``, after the end of the last one."""
        made: dict[int, Schedule] = {}
        booked, end = self.flows, 0.0
        for number in order:
            if self.progress is not None:
                self.progress(f"{self.jobs[number].name}, number {len(made) + 1} of {len(self.jobs)}")
            ready = self.jobs[number].ready_s
            made[number] = self.planned(number, max(ready, end) if waiting else ready, booked)
            if waiting:
                end = made[number].makespan
            else:
                booked = join_flows(booked, made[number].occupancies())
        return [made[number] for number in range(len(self.jobs))]

    def done(self, schedules: Sequence[Schedule]) -> NDArray[np.float64]:
        """Seconds from ready to done."""
        return np.array([schedule.makespan for schedule in schedules]) - self.ready

    def best(self) -> JobsPlan:
        alone = [self.planned(number, job.ready_s, self.flows) for number, job in enumerate(self.jobs)]
        alone_s = self.done(alone)
        numbers = range(len(self.jobs))
        # The shortest first, by when they could be done.
        orders = [tuple(sorted(numbers, key=lambda number: (alone[number].makespan, number)))]
        if len(self.jobs) <= ALL_ORDERS:
            orders = list(permutations(numbers))
        sequential = min((self.in_turn(order, True) for order in orders), key=self._mean)
        joint = min((self.in_turn(order, False) for order in orders), key=self._mean)
        chosen = min((joint, sequential), key=self._mean)
        schedules = self._beside_each_other(chosen)
        return JobsPlan(
            self.jobs,
            tuple(schedules),
            self.done(schedules),
            alone_s,
            self.done(sequential),
            min(self._blind(alone), key=np.mean),
            chosen is joint,
        )

    def _blind(self, alone: Sequence[Schedule]) -> list[NDArray[np.float64]]:
        """Seconds from ready to done where nobody knows of the others: links shared max-min fairly, or in the order of
        the planned starts, with and without overtaking. In-flight flows count for the latter alone.
        """
        own = [schedule.delayed(-ready) for schedule, ready in zip(alone, self.ready.tolist())]
        shared = simulate_fair_together(own, self.ready.tolist())
        found = [np.array([result.makespan for result in shared]) - self.ready]
        waiting = []
        for schedule, ready in zip(alone, self.ready.tolist()):
            late = np.where(schedule.topology.is_switch, 0.0, ready)
            waiting.append(replace(schedule, ready=late, flows=self.flows))
        found += [self.done(retime_together(waiting, keep, False)) for keep in (True, False)]
        return found

    def _mean(self, schedules: Sequence[Schedule]) -> float:
        return float(self.done(schedules).mean())

    def _beside_each_other(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """The schedules with each other's transfers among their flows, verified."""
        taken = [schedule.occupancies() for schedule in schedules]
        result = []
        for number, (job, schedule) in enumerate(zip(self.jobs, schedules)):
            others = join_flows(self.flows, *(own for other, own in enumerate(taken) if other != number))
            ready = np.zeros(schedule.topology.num_nodes)
            ready[list(job.participants)] = job.ready_s
            result.append(replace(schedule, flows=others, ready=ready if job.ready_s > 0.0 else None))
            verdict = verify(result[-1])
            if not verdict.ok:
                raise RuntimeError(f"job {job.name}: a wrong schedule was made: {verdict.fault}")
        return result
