"""RAMP, PAC-ML's optical network: communication groups of racks of servers, block shapes, collective times.

After Ottino et al., "RAMP: a flat nanosecond optical network and MPI operations for distributed deep learning
systems" (2022), as the published PAC-ML program has it; where that program slips, ``published`` keeps the slip.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from gnnsched.partition.cluster import Blocks
from gnnsched.topology.errors import InputError

Shape = tuple[int, int, int]

PEAK_OPS_PER_S = 130e12
MEMORY_BYTES_PER_S = 2e12
BYTES_PER_NUMBER = 2


@dataclass(frozen=True)
class Ramp:
    """``groups`` x ``racks`` x ``servers``, one worker per server; (c, r, s) is worker (c racks + r) servers + s.

    Each ordered pair of servers has one channel of ``node_bandwidth`` / ``groups`` bytes/s. ``published``: with two
    slips of the published collective time: servers of one rack communicate for free, and the bandwidth is divided
    by the number of groups twice.
    """

    groups: int = 4
    racks: int = 4
    servers: int = 2
    node_bandwidth: float = 1.6e12
    latency: float = 50e-9
    io_latency: float = 100e-9
    worker_memory: float = 80e9
    published: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.racks <= self.groups or self.servers < 1:
            raise InputError(
                f"ramp: {self.groups} groups of {self.racks} racks of {self.servers} servers; "
                "give at least one of each and no more racks than groups"
            )

    @property
    def name(self) -> str:
        return f"ramp{self.num_workers}"

    @property
    def num_workers(self) -> int:
        return self.groups * self.racks * self.servers

    @property
    def side_blocks(self) -> bool:
        return True

    @property
    def channel_bandwidth(self) -> float:
        """Bytes/s from one server to another one."""
        return self.node_bandwidth / self.groups

    def worker(self, group: int, rack: int, server: int) -> int:
        """Number of a worker."""
        return (group * self.racks + rack) * self.servers + server

    def coordinates(self, worker: int) -> Shape:
        """(group, rack, server) of a worker."""
        group, rest = divmod(worker, self.racks * self.servers)
        return (group, *divmod(rest, self.servers))

    def shapes(self, degree: int) -> list[Shape]:
        """Boxes of ``degree`` servers in the order in which they are tried, squares over groups and racks first.

        The diagonal (``degree``, ``degree``, 0), one server in each of so many groups and racks, stands before the
        last resort of a row of groups.
        """
        shapes: list[Shape] = []
        for p in range(degree, 0, -1):
            q, rest = divmod(degree, p)
            if rest or q > self.servers:
                continue
            root = math.isqrt(p)
            if root * root == p and root <= self.racks:
                shapes.append((root, root, q))
            if p <= self.racks:
                shapes += [(p, 1, q), (p, q, 1)]
        if 1 < degree <= self.racks:
            shapes.append((degree, degree, 0))
        if degree <= self.groups:
            shapes.append((degree, 1, 1))
        return [shape for shape in dict.fromkeys(shapes) if shape[1] <= self.racks]

    def _blocks_of(self, shape: Shape) -> Iterator[list[int]]:
        """Workers of the blocks of ``shape``, by origin; no block wraps around."""
        height = max(shape[2], 1)
        for c, r, s in product(
            range(self.groups - shape[0] + 1),
            range(self.racks - shape[1] + 1),
            range(self.servers - height + 1),
        ):
            if shape[2] == 0:
                yield [self.worker(c + k, r + k, s) for k in range(shape[0])]
            else:
                yield [self.worker(c + i, r + j, s + k) for i, j, k in product(*map(range, shape))]

    @cached_property
    def _all_blocks(self) -> dict[int, Blocks]:
        return {}

    def blocks(self, degree: int) -> Blocks:
        """Blocks of ``degree`` workers, by shape and origin; a block's kind is the place of its shape."""
        known = self._all_blocks
        if degree not in known:
            rows = [
                (workers, kind)
                for kind, shape in enumerate(self.shapes(degree))
                for workers in self._blocks_of(shape)
            ]
            known[degree] = Blocks(
                np.array([workers for workers, _ in rows], np.int32).reshape(-1, degree),
                np.array([kind for _, kind in rows], np.int32),
            )
        return known[degree]

    def transfer_time(self, source: int, target: int, message_bytes: float) -> float:
        """Seconds of one message over the channel between two servers; 0 on one server or for nothing."""
        if source == target or message_bytes <= 0.0:
            return 0.0
        return self.latency + 2.0 * self.io_latency + message_bytes / self.channel_bandwidth

    def collective_time(self, workers: Sequence[int], message_bytes: float) -> float:
        """Seconds of RAMP's AllReduce among ``workers``: reduce-scatter and all-gather in at most four steps.

        A step among d servers moves its share of the message over min(x, x // (d - 1)) transceivers to each peer, x
        the number of groups, or where there are more peers than transceivers, over its part of them; the
        reduce-scatter also adds, at the rate that the roofline of a worker allows. The steps go through groups,
        servers and racks until all are reached. The published program counts racks whose (server, group) pairs
        repeat as contending, but by the names of workers, which never repeat: no step is slowed by contention.
        """
        groups, racks, servers = (len(set(part)) for part in zip(*map(self.coordinates, workers)))
        x = self.groups
        if self.published:
            factors = [groups, min(groups, servers), racks, math.ceil(servers / x)]
            bandwidth = self.channel_bandwidth / x
        else:
            factors, left = [], len(workers)
            for most in (groups, min(groups, servers), racks, servers):
                factors.append(min(most, left))
                left = math.ceil(left / factors[-1])
            bandwidth = self.channel_bandwidth
        share, total = message_bytes, 0.0
        for d in factors:
            share = math.ceil(share / d)
            if d > 1:
                transceivers = min(x, x // (d - 1)) or x / (d - 1)
                total += 2.0 * (self.latency + 2.0 * self.io_latency + share / (transceivers * bandwidth))
                rounds = math.ceil(math.log2(d))
                intensity = rounds / (BYTES_PER_NUMBER * (d + 1))
                total += (rounds * share / BYTES_PER_NUMBER) / min(
                    MEMORY_BYTES_PER_S * intensity, PEAK_OPS_PER_S
                )
        return total
