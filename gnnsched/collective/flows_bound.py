"""Lower bounds on all-gather and AllReduce beside in-flight flows, and with servers that are ready late."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.flows import Flows, from_moment
from gnnsched.topology import Topology

# Where flows make a bound more than so many times as long, they are taken to leave nothing for ever.
MOST_DELAY = 1e6


def entry_bound_under(topology: Topology, entering: NDArray[np.float64], flows: Flows) -> float:
    """Seconds in which ``entering`` bytes (num_nodes,) can have entered each node over the links into it, beside flows.

    A quick lower bound, to a thousandth, infinite where some links are too busy for ever.
    """
    crossed = flows.crossing

    def short(moment: float) -> bool:
        seconds = (np.minimum(flows.until, moment) - np.minimum(flows.since, moment))[crossed]
        room = topology.bandwidth * moment - np.bincount(
            flows.links, flows.rate[crossed] * seconds, topology.num_links
        )
        into = np.bincount(topology.link_target, np.maximum(room, 0.0), topology.num_nodes)
        return bool((into < entering * (1.0 - 1e-12)).any())

    capacity = np.bincount(topology.link_target, topology.bandwidth, topology.num_nodes)
    low = high = float((entering / np.maximum(capacity, 1e-300)).max(initial=0.0))
    first = low
    while short(high):
        if high > MOST_DELAY * first:
            return np.inf
        low, high = high, 2.0 * high
    while high > low * 1.001:
        middle = (low + high) / 2.0
        low, high = (middle, high) if short(middle) else (low, middle)
    return low


def all_gather_bound_under(topology: Topology, message_bytes: float, flows: Flows) -> float:
    """Seconds in which every participant can have every participant's M/N bytes, latency left out, beside flows.

    The least T at which no cut is worse than T where each link counts with what the flows leave of it on the mean over
    [0, T]: more time means more room, so that bisection finds it, to a millionth, from below. Infinite as
    ``all_gather_bound`` is, and where flows leave next to nothing for ever.
    """
    low = high = all_gather_bound(topology, message_bytes)
    if not flows.num_flows or not 0.0 < low < np.inf:
        return low
    crossed = flows.crossing

    def enough(moment: float) -> bool:
        seconds = (flows.rate * (np.minimum(flows.until, moment) - np.minimum(flows.since, moment)))[crossed]
        taken = np.bincount(flows.links, seconds, topology.num_links) / moment
        # A link that is taken whole keeps next to nothing, as links without bandwidth are not known.
        left = np.maximum(topology.bandwidth - taken, 1e-9 * topology.bandwidth)
        return all_gather_bound(replace(topology, bandwidth=left), message_bytes) <= moment

    if enough(low):
        return low
    first = low
    while not enough(high):
        if high > MOST_DELAY * first:
            return np.inf
        low, high = high, 2.0 * high
    while high > low * (1.0 + 1e-6):
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low


def rs_ag_bound_under(
    topology: Topology, message_bytes: float, flows: Flows, ready: NDArray[np.float64] | None = None
) -> float:
    """Seconds of the best reduce-scatter and then all-gather beside flows, with equal shares of roots.

    Latency left out. The all-gather begins when no reduce-scatter can have ended sooner; one that begins later does not
    end sooner, as it has less of each link. ``ready`` (num_nodes,): seconds from when on each server's contribution is
    there; a server can send all that is not rooted at it from then on at the earliest.
    """
    reduced = all_gather_bound_under(topology.reversed(), message_bytes, flows)
    if ready is not None and len(topology.participants) > 1:
        out = np.bincount(topology.link_source, topology.bandwidth, topology.num_nodes)
        count = len(topology.participants)
        own = ready + message_bytes * (count - 1) / count / np.maximum(out, 1e-300)
        reduced = max(reduced, float(own[topology.participants].max()))
    return reduced + all_gather_bound_under(topology, message_bytes, from_moment(flows, reduced))
