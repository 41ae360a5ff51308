"""The AllReduce bound with free roots and both phases sharing the time, as a linear program.

Maximise X = sum of x_r, the rate at which root r finishes its part of the message, over the shares cin and
cout of every link that reduction and broadcast take: cin + cout within the bandwidth, every participant can
be brought X by a flow within cout, every root r can be brought x_r from every participant by a flow within
cin, and no switch puts out more than it takes in (it copies and adds nothing). T = M / X.

The flows are left out and replaced by what they ask of cuts (max-flow min-cut): for every node set S that
leaves out a participant, cout leaving S is at least the x in S. There are too many to write down, so those
that the solution of the moment breaks are found by minimum cuts and added, until it breaks none or is as slow
as RS+AG, which is a solution. That keeps the program at servers + links columns; one flow per participant
would take participants * links.
"""

import time

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from gnnsched.collective.all_gather_bound import rs_ag_bound
from gnnsched.collective.cuts import LARGEST_FLOW, CutFinder
from gnnsched.topology import Topology

# A cut counts as broken, and the program as solved, to this part of X.
_PRECISION = 1e-9


def allreduce_lp_bound(
    topology: Topology,
    message_bytes: float = 1.0,
    time_limit: float = 10.0,
    rs_ag_s: float | None = None,
) -> tuple[float | None, str | None]:
    """Seconds no AllReduce of ``message_bytes`` beats, latency left out: (bound, None) or (None, why not).

    ``rs_ag_s`` is RS+AG's bound where it is known already. None where the program is not solved within
    ``time_limit`` seconds, and where some switch takes in another capacity than it gives out: there the
    program is no bound (links r->w, w->a, w->b, a->r, b->r with w a switch: 2.0, while 4/3 can be reached).
    """
    deadline = time.monotonic() + time_limit
    if len(topology.participants) < 2:
        return 0.0, None
    unbalanced = _unbalanced_switch(topology)
    if unbalanced is not None:
        return None, f"switch {topology.node_ids[unbalanced]!r} takes in another capacity than it gives out"
    if time_limit <= 0:
        return None, f"not solved within {time_limit:g} s"
    rs_ag = rs_ag_bound(topology, message_bytes) if rs_ag_s is None else rs_ag_s
    program = _Program(topology)
    while True:
        left = deadline - time.monotonic()
        solution = program.solve(left) if left > 0 else None
        if solution is None:
            break
        bound = float(message_bytes / (solution[: program.servers].sum() * program.unit))
        if bound >= rs_ag * (1 - _PRECISION):
            return rs_ag, None
        broken = program.add_broken_cuts(solution, deadline)
        if broken is None:
            break
        if not broken:
            return bound, None
    return None, f"not solved within {time_limit:g} s"


def _unbalanced_switch(topology: Topology) -> int | None:
    enters = np.bincount(topology.link_target, topology.bandwidth, topology.num_nodes)
    leaves = np.bincount(topology.link_source, topology.bandwidth, topology.num_nodes)
    uneven = np.abs(enters - leaves) > 1e-9 * np.maximum(enters, leaves)
    odd = np.flatnonzero(topology.is_switch & uneven)
    return int(odd[0]) if len(odd) else None


class _Program:
    """Columns: x per server, cout per link and, where links have no partners in the other direction, cin.

    With partners a solution and its mirror image average to one whose cin is the cout of the opposite link,
    so cin needs no columns of its own.
    """

    def __init__(self, topology: Topology) -> None:
        self.servers = len(topology.servers)
        self.unit = float(topology.bandwidth.max())
        self._topology = topology
        self._mirrored = topology.opposite is not None
        links = topology.num_links
        self._columns = self.servers + links * (1 if self._mirrored else 2)
        self._out = self.servers + np.arange(links)
        if topology.opposite is not None:
            self._in = self.servers + topology.opposite.astype(np.int64)
        else:
            self._in = self._out + links
        self._finders = [CutFinder(topology)]
        if not self._mirrored:
            self._finders.append(CutFinder(topology.reversed()))
        self._rows: list[csr_array] = []
        self._limits: list[NDArray[np.float64]] = []
        self._seen: set[bytes] = set()
        each = np.arange(links)
        self._add(
            np.concatenate((each, each)),
            np.concatenate((self._out, self._in)),
            np.ones(2 * links),
            topology.bandwidth / self.unit,
        )
        self._add_switches()
        for direction in range(len(self._finders)):
            for participant in topology.participants:
                side = np.ones(topology.num_nodes, bool)
                side[participant] = False
                self._add_cut(side, direction)

    def _add(
        self,
        row: NDArray[np.int64],
        column: NDArray[np.int64],
        value: NDArray[np.float64],
        limit: NDArray[np.float64],
    ) -> None:
        self._rows.append(csr_array((value, (row, column)), shape=(len(limit), self._columns)))
        self._limits.append(limit)

    def _add_switches(self) -> None:
        """What leaves a switch for the broadcast entered it; what enters it for the reduction leaves it."""
        topology = self._topology
        position = np.cumsum(topology.is_switch) - 1
        leaves = topology.is_switch[topology.link_source]
        enters = topology.is_switch[topology.link_target]
        from_switch, to_switch = (
            position[topology.link_source[leaves]],
            position[topology.link_target[enters]],
        )
        value = np.concatenate((np.ones(len(from_switch)), -np.ones(len(to_switch))))
        limit = np.zeros(int(topology.is_switch.sum()))
        row = np.concatenate((from_switch, to_switch))
        self._add(row, np.concatenate((self._out[leaves], self._out[enters])), value, limit)
        if not self._mirrored:
            self._add(row, np.concatenate((self._in[leaves], self._in[enters])), -value, limit)

    def _add_cut(self, side: NDArray[np.bool_], direction: int) -> bool:
        """x in ``side`` is at most cout leaving it (direction 0) or cin entering it (1); False if known."""
        key = bytes([direction]) + np.packbits(side).tobytes()
        if key in self._seen:
            return False
        self._seen.add(key)
        inside = np.flatnonzero(side[self._topology.servers])
        crossing = self._crossing(side, direction)
        column = np.concatenate((inside, crossing))
        value = np.concatenate((np.ones(len(inside)), -np.ones(len(crossing))))
        self._add(np.zeros(len(column), np.int64), column, value, np.zeros(1))
        return True

    def _crossing(self, side: NDArray[np.bool_], direction: int) -> NDArray[np.int64]:
        """Columns of the links that leave ``side`` (direction 0: cout) or enter it (direction 1: cin)."""
        source, target = side[self._topology.link_source], side[self._topology.link_target]
        return self._out[source & ~target] if direction == 0 else self._in[~source & target]

    def solve(self, time_limit: float) -> NDArray[np.float64] | None:
        """The best solution under the cuts so far, None when the time is up."""
        objective = np.zeros(self._columns)
        objective[: self.servers] = -1.0
        result = linprog(
            objective,
            A_ub=vstack(self._rows, format="csr"),
            b_ub=np.concatenate(self._limits),
            method="highs",
            options={"time_limit": time_limit},
        )
        return result.x if result.status == 0 else None

    def add_broken_cuts(self, solution: NDArray[np.float64], deadline: float) -> bool | None:
        """Add one cut that ``solution`` breaks per participant; whether there was one, None out of time."""
        supply = np.maximum(solution[: self.servers], 0.0)
        total = float(supply.sum())
        scale = LARGEST_FLOW / total
        added = False
        for direction, finder in enumerate(self._finders):
            column = self._out if direction == 0 else self._in
            capacity = np.floor(np.clip(solution[column], 0.0, total) * scale).astype(np.int64)
            shares = np.floor(supply * scale).astype(np.int64)
            wanted = int(shares.sum())
            for participant in self._topology.participants.tolist():
                if time.monotonic() > deadline:
                    return None
                side = finder.smallest_cut(shares, capacity, participant, wanted)
                if side is not None:
                    crossing = solution[self._crossing(side, direction)].sum()
                    if supply[side[self._topology.servers]].sum() - crossing > _PRECISION * total:
                        added |= self._add_cut(side, direction)
                        continue
                shares[np.searchsorted(self._topology.servers, participant)] = wanted
        return added
