"""List scheduling of flow trees: an algorithm's steps in order, each once its data and a path are there."""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.baselines.flow_trees import FlowTrees, over_servers
from gnnsched.collective.baselines.routes import PairPaths, switch_paths
from gnnsched.collective.mirror import allreduce_from_broadcast
from gnnsched.collective.schedule import BROADCAST, Schedule, Transfers
from gnnsched.topology import Topology

# Rates that add up to the bandwidth may exceed it by rounding.
RATE_SLACK = 1e-9
# Events nearer to each other than this share of the shortest transfer are one event: they differ by rounding.
SAME_EVENT = 1e-7


@njit(cache=True)
def _push(heap: NDArray[np.int64], base: int, size: int, item: int) -> None:
    """Add ``item`` to the binary heap ``heap[base:base+size]``."""
    at = size
    while at > 0 and heap[base + (at - 1) // 2] > item:
        heap[base + at] = heap[base + (at - 1) // 2]
        at = (at - 1) // 2
    heap[base + at] = item


@njit(cache=True)
def _pop(heap: NDArray[np.int64], base: int, size: int) -> None:
    """Remove the least item of the binary heap ``heap[base:base+size]``."""
    size -= 1
    item = heap[base + size]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[base + child + 1] < heap[base + child]:
            child += 1
        if heap[base + child] >= item:
            break
        heap[base + at] = heap[base + child]
        at = child
    heap[base + at] = item


class _Bookings(NamedTuple):
    """What each link has promised: linked lists in one pool, the latest end first.

    ``newest`` (m,): a link's first booking, -1 for none; ``older``, ``end``, ``rate``: one entry per booking.
    ``spare`` (2,): a list of released bookings (-1: none) and the number ever used.
    """

    newest: NDArray[np.int64]
    older: NDArray[np.int64]
    end: NDArray[np.float64]
    rate: NDArray[np.float64]
    spare: NDArray[np.int64]


@njit(cache=True)
def _free_from(bookings: _Bookings, bandwidth: NDArray[np.float64], link: int, rate: float) -> float:
    """When ``link`` has ``rate`` left; minus infinity if it has it now and for ever."""
    left = bandwidth[link] * (1.0 + RATE_SLACK) - rate
    used = 0.0
    at = bookings.newest[link]
    while at >= 0:
        used += bookings.rate[at]
        if used > left:
            return bookings.end[at]
        at = bookings.older[at]
    return -np.inf


@njit(cache=True)
def _book(bookings: _Bookings, link: int, until: float, rate: float, now: float) -> None:
    """Take ``rate`` of ``link``; forget what ended before ``now``, as it can stop nobody any more."""
    booking = bookings.spare[0]
    if booking >= 0:
        bookings.spare[0] = bookings.older[booking]
    else:
        booking = bookings.spare[1]
        bookings.spare[1] += 1
    bookings.end[booking], bookings.rate[booking] = until, rate
    before, at = -1, bookings.newest[link]
    while at >= 0 and bookings.end[at] > until:
        before, at = at, bookings.older[at]
    bookings.older[booking] = at
    if before < 0:
        bookings.newest[link] = booking
    else:
        bookings.older[before] = booking
    before = booking
    while at >= 0 and bookings.end[at] > now:
        before, at = at, bookings.older[at]
    bookings.older[before] = -1
    while at >= 0:
        released = at
        at = bookings.older[at]
        bookings.older[released] = bookings.spare[0]
        bookings.spare[0] = released


@njit(cache=True)
def _gates(
    latency: NDArray[np.float64],
    first: NDArray[np.int64],
    path_start: NDArray[np.int64],
    path_links: NDArray[np.int32],
    path_rate: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """First and last link (P, 2) that all paths of a pair share, else -1; latency (P, 2) before; rate (P,).

    The latency is the greatest and the rate the least of the pair's paths. A pair whose gate has not that
    rate left need not have its paths tried.
    """
    pairs = len(first) - 1
    link = np.full((pairs, 2), -1, np.int64)
    ahead = np.zeros((pairs, 2))
    rate = np.full(pairs, np.inf)
    for p in range(pairs):
        for path in range(first[p], first[p + 1]):
            begin, end = path_start[path], path_start[path + 1]
            before_last = 0.0
            for k in range(begin, end - 1):
                before_last += latency[path_links[k]]
            ahead[p, 1] = max(ahead[p, 1], before_last)
            rate[p] = min(rate[p], path_rate[path])
            for side in range(2):
                at = path_links[begin if side == 0 else end - 1]
                if path == first[p]:
                    link[p, side] = at
                elif link[p, side] != at:
                    link[p, side] = -1
    return link, ahead, rate


@njit(cache=True)
def _run(
    bandwidth: NDArray[np.float64],
    latency: NDArray[np.float64],
    chunk_bytes: float,
    predecessor: NDArray[np.int64],
    pair: NDArray[np.int64],
    first: NDArray[np.int64],
    path_start: NDArray[np.int64],
    path_links: NDArray[np.int32],
    path_rate: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Path, start and arrival of each transfer; a transfer's index is its priority, the lowest first.

    ``predecessor`` (E,): the transfer that brings the chunk, -1 where the root sends. Transfers of one
    server pair share their candidate paths, so only the first waiting one of a pair need ever be tried, and
    only when its links may have come free: each pair with waiting transfers has one wake-up time, a lower
    bound (bookings only ever push it back).
    """
    count, pairs = len(pair), len(first) - 1
    chosen = np.full(count, -1, np.int64)
    start = np.full(count, np.nan)
    end = np.full(count, np.nan)
    ready = np.zeros(count)
    # Transfers by the one they wait for.
    next_sibling = np.full(count, -1, np.int64)
    first_child = np.full(count, -1, np.int64)
    waiting_start = np.zeros(pairs + 1, np.int64)
    for i in range(count - 1, -1, -1):
        waiting_start[pair[i] + 1] += 1
        if predecessor[i] >= 0:
            next_sibling[i] = first_child[predecessor[i]]
            first_child[predecessor[i]] = i
    waiting_start = np.cumsum(waiting_start)
    waiting = np.empty(count, np.int64)
    size = np.zeros(pairs, np.int64)
    has_wake = np.zeros(pairs, np.bool_)
    room = 0 if len(path_rate) == 0 else count * np.diff(path_start).max()
    bookings = _Bookings(
        np.full(len(bandwidth), -1, np.int64),
        np.empty(room, np.int64),
        np.empty(room),
        np.empty(room),
        np.array([-1, 0]),
    )
    gate_link, gate_ahead, gate_rate = _gates(latency, first, path_start, path_links, path_rate)
    events = [(0.0, 0)]  # arrival of transfer i: i; wake-up of pair p: -p - 1
    events.pop()
    touched = [0]  # pairs that may be able to start a transfer at this event
    touched.pop()
    for p in range(pairs):
        if waiting_start[p + 1] > waiting_start[p]:
            has_wake[p] = True
            heappush(events, (0.0, -p - 1))
    for i in range(count):
        if predecessor[i] < 0:
            _push(waiting, waiting_start[pair[i]], size[pair[i]], i)
            size[pair[i]] += 1
    tolerance = SAME_EVENT * chunk_bytes / path_rate.max() if len(path_rate) else 0.0
    touched_at = np.full(pairs, -1, np.int64)
    event = 0
    while len(events) > 0:
        now = events[0][0]
        event += 1
        while len(events) > 0 and events[0][0] <= now + tolerance:
            time, what = heappop(events)
            if what < 0:
                p = -what - 1
                has_wake[p] = False
                if size[p] > 0 and touched_at[p] != event:
                    touched_at[p] = event
                    touched.append(p)
                continue
            child = first_child[what]
            while child >= 0:
                p = pair[child]
                ready[child] = time
                _push(waiting, waiting_start[p], size[p], child)
                size[p] += 1
                if touched_at[p] != event:
                    touched_at[p] = event
                    touched.append(p)
                child = next_sibling[child]
        turn = [waiting[waiting_start[p]] for p in touched]
        touched.clear()
        turn.sort()  # a sorted list is a heap: the next waiting transfer of a served pair joins it
        while len(turn) > 0:
            i = heappop(turn)
            p = pair[i]
            wake = -np.inf
            for side in range(2):
                if gate_link[p, side] >= 0:
                    shut = _free_from(bookings, bandwidth, gate_link[p, side], gate_rate[p])
                    wake = max(wake, shut - gate_ahead[p, side])
            if wake <= now + tolerance:
                wake = np.inf
                for path in range(first[p], first[p + 1]):
                    earliest, ahead = -np.inf, 0.0
                    for k in range(path_start[path], path_start[path + 1]):
                        free = _free_from(bookings, bandwidth, path_links[k], path_rate[path])
                        earliest = max(earliest, free - ahead)
                        ahead += latency[path_links[k]]
                    wake = min(wake, earliest)
                    if earliest <= now + tolerance:
                        chosen[i] = path
                        start[i] = max(now, ready[i], earliest)
                        break
            if chosen[i] < 0:
                if not has_wake[p]:
                    has_wake[p] = True
                    heappush(events, (wake, -p - 1))
                continue
            path = chosen[i]
            duration = chunk_bytes / path_rate[path]
            ahead = 0.0
            for k in range(path_start[path], path_start[path + 1]):
                _book(bookings, path_links[k], start[i] + ahead + duration, path_rate[path], now)
                ahead += latency[path_links[k]]
            end[i] = start[i] + ahead + duration
            heappush(events, (end[i], i))
            _pop(waiting, waiting_start[p], size[p])
            size[p] -= 1
            if size[p] > 0:
                heappush(turn, waiting[waiting_start[p]])
    return chosen, start, end


def _merge(paths: PairPaths, own: Sequence[Sequence[Sequence[int]] | None]) -> PairPaths:
    """``paths`` with those of pair p replaced by ``own[p]`` where that is not None."""
    every: list[list[Sequence[int]]] = []
    for p, replacement in enumerate(own):
        kept = range(paths.first[p], paths.first[p + 1]) if replacement is None else ()
        every.append(
            list(replacement or ())
            + [paths.links[paths.path_start[i] : paths.path_start[i + 1]].tolist() for i in kept]
        )
    flat = [path for of_pair in every for path in of_pair]
    return PairPaths(
        np.cumsum([0] + [len(of_pair) for of_pair in every], dtype=np.int64),
        np.cumsum([0] + [len(path) for path in flat], dtype=np.int64),
        np.array([link for path in flat for link in path], np.int32),
    )


def list_schedule(
    topology: Topology,
    chunk_bytes: float,
    trees: FlowTrees,
    own_paths: Mapping[tuple[int, int], Sequence[Sequence[int]]] | None = None,
) -> Transfers:
    """Broadcast all chunks down ``trees`` from time 0: every transfer as early as the order lets it start.

    At each event (an arrival, or the moment at which a path comes free) the transfers whose source holds
    their chunk are taken in order of step, then chunk, then position in ``trees``; one starts if some
    candidate path of its server pair is free: each link k has the path's ordinary rate (its smallest
    bandwidth) left at t + (latency of the links before k). The candidates are up to 8 paths of fewest links;
    the first free one is taken, in an order that differs from pair to pair, as ECMP would spread them.
    ``own_paths`` (link indices by source and target node) replaces them for some pairs. Pairs without a
    switch-only path hop over servers (``over_servers``). A link's bandwidth counts as taken by every transfer
    booked on it that ends later, also by one that begins later.

    Returns E transfers, all in the broadcast phase, in order of their start.
    """
    trees = over_servers(topology, trees)
    order = np.lexsort((np.arange(len(trees.chunk)), trees.chunk, trees.step))
    chunk, parent, child = trees.chunk[order], trees.parent[order], trees.child[order]
    count, nodes = len(chunk), topology.num_nodes
    pairs, pair = np.unique(parent.astype(np.int64) * nodes + child, return_inverse=True)
    source, target = (pairs // nodes).astype(np.int32), (pairs % nodes).astype(np.int32)
    paths = switch_paths(topology, source, target)
    if own_paths:
        paths = _merge(paths, [own_paths.get(ends) for ends in zip(source.tolist(), target.tolist())])
    delivered = chunk.astype(np.int64) * nodes + child
    needed = chunk.astype(np.int64) * nodes + parent
    by_delivery = np.argsort(delivered)
    place = np.minimum(np.searchsorted(delivered[by_delivery], needed), max(count - 1, 0))
    predecessor = (
        np.where(delivered[by_delivery[place]] == needed, by_delivery[place], -1) if count else place
    )
    rate = (
        np.minimum.reduceat(topology.bandwidth[paths.links], paths.path_start[:-1])
        if len(paths.links)
        else np.zeros(0)
    )
    chosen, start, end = _run(
        topology.bandwidth,
        topology.latency,
        float(chunk_bytes),
        predecessor.astype(np.int64),
        pair.astype(np.int64),
        paths.first,
        paths.path_start,
        paths.links,
        rate,
    )
    if (chosen < 0).any() or (parent != trees.roots[chunk])[predecessor < 0].any():
        raise ValueError("flow trees: some edge hangs on no root")
    by_start = np.argsort(start, kind="stable")
    chosen = chosen[by_start]
    lengths = np.diff(paths.path_start)[chosen]
    path_start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    offset = np.arange(path_start[-1]) - np.repeat(path_start[:-1], lengths)
    return Transfers(
        phase=np.full(count, BROADCAST, np.uint8),
        chunk=chunk[by_start].astype(np.int32),
        source=parent[by_start].astype(np.int32),
        target=child[by_start].astype(np.int32),
        path_start=path_start,
        path_links=paths.links[np.repeat(paths.path_start[:-1][chosen], lengths) + offset],
        rate=rate[chosen],
        start=start[by_start],
        end=end[by_start],
    )


def list_scheduled_allreduce(
    topology: Topology, message_bytes: float, trees: FlowTrees, planner: Mapping[str, Any]
) -> Schedule:
    """The AllReduce of ``message_bytes`` bytes that list schedules ``trees`` for both halves."""
    chunk_bytes = message_bytes / len(trees.roots)
    return allreduce_from_broadcast(
        topology,
        message_bytes,
        trees.roots,
        lambda network: list_schedule(network, chunk_bytes, trees),
        planner,
    )
