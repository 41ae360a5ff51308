"""Any scheduler against the bound, over networks, chunk counts and seeds."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gnnsched.collective.baselines import CLASSICAL
from gnnsched.collective.bounds import bounds
from gnnsched.collective.verify import verify
from gnnsched.planning import SCHEDULERS, load_policy, plan, schedule_with, warm_up
from gnnsched.planning.halves import PathCache
from gnnsched.topology import InputError, Topology

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy


@dataclass(frozen=True)
class Row:
    """One scheduler on one network at one chunk count with one seed; its best schedule is verified.

    Times in seconds. Ratios are makespan over ``bound_s``, None for one participant; ``best_ratio`` that of the best
    sample, whose makespan is ``makespan_s``; ``sample_mean_ratio`` the mean over those drawn as a single one is,
    None for plans of the front door, which keeps the best of several planners. ``planned_by`` is the scheduler that
    made the schedule, another one than ``scheduler`` for "auto"; ``ladder`` says that ``chunks_per_server`` was chosen
    by the front door.
    ``plan_s`` is the time of planning all samples, without verification.
    """

    topology: str
    scheduler: str
    chunks_per_server: int
    seed: int
    sample_mean_ratio: float | None
    best_ratio: float | None
    makespan_s: float
    bound_s: float
    plan_s: float
    planned_by: str
    ladder: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    topologies: Sequence[Topology],
    schedulers: Sequence[str] = SCHEDULERS,
    chunks_per_server: Sequence[int | None] = (1, 4, 16),
    message_bytes: float = 2**30,
    samples: int = 16,
    seeds: int = 3,
    time_limit: float = 10.0,
    policy: "Policy | None" = None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Row]:
    """Rows as they are planned, one for each network, chunk count, scheduler and seed 0 .. ``seeds`` - 1.

    ``schedulers``: names of ``planning.SCHEDULERS``, or "auto" for the front door's best. A chunk count of None is
    the front door's ladder with that scheduler. The classical algorithms take no seed: they are planned once and
    their row repeated. ``time_limit`` (s) is for one row: no sample is begun after it. ``policy`` defaults to the
    shipped one.

    Raises InputError, before anything is planned, for unknown names and numbers below 1; RuntimeError should the
    verifier refuse a schedule.
    """
    for name in schedulers:
        if name != "auto" and name not in SCHEDULERS:
            raise InputError(f"scheduler {name!r}: unknown; choose auto or one of {', '.join(SCHEDULERS)}")
    chunk_counts = [("chunks per server", count) for count in chunks_per_server if count is not None]
    for what, number in [("samples", samples), ("seeds", seeds), *chunk_counts]:
        if number < 1:
            raise InputError(f"{what}: {number} is below 1; ask for at least one")
    if not time_limit > 0:
        raise InputError(f"time limit: {time_limit} s is not positive; give seconds")
    if policy is None and ("policy" in schedulers or "auto" in schedulers):
        policy = load_policy()
    return _rows(
        topologies,
        schedulers,
        chunks_per_server,
        message_bytes,
        samples,
        seeds,
        time_limit,
        policy,
        progress or (lambda text: None),
    )


def _rows(
    topologies: Sequence[Topology],
    schedulers: Sequence[str],
    chunks_per_server: Sequence[int | None],
    message_bytes: float,
    samples: int,
    seeds: int,
    time_limit: float,
    policy: "Policy | None",
    progress: Callable[[str], None],
) -> Iterator[Row]:
    warm_up()
    for topology in topologies:
        bound = bounds(topology, message_bytes, lp_time_limit=0.0).bound_s
        paths = PathCache()
        for count in chunks_per_server:
            for name in schedulers:
                progress(f"{topology.name}, {name}, chunks per server: {count or 'auto'}")
                rows: list[Row] = []
                for seed in range(seeds):
                    if rows and name in CLASSICAL:
                        first = asdict(rows[0])
                        rows.append(Row(**{**first, "seed": seed}))
                    elif name == "auto" or count is None:
                        rows.append(
                            _front_door(
                                topology, name, count, message_bytes, samples, seed, time_limit, policy
                            )
                        )
                    else:
                        rows.append(
                            _alone(
                                topology,
                                name,
                                count,
                                message_bytes,
                                samples,
                                seed,
                                time_limit,
                                policy,
                                bound,
                                paths,
                            )
                        )
                    yield rows[-1]


def _front_door(
    topology: Topology,
    name: str,
    count: int | None,
    message_bytes: float,
    samples: int,
    seed: int,
    time_limit: float,
    policy: "Policy | None",
) -> Row:
    found = plan(
        topology,
        message_bytes,
        count,
        name,
        policy,
        samples=samples,
        seed=seed,
        time_limit=time_limit,
        lp_time_limit=0.0,
    )
    return Row(
        topology.name,
        name,
        found.chunks_per_server,
        seed,
        None,
        found.ratio,
        found.makespan_s,
        found.bounds.bound_s,
        found.plan_s,
        found.scheduler,
        count is None,
    )


def _alone(
    topology: Topology,
    name: str,
    count: int,
    message_bytes: float,
    samples: int,
    seed: int,
    time_limit: float,
    policy: "Policy | None",
    bound: float,
    paths: PathCache,
) -> Row:
    begin = time.monotonic()
    sampled = schedule_with(
        name, topology, message_bytes, count, samples, seed, policy, paths, begin + time_limit
    )
    took = time.monotonic() - begin
    verdict = verify(sampled.schedule)
    if not verdict.ok:
        raise RuntimeError(f"{topology.name}: {name} made a wrong schedule: {verdict.fault}")
    return Row(
        topology.name,
        name,
        count,
        seed,
        float(sampled.singles.mean()) / bound if bound > 0 else None,
        sampled.schedule.makespan / bound if bound > 0 else None,
        sampled.schedule.makespan,
        bound,
        took,
        name,
        False,
    )
