"""What the policy sees of a decision: for each degree, and for a refusal, the cluster as it would be afterwards.

After-state features: which part of the aligned blocks of each size would be free, and whether any block at all, now
and some arrivals later, were the job placed like this. All numbers are relative: to the cluster, to the job's limit,
or to the time between two arrivals; nothing is an id or a size.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.partition.kernel import take, try_place, within
from gnnsched.partition.workload import in_time
from gnnsched.partition.world import Bools, Floats, Longs, Tables

# Of which blocks this is shown, and how many arrivals ahead.
SHOWN_DEGREES = (1, 2, 4, 6, 8, 16)
SHOWN_ARRIVALS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_DEGREES = np.array(SHOWN_DEGREES)
_AHEAD = np.array(SHOWN_ARRIVALS)

AFTER_FEATURES = tuple(
    f"{what}_of_{d}_after_{t:g}"
    for what in ("free_aligned_blocks", "any_free_block")
    for t in SHOWN_ARRIVALS
    for d in SHOWN_DEGREES
)
CHOICE_FEATURES = (
    "refuse",
    "log_degree",
    "time_over_limit",
    "log_time_in_arrivals",
    "workers_held",
    "work_in_arrivals",
)
JOB_FEATURES = (
    "beta",
    "log_sequential_in_arrivals",
    "sequential_over_mean",
    "mean_beta",
    "spread_of_beta",
    "log_arrivals_seen",
    "horizon_left",
    "side_blocks",
)
FEATURES = AFTER_FEATURES + CHOICE_FEATURES + JOB_FEATURES

_COUNT = len(FEATURES)
# What is free at the very moment of an arrival is so whichever way its time was rounded.
_AT_ONCE = 1e-9

Singles = NDArray[np.float32]
# Fewest arrivals that the running mean of beta is trusted after; before, it is drawn towards the middle.
_PRIOR_ARRIVALS, _PRIOR_MEAN, _PRIOR_SPREAD = 4.0, 0.5, 0.2


class Choices(NamedTuple):
    """What can be done about a job: row 0 is the refusal, row j + 1 degree number j of the cluster's D.

    ``rows`` (D + 1, features); ``mask`` (D + 1,): degrees that can be placed now and meet the limit, and the refusal;
    ``held`` (N,) is scratch.
    """

    held: Bools
    rows: Singles
    mask: Bools


@njit(cache=True)
def no_choices(tables: Tables) -> Choices:
    """Room for the choices on the cluster of ``tables``."""
    count = len(tables.degree) + 1
    return Choices(
        np.zeros(tables.workers, np.bool_),
        np.zeros((count, _COUNT), np.float32),
        np.zeros(count, np.bool_),
    )


@njit(cache=True)
def _level(free_in: float, interarrival: float) -> int:
    """Number of the first moment shown at which is free what is free in ``free_in`` seconds; after all, their count."""
    level = 0
    while level < len(_AHEAD) and free_in > (_AHEAD[level] + _AT_ONCE) * interarrival:
        level += 1
    return level


@njit(cache=True)
def _meet(some: NDArray[np.uint64], i: int, others: NDArray[np.uint64], j: int) -> bool:
    """Whether the sets in row ``i`` and row ``j``, as bits, have a member in common."""
    common = np.uint64(0)
    for word in range(some.shape[1]):
        common |= some[i, word] & others[j, word]
    return bool(common)


@njit(cache=True)
def observe(
    tables: Tables,
    release: Floats,
    now: float,
    model: int,
    beta: float,
    seen: Floats,
    interarrival: float,
    horizon: float,
    choices: Choices,
) -> None:
    """Fill in the ``choices`` of the job that arrives ``now``.

    ``seen``: number of arrivals so far, this one included, sum of their betas, of the squares, and of their
    sequential times.
    """
    held, rows, mask = choices.held, choices.rows, choices.mask
    blocks, words, shown, levels = *tables.block_mask.shape, len(_DEGREES), len(_AHEAD)
    slot_of = np.full(len(tables.degree), -1, np.int64)
    for j in range(len(tables.degree)):
        for s in range(shown):
            if _DEGREES[s] == tables.degree[j]:
                slot_of[j] = s
    # Bit by bit which workers are still busy at each of the moments that are shown. A block's level is the number of
    # the first one at which it is free.
    busy = np.zeros((levels, words), np.uint64)
    for worker in range(tables.workers):
        bit = np.uint64(1) << np.uint64(worker % 64)
        for t in range(_level(release[worker] - now, interarrival)):
            busy[t, worker // 64] |= bit
    level = np.empty(blocks, np.int64)
    total = np.zeros(shown)
    free = np.zeros((2, levels + 1, shown))
    for b in range(blocks):
        s = slot_of[tables.block_degree[b]]
        if s < 0:
            continue
        t = levels
        while t > 0 and not _meet(tables.block_mask, b, busy, t - 1):
            t -= 1
        level[b] = t
        free[1, t, s] += 1.0
        if tables.aligned[b]:
            free[0, t, s] += 1.0
            total[s] += 1.0
    taken = np.zeros((1, words), np.uint64)
    after = np.empty_like(free)
    sequential = tables.sequential[model]
    limit = beta * sequential
    count = seen[0] + _PRIOR_ARRIVALS
    mean = (seen[1] + _PRIOR_ARRIVALS * _PRIOR_MEAN) / count
    square = (seen[2] + _PRIOR_ARRIVALS * (_PRIOR_MEAN**2 + _PRIOR_SPREAD**2)) / count
    rows[:] = 0.0
    for row in range(len(tables.degree) + 1):
        time = 0.0
        if row > 0:
            time = try_place(tables, release, now, model, row - 1, held)
            if tables.told:
                mask[row] = within(time, limit)
            else:
                mask[row] = time >= 0.0
                # A job that is of use takes its limit at most.
                time = limit
            if not mask[row]:
                continue
        else:
            held[:] = False
            mask[0] = True
        taken[:] = 0
        workers = 0
        for worker in range(tables.workers):
            if held[worker]:
                taken[0, worker // 64] |= np.uint64(1) << np.uint64(worker % 64)
                workers += 1
        after[:] = free
        until = _level(time, interarrival)
        for b in range(blocks):
            s = slot_of[tables.block_degree[b]]
            if s >= 0 and level[b] < until and _meet(tables.block_mask, b, taken, 0):
                for kind in range(0 if tables.aligned[b] else 1, 2):
                    after[kind, level[b], s] -= 1.0
                    after[kind, until, s] += 1.0
        f = levels * shown
        for s in range(shown):
            aligned, any_block = 0.0, 0.0
            for t in range(levels):
                aligned += after[0, t, s]
                any_block += after[1, t, s]
                if aligned > 0.0:
                    rows[row, t * shown + s] = aligned / total[s]
                if any_block > 0.0:
                    rows[row, f + t * shown + s] = 1.0
        f *= 2
        if row == 0:
            rows[row, f] = 1.0
        else:
            rows[row, f + 1] = np.log2(tables.degree[row - 1]) / 4.0
            rows[row, f + 2] = time / limit
            rows[row, f + 3] = np.log2(1.0 + time / interarrival) / 4.0
            rows[row, f + 4] = workers / tables.workers
            rows[row, f + 5] = workers * time / (tables.workers * interarrival)
        f += 6
        rows[row, f] = beta
        rows[row, f + 1] = np.log2(1.0 + sequential / interarrival) / 5.0
        rows[row, f + 2] = sequential * seen[0] / max(seen[3], 1e-300)
        rows[row, f + 3] = mean
        rows[row, f + 4] = np.sqrt(max(square - mean * mean, 0.0))
        rows[row, f + 5] = np.log1p(seen[0]) / 7.0
        rows[row, f + 6] = min(1.0, (horizon - now) / (16.0 * interarrival))
        # Where jobs hold their small ops' blocks too, other degrees leave room for the next ones.
        rows[row, f + 7] = 0.0 if tables.exact else 1.0


@njit(cache=True)
def see(seen: Floats, beta: float, sequential: float) -> None:
    """Count an arrival in ``seen``."""
    seen[0] += 1.0
    seen[1] += beta
    seen[2] += beta * beta
    seen[3] += sequential


@njit(cache=True)
def observe_many(
    tables: Tables,
    release: Floats,
    at: Longs,
    model: Longs,
    beta: Floats,
    seen: Floats,
    interarrival: float,
    horizon: float,
    rows: Singles,
    mask: Bools,
) -> None:
    """``observe`` for many episodes at once: all arrays have one more axis in front; ``at``: arrivals before."""
    held = np.zeros(tables.workers, np.bool_)
    for e in range(len(at)):
        observe(
            tables,
            release[e],
            at[e] * interarrival,
            model[e],
            beta[e],
            seen[e],
            interarrival,
            horizon,
            Choices(held, rows[e], mask[e]),
        )


@njit(cache=True)
def act_many(
    tables: Tables,
    release: Floats,
    at: Longs,
    model: Longs,
    beta: Floats,
    row: Longs,
    interarrival: float,
    horizon: float,
    accepted: Bools,
) -> None:
    """Carry out a decision per episode, ``row`` 0 for a refusal; ``accepted``: whether the job will be done in time.

    A job that is still running at the horizon is a blocked one.
    """
    held = np.zeros(tables.workers, np.bool_)
    for e in range(len(at)):
        now = at[e] * interarrival
        time, _ = take(tables, release[e], now, model[e], beta[e], row[e], held)
        accepted[e] = time > 0.0 and in_time(now + time, horizon)
