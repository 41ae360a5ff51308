"""How long a schedule takes: a replay by its order, on its own network or on a disturbed one.

A transfer starts at the latest of its start in the file, the moment its data is there, and the moment each of
its links has the rate left beside in-flight flows and behind all transfers that come earlier in that link's order,
which is the order in which the plan lets them begin on that link (ties: the lower index). Nobody overtakes. So a
right schedule simulates to its planned times, and one on slower links shows what the disturbance costs.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.flows import most_taken, next_fall, taken_by
from gnnsched.collective.ordering import data_groups, occupancies, read_only
from gnnsched.collective.schedule import Schedule
from gnnsched.topology import InputError, Topology

# Times closer than this part of the planned makespan are the same time.
_SAME_TIME = 1e-12
# With latency a link's order may look ahead in time; each pass over the schedule settles one such look. No
# replay visits more occupancies than this, or makes more passes, before it gives up.
_MOST_VISITS = 5 * 10**8
_MOST_PASSES = 1000


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """Times in seconds, per transfer in the schedule's order and per link in the topology's.

    ``link_busy_s`` is what a link carries divided by its bandwidth, that is, the time-integral of the used
    part of it; ``bottleneck`` the index of the link with the most, None without transfers. ``truncated`` says
    why the replay could not end; the times are then too early.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    makespan: float
    link_busy_s: NDArray[np.float64]
    bottleneck: int | None
    truncated: str | None = None


def simulate(schedule: Schedule, topology: Topology | None = None) -> SimulationResult:
    """Replay ``schedule``; meant for schedules that ``verify`` accepts.

    ``topology``, if given, has the same links with other bandwidths or latencies: transfers keep their order
    and never start before their planned start; rates fall to what the path has. Raises InputError for a
    topology with other links, and for times and rates that are no positive numbers.
    """
    network = _checked(schedule, topology)
    schedule = read_only(schedule)
    t = schedule.transfers
    order, feeds, needs, groups = planned_order(schedule)
    owner, _, first, grouped = occupancies(
        t.path_start, t.path_links, schedule.topology.latency, t.start, order, network.num_links
    )
    rate, delay = path_rates(schedule, network)
    duration = schedule.chunk_bytes / rate
    cut = t.lost
    # What was cut short takes its links as long as it did.
    duration[cut] = np.clip((t.end - t.start - delay)[cut], 0.0, duration[cut])
    start = t.start.copy()
    same_time = _SAME_TIME * schedule.makespan
    taken = taken_by(schedule.flows, network.num_links)
    stuck = _replay(
        order,
        t.path_start,
        t.path_links,
        first,
        grouped,
        owner,
        network.latency,
        network.bandwidth,
        rate,
        duration,
        delay,
        feeds,
        needs,
        groups,
        *taken,
        start,
        same_time,
        min(_MOST_PASSES, max(20, _MOST_VISITS // max(1, len(t.path_links)))),
    )
    truncated = None
    if stuck >= 0:
        truncated = (
            f"the order of the transfers cannot be kept with these latencies and flows: transfer {stuck} and others "
            "wait for each other, or for ever"
        )
    return summarise(schedule, network, start, start + delay + duration, truncated)


def _checked(schedule: Schedule, topology: Topology | None) -> Topology:
    ours, t = schedule.topology, schedule.transfers
    network = ours if topology is None else topology
    same = np.array_equal(ours.link_source, network.link_source)
    if not same or not np.array_equal(ours.link_target, network.link_target):
        raise InputError(
            f"topology {network.name!r}: other links than the schedule's {ours.name!r}; plan again"
        )
    odd = ~(np.isfinite(t.start) & np.isfinite(t.end) & np.isfinite(t.rate) & (t.rate > 0))
    if odd.any():
        i = int(np.argmax(odd))
        raise InputError(f"transfer {i}: its times and rate cannot be simulated; see what verify says of it")
    return network


def planned_order(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    """Transfers by planned start, and the data that each feeds and needs (see ``data_groups``)."""
    t = schedule.transfers
    order = np.argsort(t.start, kind="stable")
    slack = 0.0
    if len(t):
        slack = max(0.0, min(1e-9 * schedule.makespan, 0.5 * float((t.end - t.start).min())))
    feeds, needs, groups = data_groups(
        t.phase,
        t.chunk,
        t.source,
        t.target,
        t.start,
        t.end,
        t.lost,
        order,
        schedule.roots,
        schedule.topology.num_nodes,
        slack,
    )
    return order, feeds, needs, groups


def path_rates(schedule: Schedule, network: Topology) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each transfer's rate, at most what the links of its path have, and its path latency."""
    t = schedule.transfers
    if not len(t):
        return t.rate, t.rate
    begins = t.path_start[:-1]
    rate = np.minimum(t.rate, np.minimum.reduceat(network.bandwidth[t.path_links], begins))
    return rate, np.add.reduceat(network.latency[t.path_links], begins)


def summarise(
    schedule: Schedule,
    network: Topology,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    truncated: str | None,
) -> SimulationResult:
    """Makespan, busy times and bottleneck of simulated times."""
    carried = np.bincount(schedule.transfers.path_links, minlength=network.num_links) * schedule.chunk_bytes
    busy = carried / network.bandwidth
    some = len(start) > 0
    return SimulationResult(
        start,
        end,
        float(end.max()) if some else 0.0,
        busy,
        int(np.argmax(busy)) if some else None,
        truncated,
    )


@njit(cache=True)
def _replay(
    order: NDArray,
    path_start: NDArray,
    path_links: NDArray,
    first: NDArray,
    grouped: NDArray,
    owner: NDArray,
    latency: NDArray,
    bandwidth: NDArray,
    rate: NDArray,
    duration: NDArray,
    delay: NDArray,
    feeds: NDArray,
    needs: NDArray,
    groups: int,
    taken_start: NDArray,
    taken_time: NDArray,
    taken_rate: NDArray,
    start: NDArray,
    same_time: float,
    most_passes: int,
) -> int:
    """Raise ``start`` from the planned starts to the simulated ones; a transfer that never settles, or -1.

    All conditions are lower bounds that grow with the other starts, so raising every transfer to what the
    others ask of it, over and over, ends at the earliest times that meet them all. In planned order nearly
    everything settles in the first pass; a pass that changes nothing is the last.
    """
    hops = len(path_links)
    # Per link in its order: begin, end and rate of each occupancy, and the latest end up to there.
    place = np.empty(hops, np.int64)
    begin = np.empty(hops)
    until = np.empty(hops)
    taken = np.empty(hops)
    latest = np.empty(hops)
    for p in range(hops):
        place[grouped[p]] = p
        taken[p] = rate[owner[grouped[p]]]
    for i in order:
        at = start[i]
        for k in range(path_start[i], path_start[i + 1]):
            begin[place[k]] = at
            until[place[k]] = at + duration[i]
            at += latency[path_links[k]]
    for e in range(len(first) - 1):
        high = -np.inf
        for p in range(first[e], first[e + 1]):
            high = max(high, until[p])
            latest[p] = high
    ready = np.full(groups, -np.inf)
    for i in order:
        if feeds[i] >= 0:
            ready[feeds[i]] = max(ready[feeds[i]], start[i] + delay[i] + duration[i])
    moved = -1
    for _ in range(most_passes):
        moved = -1
        for i in order:
            t = start[i]
            if needs[i] >= 0 and ready[needs[i]] > t + same_time:
                t = ready[needs[i]]
            offset = 0.0
            for k in range(path_start[i], path_start[i + 1]):
                e = path_links[k]
                p = place[k]
                at = t + offset
                if p > first[e] and begin[p - 1] > at + same_time:
                    at = begin[p - 1]
                limit = bandwidth[e] * (1 + 1e-9) - rate[i]
                # What was cut short before it got here takes nothing.
                while duration[i] > 0.0:
                    # Flows that begin while the transfer is under way count from its start on.
                    load = most_taken(
                        taken_start, taken_time, taken_rate, e, at + same_time, at + duration[i] - same_time
                    )
                    release = np.inf if load == 0.0 else next_fall(taken_start, taken_time, taken_rate, e, at)
                    q = p - 1
                    while q >= first[e] and latest[q] > at + same_time:
                        if until[q] > at + same_time:
                            load += taken[q]
                            release = min(release, until[q])
                        q -= 1
                    if load <= limit:
                        break
                    if release == np.inf:
                        return i  # flows leave it too little for ever
                    at = release
                if at > t + offset + same_time:
                    t = at - offset
                offset += latency[e]
            if t > start[i]:
                moved = i
                start[i] = t
                if feeds[i] >= 0:
                    ready[feeds[i]] = max(ready[feeds[i]], t + delay[i] + duration[i])
            at = t
            for k in range(path_start[i], path_start[i + 1]):
                p = place[k]
                begin[p] = at
                until[p] = at + duration[i]
                latest[p] = until[p]
                if p > first[path_links[k]]:
                    latest[p] = max(latest[p], latest[p - 1])
                at += latency[path_links[k]]
        if moved < 0:
            return -1
    return moved
