"""In-flight flows: traffic that is not the plan's own, and what it takes of each link over time."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.compiling import borrowing
from gnnsched.topology import InputError, Topology

# What a link's flows may take more than its bandwidth by rounding, as a share of it.
ROUNDING = 1e-9


class Flows(NamedTuple):
    """F in-flight flows: flow i takes ``rate[i]`` bytes/s of ``links[start[i]:start[i+1]]``, which are in travel order,
    from ``since[i]`` until ``until[i]`` (s), of all of them at the same time.
    """

    start: NDArray[np.int64]
    links: NDArray[np.int32]
    rate: NDArray[np.float64]
    since: NDArray[np.float64]
    until: NDArray[np.float64]

    @property
    def num_flows(self) -> int:
        """F."""
        return len(self.rate)

    @property
    def crossing(self) -> NDArray[np.int64]:
        """The flow that crosses each entry of ``links``."""
        return np.repeat(np.arange(self.num_flows), np.diff(self.start))


NO_FLOWS = Flows(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0), np.zeros(0), np.zeros(0))


def on_links(
    links: NDArray[np.integer],
    rate: NDArray[np.float64],
    since: NDArray[np.float64],
    until: NDArray[np.float64],
) -> Flows:
    """Flows of one link each."""
    return Flows(np.arange(len(links) + 1), links.astype(np.int32), rate, since, until)


def join_flows(*flows: Flows) -> Flows:
    """All flows of several sets."""
    shift = np.cumsum([0] + [len(own.links) for own in flows])
    return Flows(
        np.concatenate([[0], *(own.start[1:] + s for own, s in zip(flows, shift))]).astype(np.int64),
        *(
            np.concatenate([getattr(own, name) for own in flows])
            for name in ("links", "rate", "since", "until")
        ),
    )


def merged(flows: Flows) -> Flows:
    """The same occupancies as few flows of one link each: what meets at one rate is one flow."""
    crossing = flows.crossing
    links, rate = flows.links, flows.rate[crossing]
    since, until = flows.since[crossing], flows.until[crossing]
    order = np.lexsort((since, rate, links))
    links, rate, since, until = links[order], rate[order], since[order], until[order]
    if not len(links):
        return NO_FLOWS
    near = 1e-12 * np.abs(until[np.isfinite(until)]).max(initial=0.0)
    begins = np.ones(len(links), bool)
    begins[1:] = (links[1:] != links[:-1]) | (rate[1:] != rate[:-1]) | (np.abs(since[1:] - until[:-1]) > near)
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(links)) - 1
    return on_links(links[first], rate[first], since[first], until[last])


class Taken(NamedTuple):
    """What flows take of m links: of link e, ``rate[k]`` bytes/s from ``time[k]`` (s) on until ``time[k+1]``, for k
    from ``start[e]`` up to ``start[e+1]``; nothing before the first and after the last, whose rate is 0.
    """

    start: NDArray[np.int64]
    time: NDArray[np.float64]
    rate: NDArray[np.float64]


def taken_by(flows: Flows, num_links: int) -> Taken:
    """What ``flows`` take together of each of ``num_links`` links over time."""
    if not flows.num_flows:
        return Taken(np.zeros(num_links + 1, np.int64), np.zeros(0), np.zeros(0))
    crossing = flows.crossing
    link = np.tile(flows.links, 2)
    time = np.concatenate((flows.since[crossing], flows.until[crossing]))
    change = np.concatenate((flows.rate[crossing], -flows.rate[crossing]))
    # At one moment what ends goes before what begins, so that sums stay as small as they can.
    order = np.lexsort((change, time, link))
    link, time, change = link[order], time[order], change[order]
    first = np.flatnonzero(np.concatenate(([True], link[1:] != link[:-1])))
    rate = np.cumsum(change)
    # Each link by itself, and rounding must not leave flows that have ended.
    rate -= np.repeat(np.concatenate(([0.0], rate[first[1:] - 1])), np.diff(np.append(first, len(link))))
    rate[np.abs(rate) <= 1e-12 * np.abs(change).max()] = 0.0
    # What ends where the next begins does so to rounding.
    apart = np.diff(time) > 1e-12 * time[np.isfinite(time)].max(initial=0.0)
    last = np.concatenate(((link[1:] != link[:-1]) | apart, [True]))
    link, time, rate = link[last], time[last], rate[last]
    return Taken(np.searchsorted(link, np.arange(num_links + 1)).astype(np.int64), time, rate)


@borrowing()
def _interval_of(start: NDArray[np.int64], times: NDArray[np.float64], link: int, time: float) -> int:
    """The last entry of what flows take of a link that begins by ``time``, or the one before the link's first."""
    low, high = start[link] - 1, start[link + 1]
    while high - low > 1:
        middle = (low + high) // 2
        if times[middle] <= time:
            low = middle
        else:
            high = middle
    return low


@borrowing()
def most_taken(
    start: NDArray[np.int64],
    times: NDArray[np.float64],
    rates: NDArray[np.float64],
    link: int,
    begin: float,
    end: float,
) -> float:
    """The most that flows take of a link at any moment from ``begin`` to ``end`` (s), bytes/s.

    ``start``, ``times`` and ``rates`` are the columns of a ``Taken``.
    """
    first, last = start[link], start[link + 1]
    if first == last:
        return 0.0
    k = _interval_of(start, times, link, begin)
    most = rates[k] if k >= first else 0.0
    k += 1
    while k < last and times[k] < end:
        most = max(most, rates[k])
        k += 1
    return most


@borrowing()
def next_fall(
    start: NDArray[np.int64], times: NDArray[np.float64], rates: NDArray[np.float64], link: int, time: float
) -> float:
    """The first moment (s) after ``time`` from which flows take less of a link than before, or infinity."""
    first, last = start[link], start[link + 1]
    if first == last:
        return np.inf
    k = _interval_of(start, times, link, time)
    before = rates[k] if k >= first else 0.0
    k += 1
    while k < last:
        if rates[k] < before:
            return times[k]
        before = rates[k]
        k += 1
    return np.inf


def falls(taken: Taken) -> NDArray[np.int64]:
    """Entries of ``taken`` from which less is taken of their link than before."""
    before = np.concatenate(([0.0], taken.rate[:-1])) if len(taken.rate) else taken.rate
    before[taken.start[:-1][np.diff(taken.start) > 0]] = 0.0
    return np.flatnonzero(taken.rate < before)


def check_flows(topology: Topology, flows: Flows) -> None:
    """InputError that names the first flow that ``topology`` cannot carry beside those before it."""
    count = flows.num_flows
    lengths = (len(flows.start) - 1, len(flows.since), len(flows.until))
    if lengths != (count, count, count) or flows.start[-1] != len(flows.links):
        raise InputError(
            "flows: arrays of unequal length; give one rate, one start and one end per flow and its links"
        )
    for i in range(count):
        links = flows.links[flows.start[i] : flows.start[i + 1]]
        if len(links) == 0 or links.min() < 0 or links.max() >= topology.num_links:
            raise InputError(
                f"flow {i}: link outside 0..{topology.num_links - 1}; name links of the topology"
            )
        if (topology.link_target[links[:-1]] != topology.link_source[links[1:]]).any():
            raise InputError(f"flow {i}: its links do not follow one another; give them in travel order")
        if not (np.isfinite(flows.rate[i]) and flows.rate[i] > 0.0):
            raise InputError(f"flow {i}: rate {flows.rate[i]} bytes/s; give a positive finite one")
        if not (np.isfinite(flows.since[i]) and flows.since[i] >= 0.0):
            raise InputError(f"flow {i}: begins at {flows.since[i]} s; give a finite moment from 0 on")
        if not (np.isfinite(flows.until[i]) and flows.until[i] > flows.since[i]):
            raise InputError(f"flow {i}: ends at {flows.until[i]} s; give a finite moment after its start")
    if _overloaded(topology, flows) < 0:
        return
    # Rates only add up: the first flow that is too much is found by halving.
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if _overloaded(topology, first_flows(flows, middle)) >= 0 else (middle, high)
        )
    link = _overloaded(topology, first_flows(flows, high))
    raise InputError(f"flow {high - 1}: link {link} carries more than its bandwidth; lower the rates")


def first_flows(flows: Flows, count: int) -> Flows:
    """The first ``count`` of the flows."""
    return Flows(
        flows.start[: count + 1],
        flows.links[: flows.start[count]],
        flows.rate[:count],
        flows.since[:count],
        flows.until[:count],
    )


def _overloaded(topology: Topology, flows: Flows) -> int:
    """The first link that the flows take more than the bandwidth of at some moment, -1 without one."""
    taken = taken_by(flows, topology.num_links)
    link = np.repeat(np.arange(topology.num_links), np.diff(taken.start))
    over = link[taken.rate > topology.bandwidth[link] * (1.0 + ROUNDING)]
    return int(over[0]) if len(over) else -1


def from_moment(flows: Flows, moment: float) -> Flows:
    """The flows on a clock that starts at ``moment`` (s): what is left of them by then."""
    return _kept(flows, np.maximum(flows.since - moment, 0.0), flows.until - moment)


def backwards(flows: Flows, opposite: NDArray[np.int32] | None, makespan: float) -> Flows:
    """The flows on a clock that runs backwards from ``makespan`` (s) to 0, as a plan sees them that is to be mirrored.

    ``opposite``: each link's opposite where the plan is made on the network itself; None where it is made on the
    reversed one. Flows that begin after ``makespan`` are left out.
    """
    links = flows.links if opposite is None else opposite[flows.links]
    # Backwards, a path's links come in the opposite order.
    lengths = np.diff(flows.start)
    position = np.arange(len(links)) - np.repeat(flows.start[:-1], lengths)
    turned = links[np.repeat(flows.start[1:] - 1, lengths) - position]
    own = flows._replace(links=turned.astype(np.int32))
    return _kept(own, np.maximum(makespan - flows.until, 0.0), makespan - flows.since)


def _kept(flows: Flows, since: NDArray[np.float64], until: NDArray[np.float64]) -> Flows:
    """The flows at other moments, without those that have no time left."""
    stays = until > since
    lengths = np.diff(flows.start)
    return Flows(
        np.concatenate(([0], np.cumsum(lengths[stays]))).astype(np.int64),
        flows.links[np.repeat(stays, lengths)],
        flows.rate[stays],
        since[stays],
        until[stays],
    )
