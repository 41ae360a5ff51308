"""What a cluster is to the partitioning of jobs: workers, blocks of them to place jobs on, and times of messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# The most ways that an op is split into.
MAX_DEGREE = 16


@dataclass(frozen=True, eq=False)
class Blocks:
    """Candidate blocks of one degree in the order in which they are tried.

    ``workers`` (b, degree): worker of each sub-op. ``kind`` (b,): blocks of one kind communicate alike; kinds count
    from 0 in order of their first block.
    """

    workers: NDArray[np.int32]
    kind: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def num_kinds(self) -> int:
        return int(self.kind.max(initial=-1)) + 1

    def of_kind(self, kind: int) -> NDArray[np.int32]:
        """Workers (degree,) of the first block of ``kind``."""
        return self.workers[int(np.argmax(self.kind == kind))]


class Cluster(Protocol):
    """Workers 0..num_workers - 1, identical but for where they sit."""

    @property
    def name(self) -> str: ...

    @property
    def num_workers(self) -> int: ...

    @property
    def worker_memory(self) -> float:
        """Bytes of one worker."""
        ...

    @property
    def side_blocks(self) -> bool:
        """Whether ops that are split fewer ways than the job may sit beside its block, as in the published program."""
        ...

    def blocks(self, degree: int) -> Blocks:
        """Blocks of ``degree`` workers; none where the cluster has no block of that size."""
        ...

    def collective_time(self, workers: Sequence[int], message_bytes: float) -> float:
        """Seconds of an AllReduce of ``message_bytes`` among ``workers``, without any other traffic."""
        ...

    def transfer_time(self, source: int, target: int, message_bytes: float) -> float:
        """Seconds of one message from one worker to another one, without any other traffic."""
        ...


def collective_time(workers: Sequence[int], message_bytes: float, network: Cluster) -> float:
    """Seconds of an AllReduce of ``message_bytes`` among ``workers`` of ``network``; 0 for a single worker.

    Three implementations: ``Ramp``, its closed form; ``TopologyCluster``, this package's own schedules or, with a
    ``factor``, that times this package's bound.
    """
    distinct = sorted(set(workers))
    if len(distinct) < 2 or message_bytes <= 0.0:
        return 0.0
    return network.collective_time(distinct, message_bytes)


def degrees(cluster: Cluster) -> list[int]:
    """Degrees that some block of the cluster has: 1 and even ones up to ``MAX_DEGREE``, ascending."""
    return [d for d in (1, *range(2, MAX_DEGREE + 1, 2)) if len(cluster.blocks(d))]
