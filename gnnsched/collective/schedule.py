"""A schedule: every transfer of one AllReduce, as columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.flows import NO_FLOWS, Flows, merged, on_links
from gnnsched.topology import Topology

REDUCE = 0
BROADCAST = 1
PHASES = ("reduce", "broadcast")


@dataclass(frozen=True, eq=False)
class Transfers:
    """T transfers as columns; nothing is an object per transfer.

    ``phase`` uint8 (REDUCE or BROADCAST), ``chunk`` int32, ``source`` and ``target`` int32 node indices,
    ``path_start`` int64 (T+1,) and ``path_links`` int32: the links of transfer i are
    ``path_links[path_start[i]:path_start[i+1]]`` in travel order; ``rate`` bytes/s; ``start`` and ``end`` in
    seconds, ``end`` being the arrival (start + path latency + chunk bytes / rate). ``aborted`` bool: cut short by a
    failure at ``end``, or lost with the server that it went to; such a transfer delivers nothing, and its source keeps
    what it sent. None: no transfer is.
    """

    phase: NDArray[np.uint8]
    chunk: NDArray[np.int32]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    path_start: NDArray[np.int64]
    path_links: NDArray[np.int32]
    rate: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    aborted: NDArray[np.bool_] | None = None

    @property
    def lost(self) -> NDArray[np.bool_]:
        """``aborted`` (T,), whether or not some transfer is."""
        return np.zeros(len(self), bool) if self.aborted is None else self.aborted

    def __len__(self) -> int:
        return len(self.chunk)

    @classmethod
    def none(cls) -> "Transfers":
        """No transfers."""
        ints, reals = np.zeros(0, np.int32), np.zeros(0)
        return cls(np.zeros(0, np.uint8), ints, ints, ints, np.zeros(1, np.int64), ints, reals, reals, reals)


def join_transfers(first: Transfers, second: Transfers) -> Transfers:
    """The transfers of both, one after the other."""
    names = ("phase", "chunk", "source", "target", "path_links", "rate", "start", "end")
    columns = {name: np.concatenate((getattr(first, name), getattr(second, name))) for name in names}
    path_start = np.concatenate((first.path_start, second.path_start[1:] + first.path_start[-1]))
    lost = np.concatenate((first.lost, second.lost))
    return Transfers(path_start=path_start.astype(np.int64), **columns, aborted=lost if lost.any() else None)


def chosen_transfers(transfers: Transfers, chosen: NDArray[np.integer] | NDArray[np.bool_]) -> Transfers:
    """Some of the transfers, by number in any order, or by flags."""
    number = np.flatnonzero(chosen) if chosen.dtype == bool else np.asarray(chosen, np.int64)
    lengths = np.diff(transfers.path_start)[number]
    path_start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    position = np.arange(path_start[-1]) + np.repeat(
        transfers.path_start[:-1][number] - path_start[:-1], lengths
    )
    names = ("phase", "chunk", "source", "target", "rate", "start", "end")
    columns = {name: getattr(transfers, name)[number] for name in names}
    lost = transfers.lost[number]
    return Transfers(
        path_start=path_start,
        path_links=transfers.path_links[position],
        **columns,
        aborted=lost if lost.any() else None,
    )


@dataclass(frozen=True, eq=False)
class Schedule:
    """All transfers of one AllReduce of ``message_bytes`` bytes on ``topology``.

    ``roots`` int32 (C,): node index of each chunk's root; every chunk has message_bytes / C bytes.
    ``planner`` says who made it (``{"name": ...}`` and whatever else helps to make it again). ``flows``: in-flight
    flows beside which it runs. ``ready`` (num_nodes,): seconds from when on each server's own contribution is there;
    None: all from time 0 on. ``lost``: node indices of participants that failed under way: their contributions need
    not be in the sums, and they get none.
    """

    topology: Topology
    message_bytes: float
    roots: NDArray[np.int32]
    transfers: Transfers
    planner: Mapping[str, Any] = field(default_factory=dict)
    flows: Flows = NO_FLOWS
    ready: NDArray[np.float64] | None = None
    lost: tuple[int, ...] = ()

    @property
    def num_chunks(self) -> int:
        return len(self.roots)

    @property
    def chunk_bytes(self) -> float:
        return self.message_bytes / max(1, self.num_chunks)

    def occupancies(self) -> Flows:
        """What the transfers take of the links, as other traffic sees it: flows of one link each."""
        t = self.transfers
        owner = np.repeat(np.arange(len(t)), np.diff(t.path_start))
        passed = np.concatenate(([0.0], np.cumsum(self.topology.latency[t.path_links])))
        begin = t.start[owner] + passed[:-1] - passed[t.path_start[:-1]][owner]
        through = begin + self.chunk_bytes / t.rate[owner]
        cut = t.lost[owner]
        through[cut] = np.minimum(through[cut], t.end[owner][cut])
        used = through > begin
        return merged(on_links(t.path_links[used], t.rate[owner][used], begin[used], through[used]))

    def delayed(self, seconds: float) -> "Schedule":
        """The same schedule so many seconds later; its flows and ready times stay."""
        t = self.transfers
        return replace(self, transfers=replace(t, start=t.start + seconds, end=t.end + seconds))

    @cached_property
    def makespan(self) -> float:
        """End of the last transfer, in seconds; 0 without transfers."""
        return float(self.transfers.end.max()) if len(self.transfers) else 0.0
