"""Random in-flight flows for an episode to start with, and how fast a plan can be beside flows."""

from dataclasses import replace

import numpy as np

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.paths import Paths
from gnnsched.collective.flows import Flows
from gnnsched.topology import Topology


def draw_flows(
    topology: Topology, paths: Paths, most: int, horizon: float, rng: np.random.Generator
) -> Flows:
    """One to ``most`` random flows, each over a candidate path that has something left when its turn comes.

    A flow takes a quarter to all of what its path has left beside all others, begins at once or, as often, within
    ``horizon`` seconds, and lasts up to as long.
    """
    left = topology.bandwidth.copy()
    start, links, rates, since, until = [0], [], [], [], []
    for path in rng.integers(paths.num_paths, size=rng.integers(1, most + 1)).tolist():
        hops = paths.links[paths.start[path] : paths.start[path + 1]].tolist()
        share, seconds = rng.uniform(0.25, 1.0), rng.uniform(0.05, 1.0) * horizon
        begin = max(0.0, rng.uniform(-1.0, 1.0)) * horizon
        spare = float(left[hops].min())
        if spare < 0.05 * paths.rate[path]:
            continue
        rate = min(share * spare, float(paths.rate[path]))
        left[hops] -= rate
        links += hops
        start.append(len(links))
        rates.append(rate)
        since.append(begin)
        until.append(begin + seconds)
    return Flows(
        np.array(start, np.int64),
        np.array(links, np.int32),
        np.array(rates),
        np.array(since),
        np.array(until),
    )


def all_gather_bound_under(topology: Topology, message_bytes: float, flows: Flows) -> float:
    """Seconds in which every participant can have every participant's M/N bytes, latency left out, beside flows.

    The least T at which no cut is worse than T where each link counts with what the flows leave of it on the mean over
    [0, T]: more time means more room, so that bisection finds it, to a millionth, from below. Infinite as
    ``all_gather_bound`` is.
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
    while not enough(high):
        low, high = high, 2.0 * high
    while high > low * (1.0 + 1e-6):
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low
