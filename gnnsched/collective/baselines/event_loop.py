"""The compiled event loop of the list scheduler: who starts when, over which path."""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Rates that add up to the bandwidth may exceed it by rounding.
RATE_SLACK = 1e-9
# Events nearer to each other than this share of the shortest transfer are one event: they differ by rounding.
SAME_EVENT = 1e-7


class Network(NamedTuple):
    """What the loop reads of the network: links (m,) and the candidate paths of P server pairs.

    Pair p has paths ``first[p]:first[p+1]``; path i goes over ``links[path_start[i]:path_start[i+1]]``, at
    ordinary rate ``rate[i]``. Gates of a pair are the first and the last link, where all its paths share
    them: with a gate shut there is no need to try the paths. ``queue`` (P, 2): number of each gate's queue,
    or -1. Pairs share a queue whose gates are the same link ``gate`` (Q,), with the same greatest latency
    before it (``gate_ahead``) and the same least rate (``gate_rate``), so that for all of them the gate opens
    at the same moment.
    """

    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]
    first: NDArray[np.int64]
    path_start: NDArray[np.int64]
    links: NDArray[np.int32]
    rate: NDArray[np.float64]
    queue: NDArray[np.int64]
    gate: NDArray[np.int64]
    gate_ahead: NDArray[np.float64]
    gate_rate: NDArray[np.float64]


def make_network(
    bandwidth: NDArray[np.float64],
    latency: NDArray[np.float64],
    first: NDArray[np.int64],
    path_start: NDArray[np.int64],
    links: NDArray[np.int32],
) -> Network:
    """The network with its paths' ordinary rates (the smallest bandwidth on each), gates and queues."""
    rate = np.minimum.reduceat(bandwidth[links], path_start[:-1]) if len(links) else np.zeros(0)
    link, ahead, least_rate = _gates(latency, first, path_start, links, rate)
    gated = link >= 0
    both_sides = np.stack((least_rate, least_rate), axis=1)
    keys, number = np.unique(
        np.stack((link[gated].astype(np.float64), ahead[gated], both_sides[gated])),
        axis=1,
        return_inverse=True,
    )
    queue = np.full(link.shape, -1, np.int64)
    queue[gated] = number.ravel()
    gate, gate_ahead, gate_rate = (np.ascontiguousarray(key) for key in keys)
    return Network(
        bandwidth,
        latency,
        first,
        path_start,
        links,
        rate,
        queue,
        gate.astype(np.int64),
        gate_ahead,
        gate_rate,
    )


@njit(cache=True)
def _gates(
    latency: NDArray[np.float64],
    first: NDArray[np.int64],
    path_start: NDArray[np.int64],
    links: NDArray[np.int32],
    rate: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """First and last gate (P, 2) or -1, greatest latency before each (P, 2), least rate (P,) of each pair."""
    pairs = len(first) - 1
    gate, ahead, least_rate = np.full((pairs, 2), -1, np.int64), np.zeros((pairs, 2)), np.full(pairs, np.inf)
    for p in range(pairs):
        for path in range(first[p], first[p + 1]):
            begin, end = path_start[path], path_start[path + 1]
            before_last = 0.0
            for k in range(begin, end - 1):
                before_last += latency[links[k]]
            ahead[p, 1] = max(ahead[p, 1], before_last)
            least_rate[p] = min(least_rate[p], rate[path])
            for side, link in enumerate((links[begin], links[end - 1])):
                if path == first[p]:
                    gate[p, side] = link
                elif gate[p, side] != link:
                    gate[p, side] = -1
    return gate, ahead, least_rate


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


class Bookings(NamedTuple):
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
def _free_from(network: Network, bookings: Bookings, link: int, rate: float) -> float:
    """When ``link`` has ``rate`` left; minus infinity if it has it now and for ever."""
    left = network.bandwidth[link] * (1.0 + RATE_SLACK) - rate
    used = 0.0
    at = bookings.newest[link]
    while at >= 0:
        used += bookings.rate[at]
        if used > left:
            return bookings.end[at]
        at = bookings.older[at]
    return -np.inf


@njit(cache=True)
def _book(bookings: Bookings, link: int, until: float, rate: float, now: float) -> None:
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
def _book_path(
    network: Network, bookings: Bookings, path: int, start: float, chunk_bytes: float, now: float
) -> float:
    """Take the path's rate of all its links for a chunk that leaves at ``start``; return its arrival."""
    rate, ahead = network.rate[path], 0.0
    for k in range(network.path_start[path], network.path_start[path + 1]):
        link = network.links[k]
        _book(bookings, link, start + ahead + chunk_bytes / rate, rate, now)
        ahead += network.latency[link]
    return start + ahead + chunk_bytes / rate


@njit(cache=True)
def _open_from(network: Network, bookings: Bookings, queue: int) -> float:
    """From when on the queue's gate lets one of its pairs pass, at the earliest."""
    free = _free_from(network, bookings, network.gate[queue], network.gate_rate[queue])
    return free - network.gate_ahead[queue]


@njit(cache=True)
def _free_path(network: Network, bookings: Bookings, pair: int, limit: float) -> tuple[int, float]:
    """The pair's first path that is free by ``limit``, and since when; or -1, and when the soonest one is."""
    soonest = np.inf
    for path in range(network.first[pair], network.first[pair + 1]):
        earliest, ahead = -np.inf, 0.0
        for k in range(network.path_start[path], network.path_start[path + 1]):
            link = network.links[k]
            earliest = max(earliest, _free_from(network, bookings, link, network.rate[path]) - ahead)
            ahead += network.latency[link]
        if earliest <= limit:
            return path, earliest
        soonest = min(soonest, earliest)
    return -1, soonest


class Work(NamedTuple):
    """E transfers to be started, and the room for those that wait.

    Transfer i is one of server pair ``pair[i]``; its arrival lets
    ``children[child_start[i]:child_start[i+1]]`` go, and ``roots`` may go from the start. The waiting
    transfers of pair p are a heap of ``size[p]`` from ``waiting[waiting_start[p]]`` on, those parked in queue
    q one of ``parked_size[q]`` from ``parked[parked_start[q]]`` on.
    """

    chunk_bytes: float
    pair: NDArray[np.int64]
    roots: NDArray[np.int64]
    child_start: NDArray[np.int64]
    children: NDArray[np.int64]
    waiting_start: NDArray[np.int64]
    waiting: NDArray[np.int64]
    size: NDArray[np.int64]
    parked_start: NDArray[np.int64]
    parked: NDArray[np.int64]
    parked_size: NDArray[np.int64]


def run_in_order(
    network: Network, chunk_bytes: float, predecessor: NDArray[np.int64], pair: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Path (E,), start and arrival of each transfer; a transfer's index is its priority, the lowest first.

    ``predecessor`` (E,): the transfer that brings the chunk, -1 where the root sends; ``pair`` (E,). A
    transfer that waits for itself never starts and keeps path -1.
    """
    count, pairs, queues = len(pair), len(network.first) - 1, len(network.gate)
    if count == 0:
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    by_predecessor = np.argsort(predecessor, kind="stable")
    child_start = np.searchsorted(predecessor[by_predecessor], np.arange(count + 1))
    waiting_start = np.concatenate(([0], np.cumsum(np.bincount(pair, minlength=pairs))))
    parks = network.queue[pair].ravel()
    # Each transfer once for itself, once for the dead entry it leaves on overtaking the first of its pair.
    parked_start = np.concatenate(([0], np.cumsum(2 * np.bincount(parks[parks >= 0], minlength=queues))))
    room = count * int(np.diff(network.path_start).max())
    work = Work(
        float(chunk_bytes),
        pair,
        np.flatnonzero(predecessor < 0),
        child_start,
        by_predecessor,
        waiting_start,
        np.empty(count, np.int64),
        np.zeros(pairs, np.int64),
        parked_start,
        np.empty(parked_start[-1], np.int64),
        np.zeros(queues, np.int64),
    )
    bookings = Bookings(
        np.full(len(network.bandwidth), -1, np.int64),
        np.empty(room, np.int64),
        np.empty(room),
        np.empty(room),
        np.array([-1, 0]),
    )
    chosen, start, end = np.full(count, -1, np.int64), np.zeros(count), np.zeros(count)
    tolerance = SAME_EVENT * chunk_bytes / float(network.rate.max())
    _run(network, work, bookings, tolerance, chosen, start, end)
    return chosen, start, end


@njit(cache=True)
def _run(
    network: Network,
    work: Work,
    bookings: Bookings,
    tolerance: float,
    chosen: NDArray[np.int64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> None:
    """Fill in path, start and arrival (E,) of all transfers that can ever start.

    Never looks at all waiting transfers. Those of one pair share their paths, so only the first waiting one
    of a pair is tried, and only when something may have changed for it. A pair with waiting transfers is
    *parked* in the queue of a gate that is shut; or *asleep*, as something between the gates is not free; or
    to be tried in this event. A gate that opens serves its queue in order, one by one, for as long as it
    stays open. Bookings only push back the moments at which gates open and sleepers wake.
    """
    pair, pairs, queues = work.pair, len(work.size), len(work.parked_size)
    waiting, waiting_start, size = work.waiting, work.waiting_start, work.size
    parked, parked_start, parked_size = work.parked, work.parked_start, work.parked_size
    ready = np.zeros(len(pair))
    parked_in, waits_for_gate = np.full(pairs, -1, np.int64), np.zeros(queues, np.bool_)
    served = np.full(queues, -1, np.int64)  # the transfer out of this queue whose turn comes
    events = [(0.0, 0)]  # arrival of transfer i: i; pair p wakes up: -p - 1; gate of queue q: -pairs - q - 1
    events.pop()
    turn = [0]  # transfers to be tried in this event, a heap
    turn.pop()
    touched, to_serve = turn.copy(), turn.copy()  # pairs to be tried; queues that may have somebody to serve
    for i in work.roots:
        _push(waiting, waiting_start[pair[i]], size[pair[i]], i)
        size[pair[i]] += 1
    for p in range(pairs):
        if size[p] > 0:
            heappush(events, (0.0, -p - 1))
    while len(events) > 0:
        now = events[0][0]
        limit = now + tolerance
        while len(events) > 0 and events[0][0] <= limit:
            time, what = heappop(events)
            if what < -pairs:
                waits_for_gate[-what - pairs - 1] = False
                to_serve.append(-what - pairs - 1)
                continue
            if what < 0:
                touched.append(-what - 1)
                continue
            for i in work.children[work.child_start[what] : work.child_start[what + 1]]:
                p = pair[i]
                ready[i] = time
                _push(waiting, waiting_start[p], size[p], i)
                size[p] += 1
                q = parked_in[p]
                if size[p] == 1:
                    touched.append(p)
                elif q >= 0 and waiting[waiting_start[p]] == i:
                    _push(parked, parked_start[q], parked_size[q], i)
                    parked_size[q] += 1
        for p in touched:
            heappush(turn, waiting[waiting_start[p]])
        touched.clear()
        while len(turn) > 0 or len(to_serve) > 0:
            while len(to_serve) > 0:
                q = to_serve.pop()
                if waits_for_gate[q] or served[q] >= 0 or parked_size[q] == 0:
                    continue
                opens = _open_from(network, bookings, q)
                if opens > limit:
                    waits_for_gate[q] = True
                    heappush(events, (opens, -pairs - q - 1))
                    continue
                while served[q] < 0 and parked_size[q] > 0:
                    i = parked[parked_start[q]]
                    p = pair[i]
                    _pop(parked, parked_start[q], parked_size[q])
                    parked_size[q] -= 1
                    if parked_in[p] == q and waiting[waiting_start[p]] == i:
                        parked_in[p] = -1
                        served[q] = i
                        heappush(turn, i)
            if len(turn) == 0:
                break
            i = heappop(turn)
            p = pair[i]
            for q in network.queue[p]:
                if q < 0:
                    continue
                to_serve.append(q)
                if served[q] == i:
                    served[q] = -1
                if parked_in[p] < 0 and _open_from(network, bookings, q) > limit:
                    parked_in[p] = q
                    _push(parked, parked_start[q], parked_size[q], i)
                    parked_size[q] += 1
            if parked_in[p] >= 0:
                continue
            chosen[i], moment = _free_path(network, bookings, p, limit)
            if chosen[i] < 0:
                heappush(events, (moment, -p - 1))
                continue
            start[i] = max(now, ready[i], moment)
            end[i] = _book_path(network, bookings, chosen[i], start[i], work.chunk_bytes, now)
            heappush(events, (end[i], i))
            _pop(waiting, waiting_start[p], size[p])
            size[p] -= 1
            if size[p] > 0:
                heappush(turn, waiting[waiting_start[p]])
