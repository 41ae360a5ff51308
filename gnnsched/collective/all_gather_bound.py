"""Lower bounds on all-gather, reduce-scatter and one after the other: the worst cut of the network."""

from fractions import Fraction
from math import gcd, inf, lcm

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.cuts import LARGEST_FLOW, CutFinder
from gnnsched.topology import Topology


def all_gather_bound(topology: Topology, message_bytes: float = 1.0) -> float:
    """Seconds in which every participant can have every participant's M/N bytes, latency left out.

    (M/N) * max over node sets S that leave out a participant of (participants in S) / (capacity leaving S),
    by Newton iteration on minimum cuts (the bottleneck cut of ForestColl, arXiv 2402.06787). The value is
    always that of a cut, evaluated exactly. The cut is the worst one wherever the bandwidths are small
    multiples of a common unit; for arbitrary ones no cut is worse by more than a part of links / 2**31.
    Infinite where no link enters some participant.
    """
    participants = topology.participants
    count = len(participants)
    if count < 2:
        return 0.0
    capacity, unit = _common_unit(topology.bandwidth)
    entering = np.zeros(topology.num_nodes, object)
    for target, units in zip(topology.link_target.tolist(), capacity):
        entering[target] += units
    # The participant with the least capacity in goes first: its cut is often the worst one already.
    order = sorted(participants.tolist(), key=lambda node: (entering[node], node))
    if entering[order[0]] == 0:
        return inf
    ratio = Fraction(count - 1, entering[order[0]])
    finder = CutFinder(topology)
    shares = topology.is_participant[topology.servers].astype(np.int64)
    supply, links = _integer_capacities(ratio, capacity, count)
    for target in order:
        while True:
            side = finder.smallest_cut(supply * shares, links, target, supply * count)
            if side is None:
                break
            leaving = side[topology.link_source] & ~side[topology.link_target]
            units = sum(capacity[e] for e in np.flatnonzero(leaving))
            if units == 0:
                return inf
            found = Fraction(int((side & topology.is_participant).sum()), units)
            if found <= ratio:  # a cut that only rounding puts below N
                break
            ratio = found
            supply, links = _integer_capacities(ratio, capacity, count)
        shares[np.searchsorted(topology.servers, target)] = count
    return float(Fraction(message_bytes) / count * ratio / unit)


def reduce_scatter_bound(topology: Topology, message_bytes: float = 1.0) -> float:
    """Seconds of the best reduce-scatter: the all-gather on the reversed links."""
    return all_gather_bound(topology.reversed(), message_bytes)


def rs_ag_bound(topology: Topology, message_bytes: float = 1.0) -> float:
    """Seconds of the best reduce-scatter followed by the best all-gather, latency left out."""
    gather = all_gather_bound(topology, message_bytes)
    # A network of full-duplex cables is its own reverse.
    return gather + (
        gather if topology.opposite is not None else reduce_scatter_bound(topology, message_bytes)
    )


def _common_unit(bandwidth: NDArray[np.float64]) -> tuple[list[int], Fraction]:
    """The bandwidths as whole multiples of their largest common unit (bytes/s), without rounding."""
    exact = [Fraction(b) for b in bandwidth.tolist()]
    denominator = lcm(*(b.denominator for b in exact))
    whole = [int(b * denominator) for b in exact]
    common = gcd(*whole)
    return [units // common for units in whole], Fraction(common, denominator)


def _integer_capacities(ratio: Fraction, capacity: list[int], count: int) -> tuple[int, NDArray[np.int64]]:
    """Arc capacities proportional to 1 from the source and ratio * capacity on the links.

    Without rounding where they fit; otherwise as large as they may be and rounded down, so that no cut that
    is too small is missed.
    """
    supply = ratio.denominator
    scale = Fraction(1)
    if supply * count > LARGEST_FLOW:
        supply = LARGEST_FLOW // count
        scale = Fraction(supply, ratio.denominator)
    factor = ratio.numerator * scale
    links = [min(int(factor * units), LARGEST_FLOW) for units in capacity]
    return supply, np.array(links, np.int64)
