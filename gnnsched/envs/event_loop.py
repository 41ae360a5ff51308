"""The event loop that grows all flow trees, in plain Python: the reference of collective.decode."""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.decode.paths import Paths
from gnnsched.collective.decode.relays import worth_keeping
from gnnsched.collective.flows import Flows, falls, taken_by
from gnnsched.collective.schedule import BROADCAST, Transfers

# A rate within this of the ordinary one counts as the whole of it ...
WHOLE = 1.0 - 1e-9
# ... and a link with less than this share of its bandwidth left is full, as a path is with less of its rate.
FULL = 1e-6


@dataclass(frozen=True)
class Network:
    """What stays fixed: P candidate paths between S servers, C chunks of ``chunk_bytes`` bytes.

    ``bandwidth`` (m,) bytes/s; ``roots`` (C,) server numbers; ``needed`` bool (S,): must get every chunk;
    ``useful`` bool (S, C): server is worth sending the chunk to (relays: where a packed tree runs through
    them). ``window`` (s): decision window; ``floor``: least share of its ordinary rate at which a transfer
    may start; ``tolerance`` (s): moments closer than this are one.
    """

    paths: Paths
    bandwidth: NDArray[np.float64]
    roots: NDArray[np.int32]
    needed: NDArray[np.bool_]
    useful: NDArray[np.bool_]
    chunk_bytes: float
    window: float
    floor: float
    tolerance: float


class EventLoop:
    """One all-gather being planned. Time stands still while paths are served; ``advance`` goes to the next
    event.

    ``now`` (s), ``event``: number of the current event, from 1; ``arrival`` (S, C): seconds, inf where the
    chunk is not on its way; ``holds`` bool (S, C): can be sent at this event (it has arrived or will within
    the window); ``wants`` bool (S, C): worth sending to the server; ``missing``: entries of ``wants`` that
    participants still need; ``transfers``: rows of path, chunk, rate, start, end in order of decision;
    ``bookings`` per link: (end, rate) of the transfers that occupy it; ``taken`` per
    link: (seconds, rate) from when on flows take how much of it, ``falls``: the moments of these at which that
    becomes less; ``forced``: nothing is in flight and nobody wanted
    to go on, so that a decision must name a chunk. ``start`` (s) and ``rate`` (bytes/s, 0: it cannot) (P,):
    when and how fast each path could start at this event; ``useful`` bool (P,): it has a chunk to carry;
    ``settled`` bool (P,): already served or declined at this event.
    """

    def __init__(self, network: Network, flows: Flows) -> None:
        self.network = network
        paths = network.paths
        self.sources = paths.source.astype(np.intp)
        self.targets = paths.target.astype(np.intp)
        self._hops = [
            [(int(paths.links[k]), float(paths.offset[k])) for k in range(paths.start[p], paths.start[p + 1])]
            for p in range(paths.num_paths)
        ]
        self._through = [
            paths.through_paths[paths.through[e] : paths.through[e + 1]].tolist()
            for e in range(len(network.bandwidth))
        ]
        servers, chunks = len(network.needed), len(network.roots)
        self.arrival = np.full((servers, chunks), np.inf)
        self.arrival[network.roots, np.arange(chunks)] = 0.0
        self.holds = np.isfinite(self.arrival)
        self.wants = network.useful & ~self.holds
        self.missing = int(self.wants[network.needed].sum())
        self.bookings: list[list[tuple[float, float]]] = [[] for _ in network.bandwidth]
        # Pending moments: (seconds, server, chunk) of an arrival, (seconds, -1, -1) where a link is released.
        self._pending: list[tuple[float, int, int]] = []
        taken = taken_by(flows, len(network.bandwidth))
        link_of = np.repeat(np.arange(len(network.bandwidth)), np.diff(taken.start))
        self.taken: list[list[tuple[float, float]]] = [[] for _ in network.bandwidth]
        self.falls: list[list[float]] = [[] for _ in network.bandwidth]
        for link, moment, rate in zip(link_of.tolist(), taken.time.tolist(), taken.rate.tolist()):
            self.taken[link].append((moment, rate))
        for k in falls(taken).tolist():
            self.falls[link_of[k]].append(float(taken.time[k]))
        self._pending = [(moment, -1, -1) for moment in sorted({m for own in self.falls for m in own})]
        self.transfers: list[tuple[int, int, float, float, float]] = []
        self.now = 0.0
        self.event = 0
        self.forced = False
        self.makespan = 0.0
        self._open_event()

    def left(self, link: int, time: float, until: float) -> float:
        """Rate left on a link from ``time`` to ``until``, bytes/s; a booking that begins later counts already."""
        left = float(self.network.bandwidth[link])
        for end, rate in reversed(self.bookings[link]):
            if end > time:
                left -= rate
        most = 0.0
        for k, (since, rate) in enumerate(self.taken[link]):
            over = self.taken[link][k + 1][0] if k + 1 < len(self.taken[link]) else np.inf
            if (since <= time or since < until) and over > time:
                most = max(most, rate)
        return left - most

    def _sustained(self, path: int, start: float) -> float:
        """The most (bytes/s) that a chunk can have of a path from ``start`` on until it is through, or 0.

        The slower, the more flows it meets. It may start late by the decision window.
        """
        network = self.network
        whole = float(network.paths.rate[path])
        rate, before = whole, np.inf
        while rate < before * WHOLE:
            before = rate
            seconds = network.chunk_bytes / rate + network.window
            for link, offset in self._hops[path]:
                time = start + offset
                left = self.left(link, time + network.tolerance, time + seconds - network.tolerance)
                rate = min(rate, left if left >= FULL * network.bandwidth[link] else 0.0)
            if rate < FULL * whole:
                return 0.0
        return rate

    def opening(self, path: int) -> tuple[float, float]:
        """When and at which rate a path can start at this event: (seconds, bytes/s), rate 0 if it cannot.

        At its ordinary rate at the earliest moment of the window at which all its links have that left;
        failing that, at the earliest moment at which they have the floor's share of it left, at what they
        have.
        """
        network, hops = self.network, self._hops[path]
        whole = float(network.paths.rate[path])
        deadline = self.now + network.window + network.tolerance
        moments = {self.now}
        for link, offset in hops:
            ends = [end for end, _ in self.bookings[link]] + self.falls[link]
            moments.update(end - offset for end in ends if self.now < end - offset <= deadline)
        partial = (self.now, 0.0)
        for moment in sorted(moments):
            rate = self._sustained(path, moment)
            if rate >= whole * WHOLE:
                return moment, rate
            if partial[1] == 0.0 and rate > 0.0 and rate >= network.floor * whole:
                partial = (moment, rate)
        return partial

    def path_mask(self) -> NDArray[np.bool_]:
        """Paths (P,) that may be picked now: can start, have a chunk to carry, are not settled."""
        if self.missing == 0:
            return np.zeros(len(self.settled), bool)
        return (self.rate > 0.0) & ~self.settled & self.useful

    def chunk_mask(self, path: int) -> NDArray[np.bool_]:
        """Chunks (C,) that the path's source can send now and its target wants."""
        return self.holds[self.sources[path]] & self.wants[self.targets[path]]

    def serve(self, path: int, chunk: int) -> None:
        """Start ``chunk`` over ``path``, which the masks allow, as early and as fast as the path opens."""
        network = self.network
        s, d = self.sources[path], self.targets[path]
        rate = float(self.rate[path])
        work = network.chunk_bytes / rate
        start = max(float(self.start[path]), float(self.arrival[s, chunk]))
        end = start + float(network.paths.latency[path]) + work
        for link, offset in self._hops[path]:
            self.bookings[link].append((start + offset + work, rate))
            heapq.heappush(self._pending, (start + offset + work, -1, -1))
        heapq.heappush(self._pending, (end, int(d), chunk))
        self.arrival[d, chunk] = end
        self.wants[d, chunk] = False
        self.transfers.append((path, chunk, rate, start, end))
        if network.needed[d]:
            self.missing -= 1
            # A relay's arrival matters only by what it sends on, which arrives later.
            self.makespan = max(self.makespan, end)
        self.settled[path] = True
        into = slice(network.paths.into[d], network.paths.into[d + 1])
        self.useful[into] = (self.holds[self.sources[into]] & self.wants[d]).any(1)
        touched = {other for link, _ in self._hops[path] for other in self._through[link]}
        for other in touched:
            if self.rate[other] > 0.0 and not self.settled[other]:
                self.start[other], self.rate[other] = self.opening(other)

    def decline(self, path: int) -> None:
        """Leave the path idle until the next event."""
        self.settled[path] = True

    def advance(self) -> bool:
        """Close this event and go to the next, forced where nothing is pending; False if stuck."""
        if not self._pending:
            if self.forced:
                return False
            self.forced = True
        else:
            self.forced = False
            self._pop()
        self._open_event()
        return True

    def _pop(self) -> None:
        """Go to the next pending moment; what is pending within the window from there happens with it."""
        network = self.network
        self.now = self._pending[0][0]
        while self._pending and self._pending[0][0] <= self.now + network.window + network.tolerance:
            moment, server, chunk = heapq.heappop(self._pending)
            if network.window == 0.0:
                self.now = moment
            if server >= 0:
                self.holds[server, chunk] = True
        for link, bookings in enumerate(self.bookings):
            if bookings:
                self.bookings[link] = [booking for booking in bookings if booking[0] > self.now]

    def _open_event(self) -> None:
        paths = self.network.paths.num_paths
        self.event += 1
        self.settled = np.zeros(paths, bool)
        self.start = np.full(paths, self.now)
        self.rate = np.zeros(paths)
        self.useful = (self.holds[self.sources] & self.wants[self.targets]).any(1)
        # wants only shrinks within an event, so a path without use now has none later in it
        for path in np.flatnonzero(self.useful).tolist():
            self.start[path], self.rate[path] = self.opening(path)

    def columns(self) -> Transfers:
        """The transfers so far as broadcast columns, in order of their start, idle relays left out."""
        paths = self.network.paths
        path = np.array([row[0] for row in self.transfers], np.intp)
        chunk = np.array([row[1] for row in self.transfers], np.int32)
        everybody = np.repeat(self.network.needed[:, None], len(self.network.roots), 1)
        kept = worth_keeping(chunk, paths.source[path], paths.target[path], everybody)
        rows = sorted((row for row, keep in zip(self.transfers, kept) if keep), key=lambda row: row[3])
        path = np.array([row[0] for row in rows], np.intp)
        lengths = np.diff(paths.start)[path]
        links = [link for row in rows for link, _ in self._hops[row[0]]]
        return Transfers(
            np.full(len(rows), BROADCAST, np.uint8),
            np.array([row[1] for row in rows], np.int32),
            paths.nodes[paths.source[path]],
            paths.nodes[paths.target[path]],
            np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            np.array(links, np.int32),
            np.array([row[2] for row in rows]),
            np.array([row[3] for row in rows]),
            np.array([row[4] for row in rows]),
        )
