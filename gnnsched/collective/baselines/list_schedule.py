"""List scheduling of flow trees: an algorithm's steps in order, each once its data and a path are there."""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.baselines.flow_trees import FlowTrees, over_servers
from gnnsched.collective.baselines.routes import PairPaths, switch_paths
from gnnsched.collective.mirror import allreduce_from_broadcast
from gnnsched.collective.schedule import BROADCAST, Schedule, Transfers
from gnnsched.topology import Topology

# Rates that add up to the bandwidth may exceed it by rounding.
RATE_SLACK = 1e-9
# Events nearer to each other than this share of the shortest transfer are one event: they differ by rounding.
SAME_EVENT = 1e-7


@njit(cache=True)
def _push(heap: NDArray[np.int64], base: int, size: int, item: int) -> None:
    """Add ``item`` to the binary heap ``heap[base:base+size]``."""
    at = size
    while at > 0 and heap[base + (at - 1) // 2] > item:
        heap[base + at] = heap[base + (at - 1) // 2]
        at = (at - 1) // 2
    heap[base + at] = item


@njit(cache=True)
def _pop(heap: NDArray[np.int64], base: int, size: int) -> None:
    """Remove the least item of the binary heap ``heap[base:base+size]``."""
    size -= 1
    item = heap[base + size]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[base + child + 1] < heap[base + child]:
            child += 1
        if heap[base + child] >= item:
            break
        heap[base + at] = heap[base + child]
        at = child
    heap[base + at] = item


@njit(cache=True)
def _run(
    bandwidth: NDArray[np.float64],
    latency: NDArray[np.float64],
    chunk_bytes: float,
    predecessor: NDArray[np.int64],
    pair: NDArray[np.int64],
    first: NDArray[np.int64],
    path_start: NDArray[np.int64],
    path_links: NDArray[np.int32],
    path_rate: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Path, start and arrival of each transfer; a transfer's index is its priority, the lowest first.

    ``predecessor`` (E,): the transfer that brings the chunk, -1 where the root sends. Transfers of one
    server pair share their candidate paths, so only the first waiting one of a pair need ever be tried, and
    only when its links may have come free: each pair with waiting transfers has one wake-up time, a lower
    bound (bookings only ever push it back).
    """
    count, pairs, links = len(pair), len(first) - 1, len(bandwidth)
    chosen = np.full(count, -1, np.int64)
    start = np.full(count, np.nan)
    end = np.full(count, np.nan)
    ready = np.zeros(count)
    # Transfers by the one they wait for.
    next_sibling = np.full(count, -1, np.int64)
    first_child = np.full(count, -1, np.int64)
    waiting_start = np.zeros(pairs + 1, np.int64)
    for i in range(count - 1, -1, -1):
        waiting_start[pair[i] + 1] += 1
        if predecessor[i] >= 0:
            next_sibling[i] = first_child[predecessor[i]]
            first_child[predecessor[i]] = i
    waiting_start = np.cumsum(waiting_start)
    waiting = np.empty(count, np.int64)
    size = np.zeros(pairs, np.int64)
    has_wake = np.zeros(pairs, np.bool_)
    # Bookings of a link, latest end first, as linked lists in one pool.
    newest = np.full(links, -1, np.int64)
    room = 4 * links + 16
    booked_end, booked_rate = np.empty(room), np.empty(room)
    older = np.arange(1, room + 1)
    unused = 0
    events = [(0.0, 0)]  # arrival of transfer i: i; wake-up of pair p: -p - 1
    events.pop()
    touched = [0]  # pairs that may be able to start a transfer at this event
    touched.pop()
    for p in range(pairs):
        if waiting_start[p + 1] > waiting_start[p]:
            has_wake[p] = True
            heappush(events, (0.0, -p - 1))
    for i in range(count):
        if predecessor[i] < 0:
            _push(waiting, waiting_start[pair[i]], size[pair[i]], i)
            size[pair[i]] += 1
    tolerance = SAME_EVENT * chunk_bytes / path_rate.max() if len(path_rate) else 0.0
    touched_at = np.full(pairs, -1, np.int64)
    event = 0
    while len(events) > 0:
        now = events[0][0]
        event += 1
        while len(events) > 0 and events[0][0] <= now + tolerance:
            time, what = heappop(events)
            if what < 0:
                p = -what - 1
                has_wake[p] = False
                if size[p] > 0 and touched_at[p] != event:
                    touched_at[p] = event
                    touched.append(p)
                continue
            child = first_child[what]
            while child >= 0:
                p = pair[child]
                ready[child] = time
                _push(waiting, waiting_start[p], size[p], child)
                size[p] += 1
                if touched_at[p] != event:
                    touched_at[p] = event
                    touched.append(p)
                child = next_sibling[child]
        turn = [waiting[waiting_start[p]] for p in touched]
        touched.clear()
        turn.sort()  # a sorted list is a heap: the next waiting transfer of a served pair joins it
        while len(turn) > 0:
            i = heappop(turn)
            p = pair[i]
            wake = np.inf
            for path in range(first[p], first[p + 1]):
                earliest, ahead = -np.inf, 0.0
                for k in range(path_start[path], path_start[path + 1]):
                    link = path_links[k]
                    left = bandwidth[link] * (1.0 + RATE_SLACK) - path_rate[path]
                    used = 0.0
                    at = newest[link]
                    while at >= 0:
                        used += booked_rate[at]
                        if used > left:
                            earliest = max(earliest, booked_end[at] - ahead)
                            break
                        at = older[at]
                    ahead += latency[link]
                wake = min(wake, earliest)
                if earliest <= now + tolerance:
                    chosen[i] = path
                    start[i] = max(now, ready[i], earliest)
                    break
            if chosen[i] < 0:
                if not has_wake[p]:
                    has_wake[p] = True
                    heappush(events, (wake, -p - 1))
                continue
            path = chosen[i]
            duration = chunk_bytes / path_rate[path]
            ahead = 0.0
            for k in range(path_start[path], path_start[path + 1]):
                link = path_links[k]
                until = start[i] + ahead + duration
                ahead += latency[link]
                if unused == len(older):
                    booked_end = np.concatenate((booked_end, np.empty(unused)))
                    booked_rate = np.concatenate((booked_rate, np.empty(unused)))
                    older = np.concatenate((older, np.arange(unused + 1, 2 * unused + 1)))
                booking = unused
                unused = older[booking]
                booked_end[booking], booked_rate[booking] = until, path_rate[path]
                before, at = -1, newest[link]
                while at >= 0 and booked_end[at] > until:
                    before, at = at, older[at]
                older[booking] = at
                if before < 0:
                    newest[link] = booking
                else:
                    older[before] = booking
                # What ended before now can stop nobody any more.
                before = booking
                while at >= 0 and booked_end[at] > now:
                    before, at = at, older[at]
                older[before] = -1
                while at >= 0:
                    released = at
                    at = older[at]
                    older[released] = unused
                    unused = released
            end[i] = start[i] + ahead + duration
            heappush(events, (end[i], i))
            _pop(waiting, waiting_start[p], size[p])
            size[p] -= 1
            if size[p] > 0:
                heappush(turn, waiting[waiting_start[p]])
    return chosen, start, end


def _merge(paths: PairPaths, own: Sequence[Sequence[Sequence[int]] | None]) -> PairPaths:
    """``paths`` with those of pair p replaced by ``own[p]`` where that is not None."""
    every: list[list[Sequence[int]]] = []
    for p, replacement in enumerate(own):
        kept = range(paths.first[p], paths.first[p + 1]) if replacement is None else ()
        every.append(
            list(replacement or ())
            + [paths.links[paths.path_start[i] : paths.path_start[i + 1]].tolist() for i in kept]
        )
    flat = [path for of_pair in every for path in of_pair]
    return PairPaths(
        np.cumsum([0] + [len(of_pair) for of_pair in every], dtype=np.int64),
        np.cumsum([0] + [len(path) for path in flat], dtype=np.int64),
        np.array([link for path in flat for link in path], np.int32),
    )


def list_schedule(
    topology: Topology,
    chunk_bytes: float,
    trees: FlowTrees,
    own_paths: Mapping[tuple[int, int], Sequence[Sequence[int]]] | None = None,
) -> Transfers:
    """Broadcast all chunks down ``trees`` from time 0: every transfer as early as the order lets it start.

    At each event (an arrival, or the moment at which a path comes free) the transfers whose source holds
    their chunk are taken in order of step, then chunk, then position in ``trees``; one starts if some
    candidate path of its server pair is free: each link k has the path's ordinary rate (its smallest
    bandwidth) left at t + (latency of the links before k). The candidates are up to 8 paths of fewest links;
    the first free one is taken, in an order that differs from pair to pair, as ECMP would spread them.
    ``own_paths`` (link indices by source and target node) replaces them for some pairs. Pairs without a
    switch-only path hop over servers (``over_servers``). A link's bandwidth counts as taken by every transfer
    booked on it that ends later, also by one that begins later.

    Returns E transfers, all in the broadcast phase, in order of their start.
    """
    trees = over_servers(topology, trees)
    order = np.lexsort((np.arange(len(trees.chunk)), trees.chunk, trees.step))
    chunk, parent, child = trees.chunk[order], trees.parent[order], trees.child[order]
    count, nodes = len(chunk), topology.num_nodes
    pairs, pair = np.unique(parent.astype(np.int64) * nodes + child, return_inverse=True)
    source, target = (pairs // nodes).astype(np.int32), (pairs % nodes).astype(np.int32)
    paths = switch_paths(topology, source, target)
    if own_paths:
        paths = _merge(paths, [own_paths.get(ends) for ends in zip(source.tolist(), target.tolist())])
    delivered = chunk.astype(np.int64) * nodes + child
    needed = chunk.astype(np.int64) * nodes + parent
    by_delivery = np.argsort(delivered)
    place = np.minimum(np.searchsorted(delivered[by_delivery], needed), max(count - 1, 0))
    predecessor = (
        np.where(delivered[by_delivery[place]] == needed, by_delivery[place], -1) if count else place
    )
    rate = (
        np.minimum.reduceat(topology.bandwidth[paths.links], paths.path_start[:-1])
        if len(paths.links)
        else np.zeros(0)
    )
    chosen, start, end = _run(
        topology.bandwidth,
        topology.latency,
        float(chunk_bytes),
        predecessor.astype(np.int64),
        pair.astype(np.int64),
        paths.first,
        paths.path_start,
        paths.links,
        rate,
    )
    if (chosen < 0).any():
        raise ValueError("flow trees: some edge hangs on no root")
    by_start = np.argsort(start, kind="stable")
    chosen = chosen[by_start]
    lengths = np.diff(paths.path_start)[chosen]
    path_start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    offset = np.arange(path_start[-1]) - np.repeat(path_start[:-1], lengths)
    return Transfers(
        phase=np.full(count, BROADCAST, np.uint8),
        chunk=chunk[by_start].astype(np.int32),
        source=parent[by_start].astype(np.int32),
        target=child[by_start].astype(np.int32),
        path_start=path_start,
        path_links=paths.links[np.repeat(paths.path_start[:-1][chosen], lengths) + offset],
        rate=rate[chosen],
        start=start[by_start],
        end=end[by_start],
    )


def list_scheduled_allreduce(
    topology: Topology, message_bytes: float, trees: FlowTrees, planner: Mapping[str, Any]
) -> Schedule:
    """The AllReduce of ``message_bytes`` bytes that list schedules ``trees`` for both halves."""
    chunk_bytes = message_bytes / len(trees.roots)
    return allreduce_from_broadcast(
        topology,
        message_bytes,
        trees.roots,
        lambda network: list_schedule(network, chunk_bytes, trees),
        planner,
    )
