"""Equally short paths between servers, as ECMP spreads traffic over them."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.topology import InputError, Topology

PATHS_PER_PAIR = 8
# Path counts above this are not told apart; they only serve to spread a few choices over all paths.
MOST_PATHS = 1 << 40


class PairPaths(NamedTuple):
    """Candidate paths of P server pairs: pair p has paths ``first[p]:first[p+1]``, in order of preference.

    Path i goes over ``links[path_start[i]:path_start[i+1]]``, in travel order. int64 (P+1,), int64, int32.
    """

    first: NDArray[np.int64]
    path_start: NDArray[np.int64]
    links: NDArray[np.int32]


@njit(cache=True)
def _shortest_paths(
    origin: int,
    targets: NDArray[np.int32],
    may_cross: NDArray[np.bool_],
    link_source: NDArray[np.int32],
    link_target: NDArray[np.int32],
    out_start: NDArray[np.int64],
    out_links: NDArray[np.int32],
    in_start: NDArray[np.int64],
    in_links: NDArray[np.int32],
    per_pair: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Up to ``per_pair`` paths of fewest links from ``origin`` to each target; inner nodes ``may_cross``.

    Returns paths per target, links per path, and the links. Where there are more, the chosen ones are spread
    evenly over all of them; the first one differs from pair to pair.
    """
    n = len(may_cross)
    distance = np.full(n, -1, np.int64)
    count = np.zeros(n, np.int64)
    queue = np.empty(n, np.int32)
    queue[0], distance[origin], count[origin] = origin, 0, 1
    head, tail = 0, 1
    while head < tail:
        at = queue[head]
        head += 1
        if at != origin and not may_cross[at]:
            continue
        for i in range(out_start[at], out_start[at + 1]):
            to = link_target[out_links[i]]
            if distance[to] < 0:
                distance[to] = distance[at] + 1
                queue[tail] = to
                tail += 1
            if distance[to] == distance[at] + 1:
                count[to] = min(count[to] + count[at], MOST_PATHS)
    paths = np.zeros(len(targets), np.int64)
    total_paths, total_links = 0, 0
    for t in range(len(targets)):
        paths[t] = min(count[targets[t]], per_pair)
        total_paths += paths[t]
        total_links += paths[t] * max(distance[targets[t]], 0)
    length = np.empty(total_paths, np.int64)
    links = np.empty(total_links, np.int32)
    done, end = 0, 0
    for t in range(len(targets)):
        for k in range(paths[t]):
            # The index counts a node's paths link by link; undoing the count from the target gives the path.
            index = (origin + targets[t] + k * count[targets[t]] // paths[t]) % count[targets[t]]
            at = targets[t]
            hops = distance[at]
            length[done] = hops
            done += 1
            end += hops
            for hop in range(hops):
                for i in range(in_start[at], in_start[at + 1]):
                    before = link_source[in_links[i]]
                    if distance[before] != distance[at] - 1 or (before != origin and not may_cross[before]):
                        continue
                    if index < count[before]:
                        links[end - 1 - hop] = in_links[i]
                        at = before
                        break
                    index -= count[before]
    return paths, length, links


def _search(
    topology: Topology, source: NDArray[np.int32], target: NDArray[np.int32], may_cross: NDArray[np.bool_]
) -> PairPaths:
    """Shortest paths of pairs that come sorted by source."""
    nodes = np.arange(topology.num_nodes + 1)
    out_links = np.argsort(topology.link_source, kind="stable").astype(np.int32)
    in_links = np.argsort(topology.link_target, kind="stable").astype(np.int32)
    out_start = np.searchsorted(topology.link_source[out_links], nodes).astype(np.int64)
    in_start = np.searchsorted(topology.link_target[in_links], nodes).astype(np.int64)
    counts, lengths, links = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
    origins, begin = np.unique(source, return_index=True)
    for origin, targets in zip(origins.tolist(), np.split(target, begin[1:])):
        found = _shortest_paths(
            origin,
            targets,
            may_cross,
            topology.link_source,
            topology.link_target,
            out_start,
            out_links,
            in_start,
            in_links,
            PATHS_PER_PAIR,
        )
        counts.append(found[0])
        lengths.append(found[1])
        links.append(found[2])
    return PairPaths(
        np.cumsum(np.concatenate(counts)), np.cumsum(np.concatenate(lengths)), np.concatenate(links)
    )


def switch_paths(topology: Topology, source: NDArray[np.int32], target: NDArray[np.int32]) -> PairPaths:
    """Up to 8 shortest paths over switches alone for each pair (source[p], target[p]), where there are any.

    The pairs must come sorted by source.
    """
    # A writable copy, as the other caller passes: the kernel is compiled once.
    return _search(topology, source, target, topology.is_switch.copy())


def relay_sequences(
    topology: Topology, source: NDArray[np.int32], target: NDArray[np.int32]
) -> list[list[tuple[int, ...]]]:
    """For each pair up to 8 sequences of servers from source to target along shortest paths, servers crossed.

    The pairs must come sorted by source. Raises InputError where no path leads from one to the other.
    """
    paths = _search(topology, source, target, np.ones(topology.num_nodes, bool))
    passed = topology.link_target[paths.links]
    kept = ~topology.is_switch[passed]
    # How many servers have been passed before each path.
    start = np.concatenate(([0], np.cumsum(kept)))[paths.path_start].tolist()
    servers = passed[kept].tolist()
    result = []
    for p, (s, t) in enumerate(zip(source.tolist(), target.tolist())):
        found = range(paths.first[p], paths.first[p + 1])
        if not found:
            ends = topology.node_ids[s], topology.node_ids[t]
            raise InputError(
                f"topology {topology.name}: no path from {ends[0]!r} to {ends[1]!r}; add the missing link"
            )
        result.append(list(dict.fromkeys((s, *servers[start[i] : start[i + 1]]) for i in found)))
    return result
