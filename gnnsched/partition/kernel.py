"""The compiled part of the simulator: which workers are free, where a job goes, what each baseline decides."""

import numpy as np
from numba import njit

from gnnsched.partition.episode import Outcome
from gnnsched.partition.world import Bools, Floats, Longs, Tables

# Baselines by number. A cap has one parameter, the rule three for each model.
MAX, ACCEPTABLE, RANDOM, CAP, SMALLEST_FIT, RULE = range(6)
REFUSE = -1
# Where a rule turns to when the degree that it begins at will not do.
NOWHERE, UPWARDS, ANYWHERE = range(3)


@njit(cache=True)
def first_fit(tables: Tables, release: Floats, now: float, j: int) -> int:
    """The first block of degree number ``j`` whose workers are all free ``now``; -1 where there is none."""
    degree = tables.degree[j]
    for block in range(tables.block_start[j], tables.block_start[j + 1]):
        fits = True
        for k in range(degree):
            if release[tables.block_workers[block, k]] > now:
                fits = False
                break
        if fits:
            return block
    return -1


@njit(cache=True)
def try_place(tables: Tables, release: Floats, now: float, model: int, j: int, held: Bools) -> float:
    """Mark in ``held`` (N,) the workers of a job partitioned up to degree number ``j``.

    Returns its completion time, s; -1 where there is no room (then ``held`` means nothing).
    """
    held[:] = False
    if tables.binds[model, j] and not tables.exact:
        return _place_ops(tables, release, now, model, j, held)
    main = tables.largest[model, j]
    lasting = -1.0
    for used in range(len(tables.degree)):
        if used == main or (tables.uses[model, j, used] and not tables.exact):
            block = first_fit(tables, release, now, used)
            if block < 0:
                return -1.0
            for k in range(tables.degree[used]):
                held[tables.block_workers[block, k]] = True
            if used == main:
                lasting = tables.jct[model, j, tables.block_kind[block]]
    return lasting if np.isfinite(lasting) else -1.0


@njit(cache=True)
def _place_ops(tables: Tables, release: Floats, now: float, model: int, j: int, held: Bools) -> float:
    """``try_place`` op by op, with an eye on each worker's memory."""
    # On a worker of another job not even a part without bytes has room.
    left = np.where(release <= now, tables.worker_memory, -1.0)
    begin, end = tables.op_start[model], tables.op_start[model + 1]
    at = np.full(end - begin, -1, np.int64)
    main = tables.largest[model, j]
    lasting = -1.0
    for op in range(begin, end):
        used = tables.op_degree[op, j]
        degree = tables.degree[used]
        part = tables.op_bytes[op] / degree
        found = -1
        for i in range(tables.parent_start[op], tables.parent_start[op + 1]):
            parent = tables.op_parents[i]
            if tables.op_degree[parent, j] == used and _has_memory(
                tables, left, at[parent - begin], degree, part
            ):
                found = at[parent - begin]
                break
        if found < 0:
            for block in range(tables.block_start[used], tables.block_start[used + 1]):
                if _has_memory(tables, left, block, degree, part):
                    found = block
                    break
        if found < 0:
            return -1.0
        at[op - begin] = found
        for k in range(degree):
            worker = tables.block_workers[found, k]
            left[worker] -= part
            held[worker] = True
        if used == main and lasting < 0.0:
            lasting = tables.jct[model, j, tables.block_kind[found]]
    return lasting if np.isfinite(lasting) else -1.0


@njit(cache=True)
def _has_memory(tables: Tables, left: Floats, block: int, degree: int, part: float) -> bool:
    for k in range(degree):
        worker = tables.block_workers[block, k]
        if left[worker] < part:
            return False
    return True


@njit(cache=True)
def within(lasting: float, limit: float) -> bool:
    """Whether a job that takes ``lasting`` seconds (negative: does not fit) meets its ``limit``."""
    return 0.0 <= lasting <= limit * (1.0 + 1e-9)


@njit(cache=True)
def decide(
    tables: Tables,
    kind: int,
    parameter: Longs,
    release: Floats,
    now: float,
    model: int,
    beta: float,
    chance: float,
    held: Bools,
) -> int:
    """Degree number that baseline ``kind`` chooses for the job that arrives ``now``; ``REFUSE`` for none.

    The published baselines look at how many workers are free; smallest fit and rule at what can be placed and meets
    the limit. ``chance``: uniform in [0, 1).
    """
    free = 0
    for worker in range(tables.workers):
        if release[worker] <= now:
            free += 1
    legal = 0
    while legal < len(tables.degree) and tables.degree[legal] <= free:
        legal += 1
    if legal == 0:
        return REFUSE
    if kind == MAX:
        return legal - 1
    if kind == RANDOM:
        return int(chance * legal)
    if kind == ACCEPTABLE:
        wanted = np.ceil(1.0 / beta - 1e-9)
        for j in range(legal):
            if tables.degree[j] >= wanted:
                return j
        return legal - 1
    if kind == CAP:
        j = legal - 1
        while j > 0 and tables.degree[j] > parameter[0]:
            j -= 1
        return j
    limit = beta * tables.sequential[model]
    models = len(tables.sequential)
    begin = 0 if kind == SMALLEST_FIT else parameter[model]
    fallback = UPWARDS if kind == SMALLEST_FIT else parameter[models + model]
    for attempt in range(len(tables.degree)):
        # Upwards from where the rule begins; what is below comes last, the largest first.
        j = begin + attempt
        if (attempt > 0 and fallback == NOWHERE) or (j >= len(tables.degree) and fallback == UPWARDS):
            return REFUSE
        if j >= len(tables.degree):
            j = len(tables.degree) - 1 - attempt
        if not within(try_place(tables, release, now, model, j, held), limit):
            continue
        if kind == RULE:
            left = free
            for worker in range(tables.workers):
                if held[worker]:
                    left -= 1
            if left < parameter[2 * models + model]:
                continue
        return j
    return REFUSE


@njit(cache=True)
def run_baseline(
    tables: Tables,
    kind: int,
    parameter: Longs,
    model: Longs,
    beta: Floats,
    chance: Floats,
    interarrival: float,
    outcome: Outcome,
) -> None:
    """One episode, into ``outcome``."""
    release = np.zeros(tables.workers)
    held = np.zeros(tables.workers, np.bool_)
    for i in range(len(model)):
        now = i * interarrival
        j = decide(tables, kind, parameter, release, now, model[i], beta[i], chance[i], held)
        if j == REFUSE:
            continue
        outcome.degree[i] = tables.degree[j]
        time = try_place(tables, release, now, model[i], j, held)
        if within(time, beta[i] * tables.sequential[model[i]]):
            outcome.lasting[i] = time
            outcome.holding[i] = hold(release, held, now + time)


@njit(cache=True)
def hold(release: Floats, held: Bools, until: float) -> int:
    """Give the ``held`` workers to a job until then; returns their number."""
    count = 0
    for worker in range(len(held)):
        if held[worker]:
            release[worker] = until
            count += 1
    return count


@njit(cache=True)
def take(
    tables: Tables, release: Floats, now: float, model: int, beta: float, row: int, held: Bools
) -> tuple[float, int]:
    """Carry out a choice, ``row`` 0 for a refusal and j + 1 for degree number j.

    Returns the job's completion time (s; 0 for a refusal, or where it exceeds its limit) and the workers held. Where
    times are not told, a job that exceeds its limit is found out only then, and holds its workers until it.
    """
    if row == 0:
        return 0.0, 0
    time = try_place(tables, release, now, model, row - 1, held)
    limit = beta * tables.sequential[model]
    if within(time, limit):
        return time, hold(release, held, now + time)
    if time < 0.0 or tables.told:
        return 0.0, 0
    return 0.0, hold(release, held, now + limit)
