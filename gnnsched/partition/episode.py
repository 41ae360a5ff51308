"""What came of an episode's jobs, and the figures that policies are compared by."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnsched.partition.workload import Arrivals, in_time
from gnnsched.partition.world import World


class Outcome(NamedTuple):
    """Per arrival (n,): ``degree`` that was chosen (0: refused), ``lasting``: the completion time of an accepted job, s
    (0: blocked), and ``holding``: how many workers it held. The compiled simulator fills it in.
    """

    degree: NDArray[np.int64]
    lasting: NDArray[np.float64]
    holding: NDArray[np.int64]

    @classmethod
    def empty(cls, arrivals: int) -> "Outcome":
        return cls(np.zeros(arrivals, np.int64), np.zeros(arrivals), np.zeros(arrivals, np.int64))


@dataclass(frozen=True)
class Metrics:
    """Of one episode. Rates are parts of all arrivals; ``blocking_rate`` + ``acceptance`` = 1.

    ``mean_jct`` (s), ``mean_speedup`` (sequential time over completion time) and ``mean_degree`` are of the completed
    jobs. ``throughput``: bytes/s of the whole jobs' memory and edges, as far as they are done. ``utilisation``: part
    of all worker seconds that are held by jobs.
    """

    blocking_rate: float
    acceptance: float
    mean_jct: float
    mean_speedup: float
    throughput: float
    utilisation: float
    mean_degree: float


def metrics(world: World, arrivals: Arrivals, outcome: Outcome) -> Metrics:
    """Figures of an episode; a job that still runs at the horizon counts as blocked, its work as done in part."""
    tables = world.tables
    start = np.arange(len(arrivals)) * arrivals.interarrival
    accepted = outcome.lasting > 0.0
    completed = accepted & in_time(start + outcome.lasting, arrivals.horizon)
    lasting = outcome.lasting[accepted]
    until = np.minimum(start[accepted] + lasting, arrivals.horizon)
    done = (until - start[accepted]) / lasting
    span = max(arrivals.horizon, arrivals.interarrival)
    own = completed.sum()
    speedup = tables.sequential[arrivals.model[completed]] / outcome.lasting[completed]
    return Metrics(
        blocking_rate=float(1.0 - completed.mean()),
        acceptance=float(completed.mean()),
        mean_jct=float(outcome.lasting[completed].mean()) if own else 0.0,
        mean_speedup=float(speedup.mean()) if own else 0.0,
        throughput=float((tables.bytes[arrivals.model[accepted]] * done).sum() / span),
        utilisation=float((outcome.holding[accepted] * (until - start[accepted])).sum())
        / (span * tables.workers),
        mean_degree=float(outcome.degree[completed].mean()) if own else 0.0,
    )
