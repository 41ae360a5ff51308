"""What the compiled event loop reads: a network's paths, the chunks to deliver, and features that stay fixed."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.decode.packing import Trees
from gnnsched.collective.decode.paths import Paths
from gnnsched.collective.flows import NO_FLOWS, Flows, falls, taken_by
from gnnsched.topology import Topology

# Features of a chunk for a path (the phi of the score function), in the order of the columns of ``Scores.chunk``.
CHUNK_FEATURES = (
    "constant",
    "log_holders",
    "near_0",
    "log_near_0",
    "near_1",
    "log_near_1",
    "regret_duration",
    "regret_load",
    "need_of_target",
    "log_useful",
    "random_priority",
    "in_packed_tree",
    "packed_price",
    "packed_tail",
    "wait_gain",
)
# Features of an idle path, in the order of the columns of ``Scores.path``.
PATH_FEATURES = (
    "constant",
    "progress",
    "rarest",
    "log_useful",
    "log_rate_share",
    "longest_tail",
    "need_of_target",
)
NEARNESS_HEADS = 2
NEARNESS_FLOOR = 0.02


class Problem(NamedTuple):
    """One all-gather to plan: S servers, C chunks of ``chunk_bytes[0]`` bytes, P candidate paths, m links.

    ``bandwidth`` (m,) in bytes/s; ``source`` to ``through_paths`` as in ``Paths``. ``needed`` (S, C): must get the
    chunk (relays need not); ``since`` (S, C): seconds from when on the server has the chunk, inf where it must come
    first. ``log_duration`` (S, S): log
    of the least seconds for a chunk from one server to another at ordinary rates, inf without a path;
    ``path_log_load`` (P,): log of the shortest-path traffic on the path's links per bandwidth, relative to the
    mean path, ``log_load`` (S, S) its least between servers. ``tree_path``, ``tree_source`` (S, C): the path and the
    server by which the packed tree of chunk c reaches server d (-1 at the root); ``tail`` (S, C): seconds of
    transfers from that edge down as a share of the longest; ``log_price`` (P,): packing price of a path.
    ``taken_*``: what in-flight flows take of the links, as in ``Taken``; ``falls``: moments at which some take less.
    """

    bandwidth: NDArray[np.float64]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    start: NDArray[np.int64]
    links: NDArray[np.int32]
    offset: NDArray[np.float64]
    latency: NDArray[np.float64]
    rate: NDArray[np.float64]
    into: NDArray[np.int64]
    group: NDArray[np.int64]
    group_into: NDArray[np.int64]
    through: NDArray[np.int64]
    through_paths: NDArray[np.int32]
    needed: NDArray[np.bool_]
    since: NDArray[np.float64]
    chunk_bytes: NDArray[np.float64]
    log_duration: NDArray[np.float64]
    log_load: NDArray[np.float64]
    path_log_load: NDArray[np.float64]
    tree_path: NDArray[np.int32]
    tree_source: NDArray[np.int32]
    tail: NDArray[np.float64]
    log_price: NDArray[np.float64]
    taken_start: NDArray[np.int64]
    taken_time: NDArray[np.float64]
    taken_rate: NDArray[np.float64]
    falls: NDArray[np.float64]


@njit(cache=True)
def _pair_minimum(
    servers: int, source: NDArray[np.int32], target: NDArray[np.int32], value: NDArray[np.float64]
) -> NDArray[np.float64]:
    best = np.full((servers, servers), np.inf)
    for p in range(len(source)):
        best[source[p], target[p]] = min(best[source[p], target[p]], value[p])
    return best


@njit(cache=True)
def _path_load(
    servers: int,
    bandwidth: NDArray[np.float64],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    start: NDArray[np.int64],
    links: NDArray[np.int32],
) -> NDArray[np.float64]:
    """Betweenness per bandwidth, summed over the path's links, relative to the mean path."""
    pairs = np.zeros((servers, servers))
    for p in range(len(source)):
        pairs[source[p], target[p]] += 1.0
    load = np.zeros(len(bandwidth))
    for p in range(len(source)):
        for k in range(start[p], start[p + 1]):
            load[links[k]] += 1.0 / pairs[source[p], target[p]] / bandwidth[links[k]]
    total = np.zeros(len(source))
    for p in range(len(source)):
        for k in range(start[p], start[p + 1]):
            total[p] += load[links[k]]
    return total / max(total.mean(), 1e-300) if len(total) else total


def make_problem(
    topology: Topology,
    paths: Paths,
    chunk_bytes: float,
    needed: NDArray[np.bool_],
    since: NDArray[np.float64],
    trees: Trees,
    flows: Flows = NO_FLOWS,
) -> Problem:
    """Put a network's paths, who needs and has which chunks, packed trees and flows in the kernel's form."""
    servers = paths.num_servers
    taken = taken_by(flows, topology.num_links)
    duration = paths.latency + chunk_bytes / paths.rate
    path_load = _path_load(servers, topology.bandwidth, paths.source, paths.target, paths.start, paths.links)
    tree_path = np.ascontiguousarray(trees.path.T)
    tail = np.ascontiguousarray(trees.tail.T) / max(float(trees.tail.max(initial=0.0)), 1e-300)
    log_price = np.log(np.maximum(trees.price, 1e-300))
    tree_source = np.full_like(tree_path, -1)
    reached = tree_path >= 0
    tree_source[reached] = paths.source[tree_path[reached]]
    return Problem(
        topology.bandwidth,
        paths.source,
        paths.target,
        paths.start,
        paths.links,
        paths.offset,
        paths.latency,
        paths.rate,
        paths.into,
        paths.group,
        paths.group_into,
        paths.through,
        paths.through_paths,
        needed,
        since,
        np.array([chunk_bytes]),
        np.log(_pair_minimum(servers, paths.source, paths.target, duration)),
        np.log(_pair_minimum(servers, paths.source, paths.target, path_load)),
        np.log(path_load),
        tree_path,
        tree_source,
        tail,
        log_price,
        *taken,
        np.unique(taken.time[falls(taken)]),
    )
