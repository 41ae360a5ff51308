"""How far a schedule has come at a moment: who has which contributions and final values, and what a failure undoes.

A transfer that has begun goes on unless it is cut. What goes on counts as delivered, at its end. A transfer is cut
where it still has to pass a link that fails. A server that fails takes with it what it holds: its own contributions
that it has not sent on are lost for good, while those that others had sent to it are still with their senders, who keep
what they sent until the AllReduce is over; such transfers count as aborted, too.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.ordering import group_by_key, read_only, sort_groups
from gnnsched.collective.schedule import REDUCE, Schedule


@dataclass(frozen=True, eq=False)
class Progress:
    """The state of a schedule at a moment; n nodes, C chunks, T transfers.

    ``begun`` bool (T,): has begun and stays in the file; ``aborted`` bool (T,): of these, delivers nothing. ``cut``
    bool (T,): of those, under way at the moment. ``partial`` int (n, C): contributions that wait at each server, of
    those that must be in the sum; ``final`` bool (n, C): has, or will have from what goes on, the final value;
    ``since`` (n, C): seconds from when on what a server has is there. ``gone`` bool (C,): a contribution to the chunk
    is lost for good.
    """

    begun: NDArray[np.bool_]
    aborted: NDArray[np.bool_]
    cut: NDArray[np.bool_]
    partial: NDArray[np.int64]
    final: NDArray[np.bool_]
    since: NDArray[np.float64]
    gone: NDArray[np.bool_]


def progress_at(
    schedule: Schedule, moment: float, dead_links: NDArray[np.bool_], dead_nodes: NDArray[np.bool_]
) -> Progress:
    """The state of ``schedule`` at ``moment`` (s), at which the links (m,) and nodes (n,) named have failed.

    ``schedule.lost`` and ``dead_nodes`` need not contribute.
    """
    schedule = read_only(schedule)
    t, topology = schedule.transfers, schedule.topology
    begun = t.start < moment
    owner = np.repeat(np.arange(len(t)), np.diff(t.path_start))
    passed = np.concatenate(([0.0], np.cumsum(topology.latency[t.path_links])))
    begin = t.start[owner] + passed[:-1] - passed[t.path_start[:-1]][owner]
    through = begin + schedule.chunk_bytes / t.rate[owner]
    ends_on_dead = dead_links[t.path_links] & (through > moment)
    cut = begun & ~t.lost & (t.end > moment) & (np.bincount(owner[ends_on_dead], minlength=len(t)) > 0)
    aborted = t.lost | cut
    failed = dead_nodes.copy()
    failed[list(schedule.lost)] = True
    ready = np.zeros(topology.num_nodes) if schedule.ready is None else schedule.ready
    result = (
        np.zeros((topology.num_nodes, schedule.num_chunks), np.int64),
        np.zeros((topology.num_nodes, schedule.num_chunks), np.bool_),
        np.zeros((topology.num_nodes, schedule.num_chunks)),
        np.zeros(schedule.num_chunks, np.bool_),
    )
    aborted = aborted.copy()
    chosen = np.flatnonzero(begun)
    order = chosen[np.argsort(t.start[chosen], kind="stable")]
    slack = min(1e-9 * schedule.makespan, 0.5 * float((t.end - t.start).min())) if len(t) else 0.0
    _follow(
        t.phase,
        t.chunk,
        t.source,
        t.target,
        t.start,
        t.end,
        aborted,
        order,
        schedule.roots,
        topology.is_participant,
        failed,
        dead_nodes,
        ready,
        slack,
        *result,
    )
    return Progress(begun, aborted & begun, cut, *result)


@njit(cache=True)
def _follow(
    phase: NDArray,
    chunk: NDArray,
    source: NDArray,
    target: NDArray,
    start: NDArray,
    end: NDArray,
    aborted: NDArray,
    order: NDArray,
    roots: NDArray,
    is_participant: NDArray,
    failed: NDArray,
    dead: NDArray,
    ready: NDArray,
    slack: float,
    partial: NDArray,
    final: NDArray,
    since: NDArray,
    gone: NDArray,
) -> None:
    """Fill in the last four, chunk by chunk; a chunk that a dead server took with it is followed once more.

    ``dead``: servers that fail now, ``failed``: these and those lost before. Marks in ``aborted`` what dead servers had
    got and not sent on.
    """
    first, starts = group_by_key(chunk, order, len(roots))
    ends = starts.copy()
    sort_groups(first, ends, end)
    nodes = len(is_participant)
    total = 0
    for v in range(nodes):
        total += is_participant[v] and not failed[v]
    carried = np.zeros(len(chunk), np.int64)
    last = np.empty(nodes)  # start of each server's last reduce transfer of the chunk
    for c in range(len(roots)):
        root = roots[c]
        for again in range(2):
            for v in range(nodes):
                partial[v, c] = is_participant[v] and not failed[v]
                final[v, c] = False
                since[v, c] = ready[v] if is_participant[v] else 0.0
                last[v] = -np.inf
            i, j = first[c], first[c]
            while True:
                if partial[root, c] == total:
                    final[root, c] = True
                    partial[root, c] = 0
                if j == first[c + 1]:
                    break
                if i == first[c + 1] or end[ends[j]] <= start[starts[i]] + slack:
                    k = ends[j]
                    j += 1
                    if aborted[k]:
                        continue
                    v = target[k]
                    if phase[k] == REDUCE:
                        partial[v, c] += carried[k]
                        since[v, c] = max(since[v, c], end[k])
                    elif not final[v, c]:
                        final[v, c] = True
                        since[v, c] = end[k]
                    continue
                k = starts[i]
                i += 1
                if phase[k] == REDUCE and not aborted[k]:
                    carried[k] = partial[source[k], c]
                    partial[source[k], c] = 0
                    last[source[k]] = start[k]
            if again == 1:
                break
            # Has a dead server taken something along that nobody else has?
            alive = False
            holds = False
            for v in range(nodes):
                alive |= final[v, c] and not failed[v]
                holds |= dead[v]
            if alive or not holds:
                break
            for v in range(nodes):
                # Its own contribution has left with its first reduce transfer.
                if dead[v] and is_participant[v] and last[v] == -np.inf:
                    gone[c] = True
            for n in range(first[c], first[c + 1]):
                k = starts[n]
                v = target[k]
                if dead[v] and phase[k] == REDUCE and not aborted[k] and end[k] > last[v] + slack:
                    aborted[k] = True
                    # A sender that has sent the chunk once more since cannot have kept both apart.
                    if last[source[k]] > start[k]:
                        gone[c] = True
