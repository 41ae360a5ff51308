"""Random in-flight flows for an episode to start with."""

import numpy as np

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
