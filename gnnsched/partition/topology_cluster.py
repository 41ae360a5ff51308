"""Any network of this package as a cluster: compact blocks of its servers, and how long they take to communicate."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from gnnsched.collective.bounds import bounds
from gnnsched.partition.cluster import Blocks
from gnnsched.partition.symmetry import Symmetry
from gnnsched.planning import plan
from gnnsched.topology import InputError, Topology

# Bytes at which an AllReduce is planned, and in how many chunks per server; between them its time is interpolated,
# beyond them it grows with the bytes.
PLANNED = {2**10: 1, 2**18: 1, 2**22: 2, 2**26: 4}
SAMPLES = 4
# Blocks whose AllReduces take equally long, within this factor, are of one kind.
ALIKE = 1.02
# Ways in which a block grows from each server where several servers are equally near.
GROWTHS = 2


class _Routes(NamedTuple):
    """Between workers, (n, n): seconds per byte of the slowest link, seconds of latency, and what is least."""

    slowest: NDArray[np.float64]
    delay: NDArray[np.float64]
    cost: NDArray[np.float64]


class TopologyCluster:
    """The participants of a topology as workers, in their order; communication by plans of ``planning.plan``.

    A job's messages have the network to themselves: jobs whose blocks share links are not slowed by each other.
    ``factor``: None, or the time of an AllReduce as a multiple of its bound instead of a plan's. ``progress`` is told
    what is being planned.
    """

    def __init__(
        self,
        topology: Topology,
        worker_memory: float = 80e9,
        factor: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if len(topology.participants) < 2:
            raise InputError(f"topology {topology.name}: fewer than two participants; a cluster needs more")
        self.topology = topology
        self.worker_memory = worker_memory
        self.factor = factor
        self.progress = progress or (lambda text: None)
        self._times: dict[tuple[int, ...], NDArray[np.float64]] = {}
        self._blocks: dict[int, Blocks] = {}
        self._symmetry = Symmetry(topology)

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def num_workers(self) -> int:
        return len(self.topology.participants)

    @property
    def side_blocks(self) -> bool:
        """None: a job keeps to one compact block."""
        return False

    @cached_property
    def _routes(self) -> _Routes:
        """The ways between workers that have the least sum of seconds per byte."""
        topology, servers = self.topology, self.topology.participants
        # Of parallel cables, the fastest one: a message takes one of them.
        fastest = {
            (int(topology.link_source[e]), int(topology.link_target[e])): int(e)
            for e in np.argsort(topology.bandwidth, kind="stable")
        }
        links = np.array(sorted(fastest.values()), np.int64)
        ends = (topology.link_source[links], topology.link_target[links])
        shape = (topology.num_nodes, topology.num_nodes)
        # Of several ways as fast for a byte, the one of the fewest links.
        slowness = 1.0 / topology.bandwidth[links]
        weight = slowness + 1e-3 * slowness.min()
        cost, before = dijkstra(
            csr_array((weight, ends), shape=shape), indices=servers, return_predecessors=True
        )
        latency = csr_array((topology.latency[links] + 1e-300, ends), shape=shape)
        speed = csr_array((topology.bandwidth[links], ends), shape=shape)
        count = len(servers)
        slowest, delay = np.zeros((count, count)), np.zeros((count, count))
        for i in range(count):
            for j, server in enumerate(servers):
                if not np.isfinite(cost[i, server]):
                    raise InputError(
                        f"topology {topology.name}: not all participants reach each other; add links"
                    )
                node = int(server)
                while node != servers[i]:
                    previous = int(before[i, node])
                    slowest[i, j] = max(slowest[i, j], 1.0 / speed[previous, node])
                    delay[i, j] += latency[previous, node]
                    node = previous
        return _Routes(slowest, delay, cost[:, servers])

    def transfer_time(self, source: int, target: int, message_bytes: float) -> float:
        """Seconds of one message over the way of the least seconds per byte; 0 on one server or for nothing."""
        if source == target or message_bytes <= 0.0:
            return 0.0
        routes = self._routes
        return float(routes.delay[source, target] + message_bytes * routes.slowest[source, target])

    def collective_time(self, workers: Sequence[int], message_bytes: float) -> float:
        """Seconds of an AllReduce by its planned schedule, or its bound times ``factor``.

        Planned once for all sets of servers that a symmetry of the network maps onto each other.
        """
        times = self._planned(tuple(workers))
        sizes = np.array(list(PLANNED), float)
        if message_bytes > sizes[-1]:
            return float(
                times[-1] + (message_bytes - sizes[-1]) * (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
            )
        return float(np.interp(message_bytes, sizes, times))

    def _planned(self, workers: tuple[int, ...]) -> NDArray[np.float64]:
        representative = self._symmetry.representative(workers)
        if representative not in self._times:
            self.progress(f"planning for {len(workers)} servers of {self.name}")
            participant = np.zeros(self.topology.num_nodes, bool)
            participant[self.topology.participants[list(representative)]] = True
            part = replace(self.topology, is_participant=participant)
            self._times[representative] = np.array([self._time(part, size) for size in PLANNED])
        return self._times[representative]

    def _time(self, part: Topology, size: int) -> float:
        if self.factor is not None:
            return self.factor * bounds(part, size, lp_time_limit=0.0).bound_s
        return plan(part, size, PLANNED[size], samples=SAMPLES, lp_time_limit=0.0).makespan_s

    def blocks(self, degree: int) -> Blocks:
        """Compact sets of ``degree`` servers, those that communicate fastest first.

        A block grows from each server by the server that is nearest to those it has, which keeps a job compact.
        """
        if degree not in self._blocks:
            self._blocks[degree] = self._make_blocks(degree)
        return self._blocks[degree]

    def _make_blocks(self, degree: int) -> Blocks:
        count = self.num_workers
        if degree > count:
            return Blocks(np.zeros((0, degree), np.int32), np.zeros(0, np.int32))
        distance = self._routes.cost + self._routes.cost.T
        found: dict[tuple[int, ...], float] = {}
        for seed in range(count):
            for growth in range(GROWTHS if degree > 1 else 1):
                # A fixed order per growth decides between servers that are equally near.
                order = (
                    np.random.default_rng([growth, seed]).permutation(count) if growth else np.arange(count)
                )
                members = [seed]
                total = distance[seed].copy()
                while len(members) < degree:
                    total[members[-1]] = np.inf
                    near = np.flatnonzero(total <= total.min() * (1.0 + 1e-9))
                    members.append(int(near[np.argmin(order[near])]))
                    total += distance[members[-1]]
                block = tuple(sorted(members))
                found[block] = float(distance[np.ix_(block, block)].sum())
        times = {block: self._planned(block)[-1] if degree > 1 else 0.0 for block in found}
        ordered = sorted(
            found, key=lambda block: (round(np.log(times[block] + 1e-30), 6), found[block], block)
        )
        return Blocks(
            np.array(ordered, np.int32).reshape(-1, degree),
            self._kinds(ordered),
        )

    def _kinds(self, blocks: Sequence[tuple[int, ...]]) -> NDArray[np.int32]:
        """Blocks whose times are alike at all planned sizes, numbered in order of their first one."""
        number: dict[tuple[int, ...], int] = {}
        kinds = []
        for block in blocks:
            times = self._planned(block) if len(block) > 1 else np.ones(1)
            key = tuple(np.rint(np.log(times) / np.log(ALIKE)).astype(int).tolist())
            kinds.append(number.setdefault(key, len(number)))
        return np.array(kinds, np.int32)
