"""Random in-flight flows: a few at random, and the background traffic of a shared network."""

import numpy as np
from numpy.typing import NDArray

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


# Kinds of background traffic: one long flow between two servers, the ring of another job's AllReduce, one hot link.
ELEPHANT, RING, HOT = range(3)
# A link with less than this share of its bandwidth left gets no more traffic.
_LEAST_LEFT = 0.05


def draw_traffic(
    topology: Topology,
    paths: Paths,
    horizon: float,
    rng: np.random.Generator,
    least: float = 0.05,
    most: float = 0.3,
) -> Flows:
    """Background traffic on a share of the links, drawn from ``least`` to ``most``: elephants, rings, hot links.

    Each takes a quarter to all of what its links have left beside the others (a ring's paths alike), begins at once
    or, as often, within ``horizon`` seconds, and lasts for a fifth to double of that.
    """
    wanted = rng.uniform(least, most) * topology.num_links
    left = topology.bandwidth.copy()
    start, links, rates, since, until = [0], [], [], [], []
    crossed = np.zeros(topology.num_links, bool)
    # Where little is left, or a ring has no way round, nothing is added: the number of tries is bounded.
    for _ in range(8 * topology.num_links):
        if crossed.sum() >= wanted:
            break
        begin = max(0.0, rng.uniform(-1.0, 1.0)) * horizon
        end = begin + rng.uniform(0.2, 2.0) * horizon
        share = rng.uniform(0.25, 1.0)
        ways = _ways(topology, paths, int(rng.integers(3)), rng)
        times = np.bincount(np.concatenate(ways), minlength=topology.num_links) if ways else np.zeros(0)
        used = np.flatnonzero(times)
        if not len(used) or (left[used] < _LEAST_LEFT * topology.bandwidth[used]).any():
            continue
        rate = share * float((left[used] / times[used]).min())
        left[used] -= rate * times[used]
        crossed[used] = True
        for way in ways:
            links += way.tolist()
            start.append(len(links))
            rates.append(rate)
            since.append(begin)
            until.append(end)
    return Flows(
        np.array(start, np.int64),
        np.array(links, np.int32),
        np.array(rates, float),
        np.array(since, float),
        np.array(until, float),
    )


def _ways(topology: Topology, paths: Paths, kind: int, rng: np.random.Generator) -> list[NDArray[np.int32]]:
    """The links that one piece of traffic takes, path by path; none where it has no way."""
    if kind == HOT:
        return [np.array([rng.integers(topology.num_links)], np.int32)]
    if kind == ELEPHANT:
        chosen = [int(rng.integers(paths.num_paths))]
    else:
        members = rng.permutation(paths.num_servers)[: int(rng.integers(3, 7))]
        chosen = []
        for source, target in zip(members, np.roll(members, -1)):
            between = np.flatnonzero((paths.source == source) & (paths.target == target))
            if not len(between):
                return []
            chosen.append(int(rng.choice(between)))
    return [paths.links[paths.start[path] : paths.start[path + 1]] for path in chosen]
