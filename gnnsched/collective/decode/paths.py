"""Candidate paths between servers: the low level of a decision picks one of them."""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.topology import InputError, Topology
from gnnsched.topology.validate import component_labels

PATHS_PER_PAIR = 4
MOST_PARALLEL = 16
# A server keeps a third of the servers as targets, within these limits: the nearer half of them, and others
# spread over the rest.
FEWEST_TARGETS, MOST_TARGETS = 16, 32


class Paths(NamedTuple):
    """P candidate paths between S servers, sorted by target server and last link; arrays only, for numba.

    Servers are numbered 0..S-1 here; ``nodes`` (S,) holds their node indices. ``links`` and ``offset`` (seconds
    of latency before that link) of path p stand at ``start[p]:start[p+1]``. ``rate`` is the ordinary rate (the
    smallest bandwidth on the path, bytes/s), ``latency`` the whole path's (s). The paths into server d are
    ``into[d]:into[d+1]``; those of them that share a last link form one group: groups
    ``group_into[d]:group_into[d+1]``, group g holding paths ``group[g]:group[g+1]``. ``through_paths[
    through[e]:through[e+1]]`` are the paths that use link e.
    """

    nodes: NDArray[np.int32]
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

    @property
    def num_servers(self) -> int:
        return len(self.nodes)

    @property
    def num_paths(self) -> int:
        return len(self.source)


@njit(cache=True)
def _shortest_from(
    origin: int,
    is_switch: NDArray[np.bool_],
    out_start: NDArray[np.int64],
    out_links: NDArray[np.int32],
    link_target: NDArray[np.int32],
    cost: NDArray[np.float64],
    place: NDArray[np.int64],
    parallel: NDArray[np.int64],
    per_pair: int,
    rotation: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], int]:
    """Up to ``per_pair`` cheapest loop-free switch-only walks from ``origin`` to every node (label setting).

    Returns labels as columns: node, parent label, link taken, cost; and their number. A node's labels come
    in order of cost. ``rotation`` turns the order in which equal links are tried, so that different servers
    prefer different ones of equally short paths.
    """
    n = len(is_switch)
    limit = n * per_pair + 1
    node = np.empty(limit, np.int32)
    parent = np.empty(limit, np.int32)
    via = np.empty(limit, np.int32)
    price = np.empty(limit, np.float64)
    settled = np.zeros(n, np.int32)
    count = 1
    node[0], parent[0], via[0], price[0] = origin, -1, -1, 0.0
    settled[origin] = per_pair
    # Open labels: cost, place among parallel cables, order of insertion, parent label, link.
    heap: list[tuple[float, int, int, int, int]] = [(0.0, 0, 0, 0, 0)]
    heap.pop()
    inserted = 0
    current = 0
    while True:
        at = node[current]
        if is_switch[at] or current == 0:
            degree = out_start[at + 1] - out_start[at]
            # The k-th walk to a switch prefers the k-th of parallel cables: equal walks then share none.
            turn = rotation + (0 if current == 0 else settled[at] - 1)
            for i in range(degree):
                link = out_links[out_start[at] + (i + rotation) % degree]
                to = link_target[link]
                if settled[to] >= per_pair:
                    continue
                ancestor = current
                looped = False
                while ancestor >= 0:
                    if node[ancestor] == to:
                        looped = True
                        break
                    ancestor = parent[ancestor]
                if looped:
                    continue
                late = (place[link] - turn) % parallel[link]
                heappush(heap, (price[current] + cost[link], late, inserted, current, np.int64(link)))  # type: ignore[misc]  # numpy scalars
                inserted += 1
        found = False
        while len(heap) > 0 and not found:
            key, _, _, from_label, link = heappop(heap)
            to = link_target[link]
            if settled[to] < per_pair:
                settled[to] += 1
                node[count], parent[count], via[count], price[count] = to, from_label, link, key
                current = count
                count += 1
                found = True
        if not found:
            break
    return node, parent, via, price, count


def _parallel_links(topology: Topology) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each link's place among the links from the same node to the same node, and how many these are; int64 (m,)."""
    ends = topology.link_source.astype(np.int64) * topology.num_nodes + topology.link_target
    _, pair, count = np.unique(ends, return_inverse=True, return_counts=True)
    place = np.empty(len(ends), np.int64)
    place[np.argsort(pair, kind="stable")] = np.arange(len(ends)) - np.repeat(np.cumsum(count) - count, count)
    return place, count[pair].astype(np.int64)


def _link_cost(topology: Topology) -> NDArray[np.float64]:
    """Price of a link in the search for short paths: one hop, more on links slower than the usual."""
    usual = np.median(topology.bandwidth)
    return 1.0 + np.clip(usual / topology.bandwidth, 0.1, 10.0)


def _strongly_connected(count: int, source: list[int], target: list[int]) -> bool:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    graph = coo_matrix((np.ones(len(source)), (source, target)), (count, count))
    return bool(connected_components(graph, directed=True, connection="strong")[0] == 1)


def candidate_paths(
    topology: Topology, paths_per_pair: int = PATHS_PER_PAIR, targets_per_server: int | None = None
) -> Paths:
    """Up to ``paths_per_pair`` cheapest switch-only paths from each server to each target it keeps.

    The servers are the participants; where these cannot all reach each other over switches alone, every
    server takes part as a relay. Targets are capped only where that leaves the servers connected. Raises
    InputError where even then some participant cannot be reached.
    """
    order = np.argsort(topology.link_source, kind="stable").astype(np.int32)
    out_start = np.searchsorted(topology.link_source[order], np.arange(topology.num_nodes + 1)).astype(
        np.int64
    )
    cost = _link_cost(topology)
    # Servers that no participant is connected to are no relays.
    component = component_labels(topology, strong=True)
    relays = topology.servers[component[topology.servers] == component[topology.participants[0]]]
    for nodes in (topology.participants, relays):
        if not np.isin(topology.participants, nodes).all():
            break
        usual = min(MOST_TARGETS, max(FEWEST_TARGETS, len(nodes) // 3))
        for most in (targets_per_server or usual, len(nodes)):
            found = _search(topology, nodes, out_start, order, cost, paths_per_pair, most)
            sources, targets = [f[2] for f in found], [f[0] for f in found]
            if len(nodes) == 1 or _strongly_connected(len(nodes), sources, targets):
                return paths_of(topology, nodes, found)
    raise InputError(
        f"topology {topology.name}: some participants cannot reach each other; add the missing links"
    )


def _search(
    topology: Topology,
    nodes: NDArray[np.int32],
    out_start: NDArray[np.int64],
    out_links: NDArray[np.int32],
    cost: NDArray[np.float64],
    paths_per_pair: int,
    targets_per_server: int,
) -> list[tuple[int, int, int, list[int]]]:
    """Paths as (target number, last link, source number, links) between the servers ``nodes``."""
    number = np.full(topology.num_nodes, -1, np.int64)
    number[nodes] = np.arange(len(nodes))
    place, parallel = _parallel_links(topology)
    # Each of a few parallel cables needs a path of its own.
    paths_per_pair = max(paths_per_pair, min(int(parallel.max(initial=1)), MOST_PARALLEL))
    found: list[tuple[int, int, int, list[int]]] = []
    for s, origin in enumerate(nodes):
        label, parent, via, price, count = _shortest_from(
            int(origin),
            topology.is_switch,
            out_start,
            out_links,
            topology.link_target,
            cost,
            place,
            parallel,
            paths_per_pair,
            s,
        )
        label, price = label[:count], price[:count]
        ends = np.flatnonzero(number[label] >= 0)
        ends = ends[label[ends] != origin]
        kept = _kept_targets(number[label[ends]], price[ends], targets_per_server)
        for end in ends:
            d = int(number[label[end]])
            if d not in kept:
                continue
            links: list[int] = []
            at = int(end)
            while parent[at] >= 0:
                links.append(int(via[at]))
                at = int(parent[at])
            found.append((d, links[0], s, links[::-1]))
    return found


def _kept_targets(targets: NDArray[np.int64], price: NDArray[np.float64], most: int) -> set[int]:
    """The targets that a server keeps, given its labels in order of price: all, or near ones and some far ones."""
    nearest_first = list(dict.fromkeys(targets[np.argsort(price, kind="stable")].tolist()))
    if len(nearest_first) <= most:
        return set(nearest_first)
    near, rest = nearest_first[: most // 2], nearest_first[most // 2 :]
    spread = np.linspace(0, len(rest) - 1, most - len(near)).astype(int)
    return set(near) | {rest[i] for i in spread}


def paths_of(
    topology: Topology, nodes: NDArray[np.int32], found: list[tuple[int, int, int, list[int]]]
) -> Paths:
    """Paths between the servers ``nodes`` (S,) from a list of (target number, last link, source number, links)."""
    found.sort()
    lengths = np.array([len(f[3]) for f in found], np.int64)
    start = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    links = np.array([link for f in found for link in f[3]], np.int32)
    target = np.array([f[0] for f in found], np.int32)
    last = np.array([f[1] for f in found], np.int64)
    latency_of_links = topology.latency[links]
    offset = np.zeros(len(links))
    latency = np.zeros(len(found))
    for p in range(len(found)):
        total = 0.0
        for k in range(start[p], start[p + 1]):
            offset[k] = total
            total += latency_of_links[k]
        latency[p] = total
    rate = (
        np.minimum.reduceat(topology.bandwidth[links], start[:-1]) if len(found) else np.zeros(0, np.float64)
    )
    into = np.searchsorted(target, np.arange(len(nodes) + 1)).astype(np.int64)
    fresh = np.ones(len(found), bool)
    fresh[1:] = (target[1:] != target[:-1]) | (last[1:] != last[:-1])
    group = np.append(np.flatnonzero(fresh), len(found)).astype(np.int64)
    group_into = np.searchsorted(target[group[:-1]], np.arange(len(nodes) + 1)).astype(np.int64)
    owner = np.repeat(np.arange(len(found)), lengths)
    by_link = np.argsort(links, kind="stable")
    return Paths(
        nodes.astype(np.int32),
        np.array([f[2] for f in found], np.int32),
        target,
        start,
        links,
        offset,
        latency,
        rate,
        into,
        group,
        group_into,
        np.searchsorted(links[by_link], np.arange(topology.num_links + 1)).astype(np.int64),
        owner[by_link].astype(np.int32),
    )
