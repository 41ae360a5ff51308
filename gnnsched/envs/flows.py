"""In-flight flows: checked when given, drawn where an episode is to start with random ones; how fast a plan can be."""

from dataclasses import replace

import numpy as np

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.paths import Paths
from gnnsched.collective.decode.problem import Flows
from gnnsched.topology import InputError, Topology


def check_flows(topology: Topology, flows: Flows) -> None:
    """InputError that names the first flow that ``topology`` cannot carry."""
    count = len(flows.rate)
    if len(flows.start) != count + 1 or len(flows.until) != count or flows.start[-1] != len(flows.links):
        raise InputError("flows: arrays of unequal length; give one rate and one end per flow and its links")
    taken = np.zeros(topology.num_links)
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
        if not (np.isfinite(flows.until[i]) and flows.until[i] > 0.0):
            raise InputError(f"flow {i}: ends at {flows.until[i]} s; give a positive finite moment")
        np.add.at(taken, links, flows.rate[i])
        over = np.flatnonzero(taken > topology.bandwidth * (1.0 + 1e-9))
        if len(over):
            raise InputError(f"flow {i}: link {over[0]} carries more than its bandwidth; lower the rates")


def draw_flows(
    topology: Topology, paths: Paths, most: int, horizon: float, rng: np.random.Generator
) -> Flows:
    """One to ``most`` random flows, each over a candidate path that has something left when its turn comes.

    A flow takes a quarter to all of what its path has left, and ends within ``horizon`` seconds.
    """
    left = topology.bandwidth.copy()
    start, links, rates, until = [0], [], [], []
    for path in rng.integers(paths.num_paths, size=rng.integers(1, most + 1)).tolist():
        hops = paths.links[paths.start[path] : paths.start[path + 1]].tolist()
        share, end = rng.uniform(0.25, 1.0), rng.uniform(0.05, 1.0) * horizon
        spare = float(left[hops].min())
        if spare < 0.05 * paths.rate[path]:
            continue
        rate = min(share * spare, float(paths.rate[path]))
        left[hops] -= rate
        links += hops
        start.append(len(links))
        rates.append(rate)
        until.append(end)
    return Flows(np.array(start, np.int64), np.array(links, np.int32), np.array(rates), np.array(until))


def all_gather_bound_under(topology: Topology, message_bytes: float, flows: Flows) -> float:
    """Seconds in which every participant can have every participant's M/N bytes, latency left out, beside flows.

    The least T at which no cut is worse than T where each link counts with what the flows leave of it on the mean over
    [0, T]: more time means more room, so that bisection finds it, to a millionth, from below. Infinite as
    ``all_gather_bound`` is.
    """
    low = high = all_gather_bound(topology, message_bytes)
    if not len(flows.rate) or not 0.0 < low < np.inf:
        return low
    crossed = np.repeat(np.arange(len(flows.rate)), np.diff(flows.start))

    def enough(moment: float) -> bool:
        seconds = (flows.rate * np.minimum(flows.until, moment))[crossed]
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
