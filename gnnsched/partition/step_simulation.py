"""One training step of a placed job, simulated exactly: the job completion time, JCT.

Each worker runs its ready part with the shortest run time (preempting a longer one); a message leaves when its source
is done and takes its own time, for messages do not queue. The step is over when all parts and all messages, weight
synchronisation included, are done. PAC-ML, section 3 (arXiv 2301.13799).
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.partition.cluster import Cluster, collective_time
from gnnsched.partition.job_graph import JobGraph
from gnnsched.partition.placement import Placement

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True)
class JobTime:
    """Seconds of a whole job: its completion time, and for how long anything was computed or on its way."""

    jct: float
    computing: float
    communicating: float


@dataclass(frozen=True, eq=False)
class StepProblem:
    """A placed training step as arrays.

    p parts: ``worker``, ``duration`` (p,); op o's parts start at ``first[o]``. e edges between ops: ``tail``,
    ``head`` (e,), with ``delay[delay_start[i] + k * parts of head + l]`` seconds from part k to part l. ``sync``
    (p,): seconds from a part's end until its weights are synchronised.
    """

    worker: Longs
    duration: Floats
    first: Longs
    tail: Longs
    head: Longs
    delay: Floats
    delay_start: Longs
    sync: Floats


def step_problem(graph: JobGraph, placement: Placement, cluster: Cluster) -> StepProblem:
    """Run times of all parts and messages of one step.

    The bytes of an edge are its source's memory, divided evenly over the pairs of parts. All messages out of a split
    forward op, or into a split backward one, that go from a set of workers to the same set are one AllReduce of
    their sum. Each pair of parts of a split backward op exchanges the memory of one part, likewise.
    """
    split = np.array([len(workers) for workers in placement.workers], np.int64)
    first = np.concatenate(([0], np.cumsum(split)))
    duration = np.repeat(graph.compute / split, split)
    grouped = _collectives(graph, placement, cluster)
    delays: list[Floats] = []
    for edge, (tail, head) in enumerate(graph.edges.tolist()):
        shape = (int(split[tail]), int(split[head]))
        if edge in grouped:
            delays.append(np.full(shape, grouped[edge]))
            continue
        part = float(graph.memory[tail]) / (shape[0] * shape[1])
        delays.append(
            np.array(
                [
                    [cluster.transfer_time(int(u), int(v), part) for v in placement.workers[head]]
                    for u in placement.workers[tail]
                ]
            )
        )
    sync = np.zeros(int(first[-1]))
    pair_time: dict[tuple[int, int, float], float] = {}
    for op in range(graph.num_forward, graph.num_ops):
        workers = placement.workers[op].tolist()
        message = 2.0 * float(graph.memory[op]) / len(workers)
        for k, u in enumerate(workers):
            for v in workers:
                key = (min(u, v), max(u, v), message)
                if u != v and key not in pair_time:
                    pair_time[key] = collective_time(key[:2], message, cluster)
                if u != v:
                    sync[first[op] + k] = max(sync[first[op] + k], pair_time[key])
    sizes = [delay.size for delay in delays]
    return StepProblem(
        worker=np.concatenate(placement.workers).astype(np.int64),
        duration=duration,
        first=first,
        tail=graph.edges[:, 0].copy(),
        head=graph.edges[:, 1].copy(),
        delay=np.concatenate([delay.ravel() for delay in delays]) if delays else np.zeros(0),
        delay_start=np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        sync=sync,
    )


def _collectives(graph: JobGraph, placement: Placement, cluster: Cluster) -> dict[int, float]:
    """Seconds of the edges that belong to a collective, by edge."""
    out: dict[int, list[int]] = {}
    into: dict[int, list[int]] = {}
    for edge, (tail, head) in enumerate(graph.edges.tolist()):
        if tail < graph.num_forward:
            out.setdefault(tail, []).append(edge)
        else:
            into.setdefault(head, []).append(edge)
    found: dict[int, float] = {}
    for end, groups in ((1, out), (0, into)):
        for op, edges in groups.items():
            own = placement.workers[op]
            others = graph.edges[edges, end].tolist()
            if len(own) < 2:
                continue
            far = np.concatenate([placement.workers[other] for other in others])
            count = np.bincount(far, minlength=cluster.num_workers)
            # The op's own workers appear once per far part, the far ones once per part of the op.
            if (count[own] * len(own) == len(far)).all() and count.sum() == count[own].sum():
                message = float(graph.memory[graph.edges[edges, 0]].sum())
                time = collective_time(own.tolist(), message, cluster)
                found |= dict.fromkeys(edges, time)
    return found


def simulate_step(problem: StepProblem) -> tuple[float, float, float]:
    """Seconds of the step, and for how long any part was computed and any message on its way."""
    workers, dense = np.unique(problem.worker, return_inverse=True)
    order = np.argsort(problem.tail, kind="stable")
    ops = len(problem.first) - 1
    out_start = np.searchsorted(problem.tail[order], np.arange(ops + 1))
    step, computing, communicating = _run(
        len(workers),
        dense.astype(np.int64),
        problem.duration,
        problem.first,
        order,
        out_start,
        problem.head,
        problem.delay,
        problem.delay_start,
        problem.sync,
    )
    return float(step), float(computing), float(communicating)


def simulate_job(graph: JobGraph, placement: Placement, cluster: Cluster) -> JobTime:
    """Completion time of all training steps of a placed job."""
    return JobTime(*(graph.steps * t for t in simulate_step(step_problem(graph, placement, cluster))))


@njit(cache=True)
def _run(
    workers: int,
    worker: Longs,
    duration: Floats,
    first: Longs,
    order: Longs,
    out_start: Longs,
    head: Longs,
    delay: Floats,
    delay_start: Longs,
    sync: Floats,
) -> tuple[float, float, float]:
    """The event loop: events are (time, kind, part, run): parts that end before those that become ready at that time.

    ``run``: number of the start on its worker that ends, by which ends that a preemption put off are told.
    """
    parts = len(worker)
    op_of = np.zeros(parts, np.int64)
    for op in range(len(first) - 1):
        op_of[first[op] : first[op + 1]] = op
    waiting = np.zeros(parts, np.int64)
    for op in range(len(first) - 1):
        for i in range(out_start[op], out_start[op + 1]):
            target = head[order[i]]
            waiting[first[target] : first[target + 1]] += first[op + 1] - first[op]
    arrival = np.zeros(parts)
    remaining = duration.copy()
    running = np.full(workers, -1, np.int64)
    since = np.zeros(workers)
    starts = np.zeros(workers, np.int64)
    ready = [[(0.0, np.int64(0)) for _ in range(0)] for _ in range(workers)]
    events = [(0.0, np.int64(1), np.int64(p), np.int64(0)) for p in range(parts) if waiting[p] == 0]
    step, now, busy, computing, moving_until, communicating = 0.0, 0.0, 0, 0.0, 0.0, 0.0
    while len(events) > 0:
        time, kind, part, start = heappop(events)
        w = worker[part]
        if kind == 0 and (running[w] != part or starts[w] != start):
            continue
        if busy > 0:
            computing += time - now
        now = time
        if kind == 1:
            heappush(ready[w], (duration[part], part))
        else:
            running[w] = -1
            busy -= 1
            step = max(step, now + sync[part])
            longest = sync[part]
            k = part - first[op_of[part]]
            for i in range(out_start[op_of[part]], out_start[op_of[part] + 1]):
                edge = order[i]
                begin, size = first[head[edge]], first[head[edge] + 1] - first[head[edge]]
                for other in range(size):
                    lasting = delay[delay_start[edge] + k * size + other]
                    longest = max(longest, lasting)
                    target = begin + other
                    arrival[target] = max(arrival[target], now + lasting)
                    waiting[target] -= 1
                    if waiting[target] == 0:
                        heappush(events, (arrival[target], np.int64(1), target, np.int64(0)))
            if longest > 0.0:
                communicating += max(0.0, now + longest - max(now, moving_until))
                moving_until = max(moving_until, now + longest)
        if len(ready[w]) == 0:
            continue
        if running[w] >= 0:
            if ready[w][0] >= (duration[running[w]], running[w]):
                continue
            remaining[running[w]] -= now - since[w]
            heappush(ready[w], (duration[running[w]], running[w]))
            running[w] = -1
            busy -= 1
        _, chosen = heappop(ready[w])
        running[w], since[w] = chosen, now
        starts[w] += 1
        busy += 1
        heappush(events, (now + remaining[chosen], np.int64(0), chosen, starts[w]))
    return max(step, now), computing, communicating
