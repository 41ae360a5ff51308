"""Max-min fair sharing: how long the transfers of a schedule take if nobody keeps its order or its times.

Every transfer starts when its data is there, and at every moment all that are under way share the links
max-min fairly: the rates rise together until a link is full, whose transfers are then fixed, and so on.
Latency delays arrival only; the links of a path are taken at the same time.
"""

from collections.abc import Sequence
from typing import Any

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
    return simulate_fair_together([schedule], [0.0])[0]


def simulate_fair_together(schedules: Sequence[Schedule], begins: Sequence[float]) -> list[SimulationResult]:
    """Times of several jobs on one network, none of which knows of the others, by the rules of ``simulate_fair``.

    ``begins``: moment (s) from which each one's contributions are there.
    """
    schedules = [read_only(schedule) for schedule in schedules]
    topology = schedules[0].topology
    columns: dict[str, list[NDArray[Any]]] = {
        name: [] for name in ("links", "length", "size", "delay", "feeds", "needs", "since")
    }
    groups = 0
    for schedule, begin in zip(schedules, begins):
        t = schedule.transfers
        _, feeds, needs, count = planned_order(schedule)
        columns["links"].append(t.path_links)
        columns["length"].append(np.diff(t.path_start))
        columns["size"].append(np.full(len(t), schedule.chunk_bytes))
        columns["delay"].append(path_rates(schedule, topology)[1])
        columns["feeds"].append(np.where(feeds >= 0, feeds + groups, -1))
        columns["needs"].append(np.where(needs >= 0, needs + groups, -1))
        columns["since"].append(np.full(len(t), float(begin)))
        groups += count
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    start, end = np.zeros(len(joined["size"])), np.zeros(len(joined["size"]))
    _share(
        np.concatenate(([0], np.cumsum(joined["length"]))).astype(np.int64),
        joined["links"],
        topology.bandwidth,
        joined["size"],
        joined["delay"],
        joined["feeds"],
        joined["needs"],
        groups,
        joined["since"],
        start,
        end,
    )
    cuts = np.cumsum([0] + [len(schedule.transfers) for schedule in schedules])
    return [
        summarise(schedule, topology, start[a:b], end[a:b], None)
        for schedule, a, b in zip(schedules, cuts[:-1], cuts[1:])
    ]


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
    size: NDArray,
    delay: NDArray,
    feeds: NDArray,
    needs: NDArray,
    groups: int,
    since: NDArray,
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
            begins[i] = since[i]
    bytes_left = size.copy()
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
            if through <= after or bytes_left[j] <= 1e-12 * size[j]:
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
