"""Lookahead: each choice is tried out on drawn futures in the simulator, the policy going on from it.

A choice is worth the jobs that it lets in over the next arrivals, plus the policy's own value of where that ends
(rollouts after Tesauro and Galperin, 1996). Choices share their futures, and those that fall behind are dropped.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from gnnsched.partition.compiled_policy import Weights, best_row, value_of
from gnnsched.partition.episode import Outcome
from gnnsched.partition.features import Choices, no_choices, observe, see
from gnnsched.partition.kernel import take
from gnnsched.partition.network import ACCEPTED, BLOCKED, DISCOUNT
from gnnsched.partition.workload import Arrivals, Betas, in_time
from gnnsched.partition.world import Bools, Floats, Longs, Tables, World


@dataclass(frozen=True)
class Lookahead:
    """``futures`` of ``arrivals`` arrivals at most for each choice; after each ``batch`` of them, a choice is dropped
    whose mean is ``drop`` standard errors of the paired differences below the best one's.
    """

    futures: int = 192
    arrivals: int = 24
    batch: int = 8
    drop: float = 2.0


@njit(cache=True)
def _rollout(
    tables: Tables,
    weights: Weights,
    release: Floats,
    seen: Floats,
    begin: int,
    model: Longs,
    beta: Floats,
    interarrival: float,
    horizon: float,
    choices: Choices,
) -> float:
    """Discounted reward of the arrivals from number ``begin`` on, and the value of what comes after them.

    The last of ``model`` and ``beta`` is the arrival that is valued, not decided. ``release`` and ``seen`` change.
    """
    total, factor = 0.0, 1.0
    for k in range(len(model)):
        now = (begin + k) * interarrival
        if not in_time(now, horizon):
            return total
        see(seen, beta[k], tables.sequential[model[k]])
        observe(tables, release, now, model[k], beta[k], seen, interarrival, horizon, choices)
        if k == len(model) - 1:
            return total + factor * value_of(weights, model[k], choices.rows, choices.mask)
        row = best_row(weights, model[k], choices.rows, choices.mask)
        time, _ = take(tables, release, now, model[k], beta[k], row, choices.held)
        total += factor * _reward(time, now + time, horizon)
        factor *= DISCOUNT
    return total


@njit(cache=True)
def _reward(lasting: float, end: float, horizon: float) -> float:
    return ACCEPTED if lasting > 0.0 and in_time(end, horizon) else BLOCKED


@njit(cache=True)
def weigh(
    tables: Tables,
    weights: Weights,
    release: Floats,
    seen: Floats,
    at: int,
    model: int,
    beta: float,
    legal: Longs,
    futures_model: Longs,
    futures_beta: Floats,
    interarrival: float,
    horizon: float,
    batch: int,
    drop: float,
    choices: Choices,
) -> tuple[int, Floats]:
    """Try each of the ``legal`` rows on the futures (futures, arrivals + 1); see ``Lookahead``.

    Returns which one went best, and each one's mean worth (legal,), of as many futures as it was tried on.
    """
    futures = len(futures_model)
    worth = np.zeros((len(legal), futures))
    mean = np.zeros(len(legal))
    alive = np.ones(len(legal), np.bool_)
    after, counted = np.empty_like(release), np.empty_like(seen)
    now = at * interarrival
    done = 0
    while done < futures:
        for f in range(done, min(done + batch, futures)):
            for c in range(len(legal)):
                if not alive[c]:
                    continue
                after[:] = release
                counted[:] = seen
                time, _ = take(tables, after, now, model, beta, legal[c], choices.held)
                worth[c, f] = _reward(time, now + time, horizon) + DISCOUNT * _rollout(
                    tables,
                    weights,
                    after,
                    counted,
                    at + 1,
                    futures_model[f],
                    futures_beta[f],
                    interarrival,
                    horizon,
                    choices,
                )
        done = min(done + batch, futures)
        best, left = -1, 0
        for c in range(len(legal)):
            if alive[c]:
                mean[c] = worth[c, :done].mean()
                if best < 0 or mean[c] > mean[best]:
                    best = c
        for c in range(len(legal)):
            if alive[c] and c != best:
                behind = worth[best, :done] - worth[c, :done]
                if behind.mean() >= drop * behind.std() / np.sqrt(done):
                    alive[c] = False
            left += alive[c]
        if left == 1:
            break
    return best, mean


def draw_futures(
    shape: tuple[int, ...], models: int, betas: Betas, rng: np.random.Generator
) -> tuple[Longs, Floats]:
    """Models, in equal parts, and limits of arrivals to come."""
    edges = np.cumsum(betas.probability)
    edges[-1] = np.inf
    return rng.integers(models, size=shape), betas.value[
        np.searchsorted(edges, rng.random(shape), side="right")
    ]


@njit(cache=True, nogil=True)
def weigh_many(
    tables: Tables,
    weights: Weights,
    release: Floats,
    seen: Floats,
    at: Longs,
    model: Longs,
    beta: Floats,
    mask: Bools,
    futures_model: Longs,
    futures_beta: Floats,
    interarrival: float,
    horizon: float,
    batch: int,
    drop: float,
) -> tuple[Longs, Floats]:
    """``weigh`` for many episodes at once: all arrays have one more axis in front.

    Returns the best rows (episodes,) and the worth of each (episodes, D + 1), zero where a row is not legal.
    """
    best, worth = np.zeros(len(at), np.int64), np.zeros(mask.shape)
    choices = no_choices(tables)
    for e in range(len(at)):
        legal = np.flatnonzero(mask[e])
        first, mean = weigh(
            tables,
            weights,
            release[e],
            seen[e],
            at[e],
            model[e],
            beta[e],
            legal,
            futures_model[e],
            futures_beta[e],
            interarrival,
            horizon,
            batch,
            drop,
            choices,
        )
        best[e] = legal[first]
        for c in range(len(legal)):
            worth[e, legal[c]] = mean[c]
    return best, worth


def run_lookahead(
    world: World,
    arrivals: Arrivals,
    weights: Weights,
    betas: Betas,
    rng: np.random.Generator,
    settings: Lookahead | None = None,
) -> Outcome:
    """One episode with lookahead: futures are drawn from the models in equal parts and from ``betas``, never seen."""
    settings = settings or Lookahead()
    outcome = Outcome.empty(len(arrivals))
    tables = world.tables
    release, seen, choices = np.zeros(tables.workers), np.zeros(4), no_choices(tables)
    shape = (settings.futures, settings.arrivals + 1)
    for i in range(len(arrivals)):
        now, model, beta = i * arrivals.interarrival, int(arrivals.model[i]), float(arrivals.beta[i])
        see(seen, beta, tables.sequential[model])
        observe(tables, release, now, model, beta, seen, arrivals.interarrival, arrivals.horizon, choices)
        legal = np.flatnonzero(choices.mask)
        row = legal[0]
        if len(legal) > 1:
            best, _ = weigh(
                tables,
                weights,
                release,
                seen,
                i,
                model,
                beta,
                legal,
                *draw_futures(shape, len(world.models), betas, rng),
                arrivals.interarrival,
                arrivals.horizon,
                settings.batch,
                settings.drop,
                choices,
            )
            row = legal[best]
        outcome.degree[i] = 0 if row == 0 else tables.degree[row - 1]
        outcome.lasting[i], outcome.holding[i] = take(tables, release, now, model, beta, row, choices.held)
    return outcome
