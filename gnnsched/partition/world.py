"""Everything that the compiled simulator looks up: blocks of the cluster, and per model and degree what a job takes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnsched.partition.cluster import Blocks, Cluster, degrees
from gnnsched.partition.job_graph import JobGraph
from gnnsched.partition.placement import QUANTUM, Placement, degrees_of_ops, place, place_exactly
from gnnsched.partition.step_simulation import simulate_job
from gnnsched.topology.errors import InputError

Holding = Literal["faithful", "exact"]

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Tables(NamedTuple):
    """Arrays of a cluster with N workers and D degrees, and of M models; degrees are numbered 0..D-1, ascending.

    ``degree`` (D,); blocks of degree j are rows ``block_start[j]`` to ``block_start[j + 1]`` of ``block_workers``
    (b, 16), padded with -1, with ``block_kind`` (b,), ``block_degree`` (b,) and, as bits, ``block_mask`` (b, words).
    ``aligned`` (b,): whether the block is one of those that fill an empty cluster, by first fit, a degree at a time.

    ``told``: whether who decides knows how long jobs will take; else a job that exceeds its limit is found out only
    then, and holds its workers until it.

    ``largest`` (M, D): the largest degree of any op when the job is partitioned up to degree j; ``uses`` (M, D, D):
    the degrees of all its ops. ``jct`` (M, D, kinds): seconds with the largest degree's block of that kind, inf
    where there is none. ``sequential`` (M,): seconds on one worker; ``bytes`` (M,): memory of all ops and bytes of all
    edges of the whole graph. Where memory may bind (``binds`` (M, D)), ops are placed one by one: ``op_start`` (M +
    1,), ops in the order in which they are placed, with the place of each one's parents in that order,
    ``op_parents[parent_start[o]:parent_start[o + 1]]``, ``op_bytes`` and, per degree, ``op_degree`` (ops, D).
    """

    workers: int
    worker_memory: float
    exact: bool
    told: bool
    degree: Longs
    block_start: Longs
    block_workers: Longs
    block_kind: Longs
    block_degree: Longs
    block_mask: NDArray[np.uint64]
    aligned: Bools
    largest: Longs
    uses: Bools
    jct: Floats
    sequential: Floats
    bytes: Floats
    binds: Bools
    op_start: Longs
    parent_start: Longs
    op_parents: Longs
    op_bytes: Floats
    op_degree: Longs


@dataclass(frozen=True, eq=False)
class World:
    """A cluster, the models that arrive on it, and the tables made of both.

    ``time_unit``: seconds of a unit of the profiles' time. ``holding``: a job holds the workers of all its ops'
    blocks (faithful, as published), or just as many as its degree (exact, the only way on a topology).
    """

    cluster: Cluster
    models: tuple[JobGraph, ...]
    time_unit: float
    holding: Holding
    tables: Tables

    @property
    def label(self) -> str:
        """Cluster, holding and models in a word."""
        return f"{self.cluster.name}-{self.holding}-{self.model_names[0]}+{len(self.models) - 1}"

    @property
    def fingerprint(self) -> str:
        """Tells worlds apart in which jobs take other times or are placed otherwise."""
        digest = hashlib.sha256()
        for array in (self.tables.block_workers, self.tables.jct, self.tables.sequential):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @property
    def jobs(self) -> tuple[tuple[JobGraph, Cluster], ...]:
        """Each model, with the cluster that it runs on."""
        return tuple((model, self.cluster) for model in self.models)

    def without_times(self) -> "World":
        """The same world, but who decides is not told how long jobs will take, see ``Tables.told``."""
        return replace(self, tables=self.tables._replace(told=False))

    @property
    def model_names(self) -> tuple[str, ...]:
        return tuple(model.name for model in self.models)


def holding_on(cluster: Cluster, holding: Holding) -> Holding:
    """How jobs are held when ``holding`` is asked for: without side blocks always exactly."""
    return holding if cluster.side_blocks else "exact"


def make_world(
    cluster: Cluster, models: Sequence[JobGraph], time_unit: float, holding: Holding = "faithful"
) -> World:
    """Simulate every model at every degree on every kind of block.

    A job's largest blocks are of the kind in question, its other ops where they come on an otherwise empty cluster.
    Raises InputError, naming line and field, for a model with an op that is too large for the cluster's workers.
    """
    holding = holding_on(cluster, holding)
    known = degrees(cluster)
    blocks = [cluster.blocks(d) for d in known]
    for model in models:
        _check_memory(model, cluster, degrees_of_ops(model, known[-1], QUANTUM * time_unit, known))
    kinds = max(block.num_kinds for block in blocks)
    shape = (len(models), len(known))
    largest = np.zeros(shape, np.int64)
    uses = np.zeros((*shape, len(known)), bool)
    binds = np.zeros(shape, bool)
    jct = np.full((*shape, kinds), np.inf)
    op_degree: list[Longs] = []
    for m, model in enumerate(models):
        columns = []
        for j, degree in enumerate(known):
            split = degrees_of_ops(model, degree, QUANTUM * time_unit, known)
            columns.append(np.searchsorted(known, split[model.forward_order]))
            uses[m, j, columns[-1]] = True
            largest[m, j] = columns[-1].max()
            binds[m, j] = float((model.memory / split).sum()) > cluster.worker_memory
            for kind in range(blocks[largest[m, j]].num_kinds):
                jct[m, j, kind] = _completion(model, split, cluster, blocks[largest[m, j]], kind, holding)
        op_degree.append(np.stack(columns, 1))
        if not np.isfinite(jct[m]).any():
            raise InputError(
                f"{model.profile.file or model.name}: the job's {model.total_memory:.3g} bytes fit on no block of "
                f"{cluster.name}; use a smaller batch or larger workers"
            )
    start, workers, kind_of = _stacked(blocks)
    parent_start, op_parents = _parents(models)
    tables = Tables(
        workers=cluster.num_workers,
        worker_memory=cluster.worker_memory,
        exact=holding == "exact",
        told=True,
        degree=np.array(known, np.int64),
        block_start=start,
        block_workers=workers,
        block_kind=kind_of,
        block_degree=np.repeat(np.arange(len(known)), np.diff(start)),
        block_mask=_masks(workers, cluster.num_workers),
        aligned=np.concatenate([_aligned(block, cluster.num_workers) for block in blocks]),
        largest=largest,
        uses=uses,
        jct=jct,
        sequential=np.array([model.sequential_time for model in models]),
        bytes=np.array([model.total_memory + model.total_edge_bytes for model in models]),
        binds=binds,
        op_start=np.cumsum([0] + [model.num_forward for model in models]).astype(np.int64),
        parent_start=parent_start,
        op_parents=op_parents,
        op_bytes=np.concatenate([2.0 * model.memory[model.forward_order] for model in models]),
        op_degree=np.concatenate(op_degree).astype(np.int64),
    )
    return World(cluster, tuple(models), time_unit, holding, tables)


def _check_memory(model: JobGraph, cluster: Cluster, split: Longs) -> None:
    """``split``: how many ways each op is split at most."""
    for i in range(model.num_forward):
        part = 2.0 * float(model.memory[i]) / float(split[i])
        if part > cluster.worker_memory:
            profile = model.profile
            activation = profile.activation_bytes[i] >= profile.parameter_bytes[i]
            where = f"{profile.file}: line {profile.lines[i]}" if profile.lines else profile.name
            raise InputError(
                f"{where}: node{i + 1}: {'activation_size' if activation else 'parameter_size'}: a part of {part:.3g} "
                f"bytes, split {split[i]} ways, is more than the {cluster.worker_memory:.3g} of a worker of "
                f"{cluster.name}; use a smaller batch or larger workers"
            )


def _completion(
    model: JobGraph, split: Longs, cluster: Cluster, blocks: Blocks, kind: int, holding: Holding
) -> float:
    block = blocks.of_kind(kind)
    if holding == "exact":
        exact = place_exactly(model, split, block)
        fits = max(_bytes_by_worker(model, exact).values()) <= cluster.worker_memory
        return simulate_job(model, exact, cluster).jct if fits else np.inf
    everything = np.ones(cluster.num_workers, bool)
    placement = place(model, split, cluster, everything, {len(block): block})
    return np.inf if placement is None else simulate_job(model, placement, cluster).jct


def _bytes_by_worker(model: JobGraph, placement: Placement) -> dict[int, float]:
    total: dict[int, float] = {}
    for op, workers in enumerate(placement.workers):
        for worker in workers.tolist():
            total[worker] = total.get(worker, 0.0) + float(model.memory[op]) / len(workers)
    return total


def _stacked(blocks: Sequence[Blocks]) -> tuple[Longs, Longs, Longs]:
    start = np.cumsum([0] + [len(block) for block in blocks]).astype(np.int64)
    widest = max(block.workers.shape[1] for block in blocks)
    workers = np.full((start[-1], widest), -1, np.int64)
    for begin, block in zip(start, blocks):
        workers[begin : begin + len(block), : block.workers.shape[1]] = block.workers
    return start, workers, np.concatenate([block.kind for block in blocks]).astype(np.int64)


def _aligned(blocks: Blocks, workers: int) -> Bools:
    """(b,): the blocks that first fit takes one after the other from an empty cluster."""
    free = np.ones(workers, bool)
    chosen = np.zeros(len(blocks), bool)
    for row, members in enumerate(blocks.workers):
        if free[members].all():
            free[members] = False
            chosen[row] = True
    return chosen


def _masks(workers: Longs, count: int) -> NDArray[np.uint64]:
    """(b, words): a bit for each of ``count`` workers."""
    masks = np.zeros((len(workers), -(-count // 64)), np.uint64)
    for row, members in enumerate(workers):
        for worker in members[members >= 0].tolist():
            masks[row, worker // 64] |= np.uint64(1 << worker % 64)
    return masks


def _parents(models: Sequence[JobGraph]) -> tuple[Longs, Longs]:
    start, parents, shift = [0], [], 0
    for model in models:
        place_of = np.empty(model.num_forward, np.int64)
        place_of[model.forward_order] = np.arange(model.num_forward)
        own: list[list[int]] = [[] for _ in range(model.num_forward)]
        for tail, head in model.profile.edges.tolist():
            own[place_of[head]].append(shift + int(place_of[tail]))
        for one in own:
            parents += one
            start.append(len(parents))
        shift += model.num_forward
    return np.array(start, np.int64), np.array(parents, np.int64)
