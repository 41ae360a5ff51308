"""New times for the transfers of a schedule, forwards: list scheduling in its order, around what is in the way now.

The order, the paths and what waits for what are kept; starts and rates are not. At every moment at which something
becomes free, the transfers whose data is there are looked at in planned order. One starts at its ordinary rate where
its links have that left until it is through, or at what they have left where that ends no later than waiting for
more would, going by what is booked so far. So a plan that was made for another moment, beside other flows, or for
servers that turned out to be late becomes a right one, and phases that were planned one after the other overlap
where links are idle.
"""

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.flows import most_taken, next_fall, taken_by
from gnnsched.collective.ordering import group_by_key, read_only
from gnnsched.collective.schedule import REDUCE, Schedule, chosen_transfers
from gnnsched.collective.simulator import planned_order
from gnnsched.topology import InputError

# A rate within this of the ordinary one counts as the whole of it.
_WHOLE = 1.0 - 1e-9
# Moments closer than this part of the planned makespan are one.
_SAME_TIME = 1e-11


def retime(
    schedule: Schedule,
    keep: bool,
    cap: bool,
    floor: float = 0.05,
    available: NDArray[np.float64] | None = None,
) -> Schedule:
    """``schedule`` with the earliest times that its order allows beside ``schedule.flows``, after ``schedule.ready``.

    ``keep``: on no link does a transfer overtake another; else one goes first where the other has to wait. ``cap``:
    none gets a higher rate than planned. ``floor``: least share of its ordinary rate at which a transfer may start.
    Kept and capped, a plan whose surroundings are what it was made for keeps its times. Transfers come back in order
    of their start. ``available`` (num_nodes, C): seconds from when on what a server has of a chunk at the beginning is
    there; None: its own contribution when it is ready. Raises InputError where flows without end leave some transfer
    too little.
    """
    return retime_together([schedule], keep, cap, floor, available)[0]


def retime_together(
    schedules: Sequence[Schedule],
    keep: bool,
    cap: bool,
    floor: float = 0.05,
    available: NDArray[np.float64] | None = None,
) -> list[Schedule]:
    """Several jobs on one network, beside the flows of the first, as ``retime`` does it for one."""
    schedules = [read_only(schedule) for schedule in schedules]
    topology = schedules[0].topology
    parts = [_columns(schedule, cap, available) for schedule in schedules if len(schedule.transfers)]
    if not parts:
        return schedules
    groups = np.cumsum([0] + [part["groups"] for part in parts])
    hops = np.cumsum([0] + [len(part["links"]) for part in parts])

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([part[name] for part in parts])

    def numbered(name: str) -> NDArray[np.int64]:
        return np.concatenate(
            [np.where(part[name] >= 0, part[name] + g, -1) for part, g in zip(parts, groups)]
        )

    planned = joined("planned")
    order = np.argsort(planned, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    path_start = np.concatenate([[0], *(part["path_start"][1:] + h for part, h in zip(parts, hops))])
    links, ordinary, size = joined("links"), joined("ordinary"), joined("size")
    start, rate = np.full(len(order), np.inf), np.zeros(len(order))
    usual = max(float((size / ordinary).max()), *(schedule.makespan for schedule in schedules))
    stuck = _retime(
        order,
        rank,
        path_start.astype(np.int64),
        links,
        topology.latency,
        topology.bandwidth,
        ordinary,
        joined("latency"),
        size,
        numbered("feeds"),
        numbered("needs"),
        int(groups[-1]),
        joined("earliest"),
        *taken_by(schedules[0].flows, topology.num_links),
        keep,
        floor,
        _SAME_TIME * usual,
        start,
        rate,
    )
    if stuck >= 0:
        link = links[path_start[stuck]]
        ends = (topology.node_ids[node[link]] for node in (topology.link_source, topology.link_target))
        raise InputError(
            f"in-flight flows: leave a chunk too little of its way over link {' -> '.join(map(str, ends))} for ever; "
            "end them or lower their rates"
        )
    result = []
    first = 0
    for schedule in schedules:
        last = first + len(schedule.transfers)
        own = slice(first, last)
        result.append(_timed(schedule, start[own], rate[own], rank[own]))
        first = last
    return result


def _columns(schedule: Schedule, cap: bool, available: NDArray[np.float64] | None) -> dict[str, Any]:
    """What ``_retime`` needs of one job's transfers."""
    t, topology = schedule.transfers, schedule.topology
    _, feeds, needs, groups = planned_order(schedule)
    ordinary = np.minimum.reduceat(topology.bandwidth[t.path_links], t.path_start[:-1])
    earliest = np.zeros(len(t))
    if available is not None:
        earliest = available[t.source, t.chunk]
    elif schedule.ready is not None:
        own = (t.phase == REDUCE) | (t.source == schedule.roots[t.chunk])
        earliest[own] = schedule.ready[t.source[own]]
    return {
        "planned": t.start,
        "path_start": t.path_start,
        "links": t.path_links,
        "ordinary": np.minimum(ordinary, t.rate) if cap else ordinary,
        "latency": np.add.reduceat(topology.latency[t.path_links], t.path_start[:-1]),
        "size": np.full(len(t), schedule.chunk_bytes),
        "feeds": feeds,
        "needs": needs,
        "groups": groups,
        "earliest": earliest,
    }


def _timed(
    schedule: Schedule, start: NDArray[np.float64], rate: NDArray[np.float64], rank: NDArray[np.int64]
) -> Schedule:
    """The schedule with new times, its transfers in order of their start."""
    t = schedule.transfers
    if not len(t):
        return schedule
    latency = np.add.reduceat(schedule.topology.latency[t.path_links], t.path_start[:-1])
    # Times that rounding takes apart must not undo the order of equals.
    after = np.lexsort((rank, start))
    timed = replace(t, rate=rate, start=start, end=start + latency + schedule.chunk_bytes / rate)
    return replace(schedule, transfers=chosen_transfers(timed, after))


@njit(cache=True)
def _left(
    e: int,
    time: float,
    head: NDArray,
    following: NDArray,
    ends: NDArray,
    rates: NDArray,
    bandwidth: NDArray,
) -> tuple[float, float]:
    """What bookings leave of a link from ``time`` on (bytes/s), and when the next of them ends (s)."""
    left, release = bandwidth[e], np.inf
    booking = head[e]
    while booking >= 0 and ends[booking] > time:
        left -= rates[booking]
        release = ends[booking]
        booking = following[booking]
    return left, release


@njit(cache=True)
def _opening(
    i: int,
    t: float,
    path_start: NDArray,
    path_links: NDArray,
    latency: NDArray,
    ordinary: NDArray,
    size: NDArray,
    head: NDArray,
    following: NDArray,
    ends: NDArray,
    rates: NDArray,
    bandwidth: NDArray,
    taken_start: NDArray,
    taken_time: NDArray,
    taken_rate: NDArray,
    same_time: float,
) -> tuple[float, float]:
    """The rate that transfer i can have from ``t`` on until it is through (0: none), and when that may change (s)."""
    rate = ordinary[i]
    change = np.inf
    offset = 0.0
    for k in range(path_start[i], path_start[i + 1]):
        e = path_links[k]
        left, release = _left(e, t + offset + same_time, head, following, ends, rates, bandwidth)
        rate = min(rate, left)
        change = min(change, release - offset)
        fall = next_fall(taken_start, taken_time, taken_rate, e, t + offset + same_time)
        change = min(change, fall - offset)
        offset += latency[e]
    whole = ordinary[i]
    # The slower, the more flows it meets.
    while rate >= 1e-6 * whole:
        least = rate
        offset = 0.0
        for k in range(path_start[i], path_start[i + 1]):
            e = path_links[k]
            begin = t + offset
            most = most_taken(
                taken_start,
                taken_time,
                taken_rate,
                e,
                begin + same_time,
                begin + size[i] / rate - same_time,
            )
            if most > 0.0:
                left, _ = _left(e, begin + same_time, head, following, ends, rates, bandwidth)
                least = min(least, left - most)
            offset += latency[e]
        if least >= rate * _WHOLE:
            return rate, change
        rate = least
    return 0.0, change


@njit(cache=True)
def _queues(
    order: NDArray, path_start: NDArray, path_links: NDArray, links: int
) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Each link's transfers in ``order``: (transfer of each entry of ``path_links``, first place of each link, entries
    by link and order, place of each entry).
    """
    hops = len(path_links)
    owner = np.empty(hops, np.int64)
    entries = np.empty(hops, np.int64)
    n = 0
    for i in order:
        for k in range(path_start[i], path_start[i + 1]):
            owner[k] = i
            entries[n] = k
            n += 1
    first, queue = group_by_key(path_links, entries, links)
    position = np.empty(hops, np.int64)
    for n in range(hops):
        position[queue[n]] = n
    return owner, first[:-1].copy(), queue, position


@njit(cache=True, nogil=True)
def _retime(
    order: NDArray,
    rank: NDArray,
    path_start: NDArray,
    path_links: NDArray,
    latency: NDArray,
    bandwidth: NDArray,
    ordinary: NDArray,
    delay: NDArray,
    size: NDArray,
    feeds: NDArray,
    needs: NDArray,
    groups: int,
    earliest: NDArray,
    taken_start: NDArray,
    taken_time: NDArray,
    taken_rate: NDArray,
    keep: bool,
    floor: float,
    same_time: float,
    start: NDArray,
    rate: NDArray,
) -> int:
    """Fill in ``start`` (s) and ``rate`` (bytes/s); returns a transfer that can never start, or -1."""
    count = len(path_start) - 1
    missing = np.zeros(groups, np.int64)
    ready = np.zeros(groups)
    for i in range(count):
        if feeds[i] >= 0:
            missing[feeds[i]] += 1
    # Transfers by the data that they wait for; those that wait for none come last.
    key = np.where(needs >= 0, needs, groups)
    first, waiting = group_by_key(key, order, groups + 1)
    # What each transfer still waits for: its data, and its turn on each link.
    waits = np.zeros(count, np.int64)
    for i in range(count):
        waits[i] = 1 if needs[i] >= 0 else 0
    owner, turn, queue, position = _queues(order, path_start, path_links, len(bandwidth))
    if keep:
        for i in range(count):
            for k in range(path_start[i], path_start[i + 1]):
                waits[i] += position[k] > turn[path_links[k]]
    heap = [(0.0, 0)]
    heap.pop()
    for i in order:
        if waits[i] == 0:
            heappush(heap, (earliest[i], rank[i]))
    # Bookings: a list per link, the latest end first; booking k is that of ``path_links[k]``.
    head = np.full(len(bandwidth), -1, np.int64)
    following = np.full(len(path_links), -1, np.int64)
    ends = np.zeros(len(path_links))
    rates = np.zeros(len(path_links))
    left_over = count
    # Transfers of one moment, by rank.
    due = [0]
    due.pop()
    looked = np.zeros(count)
    now = 0.0
    while len(heap) > 0 or len(due) > 0:
        if len(due) == 0:
            now = heap[0][0]
        while len(heap) > 0 and heap[0][0] <= now + same_time:
            moment, place = heappop(heap)
            looked[place] = moment
            heappush(due, place)
        place = heappop(due)
        t = looked[place]
        i = order[place]
        own, change = _opening(
            i,
            t,
            path_start,
            path_links,
            latency,
            ordinary,
            size,
            head,
            following,
            ends,
            rates,
            bandwidth,
            taken_start,
            taken_time,
            taken_rate,
            same_time,
        )
        starts = own >= ordinary[i] * _WHOLE
        if not starts and own >= floor * ordinary[i]:
            # At less than its ordinary rate only where waiting for more would not end sooner.
            starts = True
            through = t + size[i] / own
            moment = change
            while moment + size[i] / ordinary[i] < through - same_time:
                later, after = _opening(
                    i,
                    moment,
                    path_start,
                    path_links,
                    latency,
                    ordinary,
                    size,
                    head,
                    following,
                    ends,
                    rates,
                    bandwidth,
                    taken_start,
                    taken_time,
                    taken_rate,
                    same_time,
                )
                if later > 0.0 and moment + size[i] / later < through - same_time:
                    starts = False
                    break
                moment = after
        if not starts:
            if change == np.inf:
                return i
            heappush(heap, (max(change, t), place))
            continue
        start[i] = t
        rate[i] = own
        left_over -= 1
        at = t
        for k in range(path_start[i], path_start[i + 1]):
            e = path_links[k]
            # Bookings that are over come last in the list: cut them off.
            ends[k] = at + size[i] / own
            rates[k] = own
            before = -1
            other = head[e]
            while other >= 0 and ends[other] > ends[k]:
                before = other
                other = following[other]
            following[k] = other
            if before < 0:
                head[e] = k
            else:
                following[before] = k
            before = k
            while other >= 0 and ends[other] > t:
                before = other
                other = following[other]
            following[before] = -1
            at += latency[e]
            if keep:
                turn[e] += 1
                if turn[e] < len(queue) and path_links[queue[turn[e]]] == e:
                    j = owner[queue[turn[e]]]
                    waits[j] -= 1
                    earliest[j] = max(earliest[j], t)
                    if waits[j] == 0:
                        heappush(heap, (earliest[j], rank[j]))
        if feeds[i] >= 0:
            g = feeds[i]
            ready[g] = max(ready[g], t + delay[i] + size[i] / own)
            missing[g] -= 1
            if missing[g] == 0:
                for n in range(first[g], first[g + 1]):
                    j = waiting[n]
                    waits[j] -= 1
                    earliest[j] = max(earliest[j], ready[g])
                    if waits[j] == 0:
                        heappush(heap, (earliest[j], rank[j]))
    if left_over > 0:
        for i in order:
            if rate[i] == 0.0:
                return i
    return -1
