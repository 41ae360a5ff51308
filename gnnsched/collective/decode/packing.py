"""Tree packing: one flow tree per chunk, such that the trees together spread evenly over the links.

Trees are grown by Prim with link prices that rise exponentially with the load (the rule of multiplicative-weights
packing, Garg and Koenemann 2007), then servers are given cheaper parents for some rounds.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.compiling import borrowing
from gnnsched.collective.decode.paths import Paths

# Rounds in which servers get cheaper parents: as many as this many looks at a path allow, within bounds.
LEAST_ROUNDS, MOST_ROUNDS, IMPROVEMENT_LOOKS = 4, 12, 8_000_000
# exp(STEEPNESS * load / largest load) prices a link: high enough that links twice as loaded are avoided.
STEEPNESS = 6.0
# A deep tree makes the pipeline's tail long: each hop from the root makes a path this much dearer.
DEPTH_PRICE = 0.05
# So does a long way, in seconds: arriving as late as the whole plan lasts makes a path this much dearer.
DELAY_PRICE = 4.0

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class Trees(NamedTuple):
    """Packed trees of C chunks over S servers.

    ``path`` (C, S) int32: the path by which the server is reached, -1 at the root and where the tree does not
    go; ``tail`` (C, S): seconds from the start of that transfer to the last arrival below it, were the chunk
    alone; ``price`` (P,): final price of each path; ``load`` (m,): seconds of work per link, others' included.
    """

    path: Ints
    tail: Floats
    price: Floats
    load: Floats


@borrowing(inline=False)
def _add(
    path: int, sign: float, start: Longs, links: Ints, work: Floats, scale: float, load: Floats, toll: Floats
) -> None:
    """Put a path's work on its links (or take it off) and price them anew."""
    for k in range(start[path], start[path + 1]):
        e = links[k]
        load[e] += sign * work[e]
        toll[e] = work[e] * np.exp(min(STEEPNESS * (load[e] + work[e]) / scale, 600.0))


@borrowing(inline=False)
def _price(path: int, start: Longs, links: Ints, toll: Floats) -> float:
    total = 0.0
    for k in range(start[path], start[path + 1]):
        total += toll[links[k]]
    return total


@njit(cache=True)
def _grow(
    there: NDArray[np.bool_],
    source: Ints,
    target: Ints,
    start: Longs,
    links: Ints,
    into: Longs,
    out: Longs,
    out_paths: Longs,
    delay: Floats,
    latency: Floats,
    work: Floats,
    scale: float,
    load: Floats,
    toll: Floats,
    parent: Ints,
) -> None:
    """Prim from where the chunk is ``there`` (S,) over all servers; ``parent`` (S,) gets the path into each.

    ``delay`` (P,): how much dearer what comes after a path gets by its length.
    """
    servers = len(parent)
    joined = np.zeros(servers, np.bool_)
    depth = np.zeros(servers)
    late = np.zeros(servers)
    best = np.full(servers, np.inf)
    best_path = np.full(servers, -1, np.int64)
    left = 0
    for s in range(servers):
        joined[s] = there[s]
        left += not there[s]
    newest = 0
    first = True
    while left > 0:
        for s in range(servers) if first else range(newest, newest + 1):
            if not joined[s]:
                continue
            for i in range(out[s], out[s + 1]):
                p = out_paths[i]
                if not joined[target[p]]:
                    cost = _price(p, start, links, toll) * (1.0 + depth[s] + delay[p])
                    cost += late[s] + latency[p]
                    if cost < best[target[p]]:
                        best[target[p]], best_path[target[p]] = cost, p
        first = False
        pick = -1
        while True:
            pick = -1
            for d in range(servers):
                if not joined[d] and best_path[d] >= 0 and (pick < 0 or best[d] < best[pick]):
                    pick = d
            if pick < 0:
                break  # nothing leads to the others, which nobody may need
            # Links got dearer since this price was noted: look again before believing it.
            p = best_path[pick]
            s = source[p]
            cost = _price(p, start, links, toll) * (1.0 + depth[s] + delay[p]) + late[s] + latency[p]
            if cost <= best[pick] * (1.0 + 1e-12):
                break
            best[pick] = np.inf
            for p in range(into[pick], into[pick + 1]):
                s = source[p]
                if joined[s]:
                    cost = _price(p, start, links, toll) * (1.0 + depth[s] + delay[p]) + late[s] + latency[p]
                    if cost < best[pick]:
                        best[pick], best_path[pick] = cost, p
        if pick < 0:
            break
        left -= 1
        joined[pick] = True
        parent[pick] = best_path[pick]
        p = best_path[pick]
        depth[pick] = depth[source[p]] + DEPTH_PRICE + delay[p]
        late[pick] = late[source[p]] + latency[p]
        _add(best_path[pick], 1.0, start, links, work, scale, load, toll)
        newest = pick


@njit(cache=True)
def _drop_idle_relays(
    needs: NDArray[np.bool_],
    source: Ints,
    start: Longs,
    links: Ints,
    work: Floats,
    scale: float,
    load: Floats,
    toll: Floats,
    parent: Ints,
) -> None:
    """Relays that serve nobody are of no use in a tree: take them off, leaf by leaf."""
    servers = len(parent)
    children = np.zeros(servers, np.int64)
    for d in range(servers):
        if parent[d] >= 0:
            children[source[parent[d]]] += 1
    changed = True
    while changed:
        changed = False
        for d in range(servers):
            if not needs[d] and parent[d] >= 0 and children[d] == 0:
                children[source[parent[d]]] -= 1
                _add(parent[d], -1.0, start, links, work, scale, load, toll)
                parent[d] = -1
                changed = True


@borrowing(inline=False)
def _improve(
    there: NDArray[np.bool_],
    first: int,
    source: Ints,
    start: Longs,
    links: Ints,
    into: Longs,
    delay: Floats,
    latency: Floats,
    work: Floats,
    scale: float,
    load: Floats,
    toll: Floats,
    parent: Ints,
) -> None:
    """Give each server of one tree the cheapest parent that does not hang below it."""
    servers = len(parent)
    for i in range(servers):
        d = (i + first) % servers
        if parent[d] < 0:
            continue
        old = parent[d]
        _add(old, -1.0, start, links, work, scale, load, toll)
        choice = old
        least = np.inf
        for p in range(into[d], into[d + 1]):
            at = source[p]
            if not there[at] and parent[at] < 0:
                continue
            depth, late = delay[p], latency[p]
            while not there[at] and at != d:
                depth += DEPTH_PRICE + delay[parent[at]]
                late += latency[parent[at]]
                at = source[parent[at]]
            if at == d:
                continue
            cost = _price(p, start, links, toll) * (1.0 + depth) + late
            if p == old:
                cost *= 0.999  # no change without gain
            if cost < least:
                choice, least = p, cost
        parent[d] = choice
        _add(choice, 1.0, start, links, work, scale, load, toll)


@borrowing(inline=False)
def _tails(source: Ints, duration: Floats, parent: Ints, tail: Floats) -> None:
    """``tail`` (S,): longest way from the start of the transfer into a server to an arrival below it."""
    for d in range(len(parent)):
        at = d
        total = 0.0
        while parent[at] >= 0:
            total += duration[parent[at]]
            if tail[at] >= total:
                break
            tail[at] = total
            at = source[parent[at]]


@njit(cache=True, nogil=True)
def _pack(
    source: Ints,
    target: Ints,
    start: Longs,
    links: Ints,
    into: Longs,
    duration: Floats,
    latency: Floats,
    work: Floats,
    needed: NDArray[np.bool_],
    there: NDArray[np.bool_],
    taken: Floats,
    order: Longs,
    rounds: int,
    reach: float,
) -> tuple[Ints, Floats, Floats, Floats]:
    servers = len(into) - 1
    chunks = len(needed)
    count = np.zeros(servers + 1, np.int64)
    for p in range(len(source)):
        count[source[p] + 1] += 1
    out = np.cumsum(count)
    out_paths = np.argsort(source, kind="mergesort")
    parent = np.full((chunks, servers), -1, np.int32)
    load = taken.copy()
    toll = np.zeros(len(work))
    delay = np.zeros(len(source))
    for turn in range(chunks * (1 + rounds)):
        c = order[turn % chunks]
        # Loads are compared with the largest so far, so that early trees spread as well as late ones; and with what
        # latency costs anyway, as where that is most of a plan, detours that spare a link spare nothing.
        scale = max(load.max(), work.max()) + reach
        delay[:] = duration * (DELAY_PRICE * min(turn + 1, chunks) / chunks / scale)
        for e in range(len(work)):
            toll[e] = work[e] * np.exp(min(STEEPNESS * (load[e] + work[e]) / scale, 600.0))
        if turn < chunks:
            _grow(
                there[c],
                source,
                target,
                start,
                links,
                into,
                out,
                out_paths,
                delay,
                latency,
                work,
                scale,
                load,
                toll,
                parent[c],
            )
        else:
            _improve(
                there[c], turn, source, start, links, into, delay, latency, work, scale, load, toll, parent[c]
            )
        _drop_idle_relays(needed[c], source, start, links, work, scale, load, toll, parent[c])
    price = np.zeros(len(source))
    for p in range(len(source)):
        price[p] = _price(p, start, links, toll)
    tail = np.zeros((chunks, servers))
    for c in range(chunks):
        _tails(source, duration, parent[c], tail[c])
    return parent, tail, price, load


def _reach(paths: Paths) -> float:
    """Seconds of latency of the farthest pair of servers that some path joins."""
    nearest = np.full((paths.num_servers, paths.num_servers), np.inf)
    np.minimum.at(nearest, (paths.source, paths.target), paths.latency)
    return float(nearest[np.isfinite(nearest)].max())


def pack_trees(
    paths: Paths,
    bandwidth: Floats,
    chunk_bytes: float,
    needed: NDArray[np.bool_],
    there: NDArray[np.bool_],
    taken: Floats,
    rng: np.random.Generator,
    most_rounds: int = MOST_ROUNDS,
) -> Trees:
    """One flow tree per chunk over the servers of ``paths``: from where it is ``there`` (S, C) to where it is
    ``needed`` (S, C), over others only where they serve somebody.

    ``taken`` (m,): seconds of work that each link has to do for others; ``most_rounds``: of improvement;
    ``rng`` shuffles the order in which trees are grown.
    """
    if len(paths.source) == 0:
        alone = (needed.shape[1], paths.num_servers)
        return Trees(np.full(alone, -1, np.int32), np.zeros(alone), np.zeros(0), np.zeros(len(bandwidth)))
    chunks = needed.shape[1]
    looks = chunks * len(paths.source)
    rounds = min(most_rounds, max(LEAST_ROUNDS, IMPROVEMENT_LOOKS // looks))
    parent, tail, price, load = _pack(
        paths.source,
        paths.target,
        paths.start,
        paths.links,
        paths.into,
        paths.latency + chunk_bytes / paths.rate,
        paths.latency,
        chunk_bytes / bandwidth,
        np.ascontiguousarray(needed.T),
        np.ascontiguousarray(there.T),
        taken,
        rng.permutation(chunks),
        rounds,
        _reach(paths),
    )
    return Trees(parent, tail, price, load)
