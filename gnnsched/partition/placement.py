"""How many ways each op is split, and which workers its parts sit on: the plain reference of the compiled simulator."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnsched.partition.cluster import Cluster
from gnnsched.partition.job_graph import JobGraph

Longs = NDArray[np.int64]
# SiP-ML's smallest piece of work worth a worker of its own, in units of a profile's time.
QUANTUM = 0.01


def degrees_of_ops(graph: JobGraph, degree: int, quantum: float, available: Sequence[int]) -> Longs:
    """(2n,): ways each op is split when the job is partitioned up to ``degree`` ways.

    SiP-ML's rule: as many even parts as the forward op has quanta (s), at most ``degree``; a backward op like its
    partner. Rounded down to ``available``, the degrees that the cluster has blocks of.
    """
    split = np.ones(graph.num_forward, np.int64)
    for i, seconds in enumerate(graph.profile.forward_time):
        # A time that is a whole number of quanta must not become one more by rounding.
        wanted = 2 * math.ceil(math.ceil(seconds / quantum - 1e-9) / 2)
        split[i] = max((d for d in available if d <= min(wanted, degree)), default=1)
    return np.concatenate((split, split[::-1]))


@dataclass(frozen=True, eq=False)
class Placement:
    """Workers of each op's parts (2n arrays), and the workers that the job holds, ascending."""

    workers: tuple[NDArray[np.int32], ...]
    held: NDArray[np.int32]


def place(
    graph: JobGraph,
    split: Longs,
    cluster: Cluster,
    free: NDArray[np.bool_],
    forced: Mapping[int, NDArray[np.int32]] | None = None,
) -> Placement | None:
    """Place the ops of a job on ``free`` workers (num_workers,); None where there is no room.

    Forward ops in first-in-first-out topological order: on the workers of the first parent that sits on as many
    workers as the op has parts and has the memory left, else on the first block of free workers with the memory;
    backward parts sit with their partners. ``forced``: by degree, a block to try before the others.
    """
    left = np.where(free, cluster.worker_memory, 0.0)
    parents: list[list[int]] = [[] for _ in range(graph.num_forward)]
    for tail, head in graph.profile.edges.tolist():
        parents[head].append(tail)
    chosen: list[NDArray[np.int32] | None] = [None] * graph.num_ops
    for op in graph.forward_order.tolist():
        degree = int(split[op])
        # Both passes keep their bytes.
        part = 2.0 * graph.memory[op] / degree
        found = None
        for parent in parents[op]:
            workers = chosen[parent]
            if workers is not None and len(workers) == degree and (left[workers] >= part).all():
                found = workers
                break
        block = None if forced is None else forced.get(degree)
        if found is None and block is not None and (left[block] >= part).all():
            found = block
        if found is None:
            for workers in cluster.blocks(degree).workers:
                if free[workers].all() and (left[workers] >= part).all():
                    found = workers
                    break
        if found is None:
            return None
        left[found] -= part
        chosen[op] = chosen[graph.num_ops - 1 - op] = found
    placed = tuple(workers for workers in chosen if workers is not None)
    return Placement(placed, np.unique(np.concatenate(placed)).astype(np.int32))


def place_exactly(graph: JobGraph, split: Longs, block: NDArray[np.int32]) -> Placement:
    """All ops on the first workers of one block: the job holds that block and nothing else."""
    return Placement(tuple(block[:degree] for degree in split.tolist()), np.sort(block))
