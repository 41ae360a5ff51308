"""Max-min fair sharing: how long the transfers of a schedule take if nobody keeps its order or its times.

Every transfer starts when its data is there, and at every moment all that are under way share the links
max-min fairly: the rates rise together until a link is full, whose transfers are then fixed, and so on.
Latency delays arrival only; the links of a path are taken at the same time.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.ordering import read_only
from gnnsched.collective.schedule import Schedule
from gnnsched.collective.simulator import SimulationResult, path_rates, planned_order, summarise


def simulate_fair(schedule: Schedule) -> SimulationResult:
    """Times of ``schedule``'s transfers under max-min fair sharing; what waits for what is kept.

    Meant for schedules that ``verify`` accepts; their starts, ends and rates count only in so far as they say
    which data each transfer takes along.
    """
    schedule = read_only(schedule)
    t, topology = schedule.transfers, schedule.topology
    _, feeds, needs, groups = planned_order(schedule)
    _, delay = path_rates(schedule, topology)
    start, end = np.zeros(len(t)), np.zeros(len(t))
    _share(
        t.path_start,
        t.path_links,
        topology.bandwidth,
        schedule.chunk_bytes,
        delay,
        feeds,
        needs,
        groups,
        start,
        end,
    )
    return summarise(schedule, topology, start, end, None)


@njit(cache=True)
def _fair_rates(
    active: NDArray, path_start: NDArray, path_links: NDArray, bandwidth: NDArray, rate: NDArray
) -> None:
    """Fill in ``rate`` for the transfers in ``active`` by progressive filling."""
    left = bandwidth.copy()
    sharers = np.zeros(len(bandwidth), np.int64)
    for i in active:
        rate[i] = -1.0
        for k in range(path_start[i], path_start[i + 1]):
            sharers[path_links[k]] += 1
    fixed = 0
    while fixed < len(active):
        share, full = np.inf, -1
        for e in range(len(bandwidth)):
            if sharers[e] > 0 and left[e] / sharers[e] < share:
                share, full = left[e] / sharers[e], e
        for i in active:
            if rate[i] >= 0:
                continue
            crosses = False
            for k in range(path_start[i], path_start[i + 1]):
                crosses = crosses or path_links[k] == full
            if crosses:
                rate[i] = share
                fixed += 1
                for k in range(path_start[i], path_start[i + 1]):
                    left[path_links[k]] = max(0.0, left[path_links[k]] - share)
                    sharers[path_links[k]] -= 1


@njit(cache=True)
def _share(
    path_start: NDArray,
    path_links: NDArray,
    bandwidth: NDArray,
    chunk_bytes: float,
    delay: NDArray,
    feeds: NDArray,
    needs: NDArray,
    groups: int,
    start: NDArray,
    end: NDArray,
) -> None:
    """Fill in ``start`` and ``end``, event by event: data becomes complete, or a transfer is through."""
    count = len(path_start) - 1
    missing = np.zeros(groups, np.int64)  # transfers that a group's data still waits for
    ready = np.zeros(groups)
    for i in range(count):
        if feeds[i] >= 0:
            missing[feeds[i]] += 1
    begins = np.full(count, np.inf)  # when a transfer's data is there, once known
    for i in range(count):
        if needs[i] < 0:
            begins[i] = 0.0
    bytes_left = np.full(count, chunk_bytes)
    rate = np.zeros(count)
    under_way = np.zeros(count, np.bool_)
    done = 0
    now = 0.0
    while done < count:
        for i in range(count):
            if not under_way[i] and bytes_left[i] > 0 and begins[i] <= now:
                under_way[i] = True
                start[i] = begins[i]
        active = np.flatnonzero(under_way)
        _fair_rates(active, path_start, path_links, bandwidth, rate)
        after = np.inf
        for i in range(count):
            if under_way[i]:
                after = min(after, now + bytes_left[i] / rate[i])
            elif bytes_left[i] > 0:
                after = min(after, begins[i])
        passed = after - now
        for j in active:
            through = now + bytes_left[j] / rate[j]
            bytes_left[j] -= passed * rate[j]
            if through <= after or bytes_left[j] <= 1e-12 * chunk_bytes:
                bytes_left[j] = 0.0
                under_way[j] = False
                end[j] = after + delay[j]
                done += 1
                fed = feeds[j]
                if fed >= 0:
                    missing[fed] -= 1
                    ready[fed] = max(ready[fed], end[j])
                    if missing[fed] == 0:
                        begins[needs == fed] = ready[fed]
        now = after
