"""The baseline ``rule``: a degree and a reserve per model, tuned on arrivals of their own."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gnnsched.partition.baselines import run_baseline
from gnnsched.partition.episode import metrics
from gnnsched.partition.seeds import TUNING, generator
from gnnsched.partition.workload import Arrivals, Betas, draw_arrivals
from gnnsched.partition.world import World

EPISODES = 6
PASSES = 2
# Workers that a job must leave free, as parts of the cluster.
RESERVES = (0.0, 0.0625, 0.125, 0.25, 0.5)


def tune_rule(
    world: World, betas: Betas, distribution: str, progress: Callable[[str], None] | None = None
) -> NDArray[np.int64]:
    """Parameters (2 M,) of ``rule``: per model the number of the degree that it begins at, then workers left free.

    A job gets the first degree from there upwards that can be placed, meets the limit and leaves so many workers
    free; else the largest one below that does; else it is refused. Found coordinate by coordinate, from the best
    degree that is the same for all models, on episodes that no evaluation uses.
    """
    models, workers = len(world.models), world.tables.workers
    episodes = [
        draw_arrivals(models, betas, generator(TUNING, distribution, seed), world.time_unit)
        for seed in range(EPISODES)
    ]
    best, least = np.zeros(2 * models, np.int64), np.inf

    def consider(candidate: NDArray[np.int64]) -> None:
        nonlocal best, least
        rate = _blocking(world, episodes, candidate)
        if rate < least:
            best, least = candidate, rate

    for j in range(len(world.tables.degree)):
        consider(np.concatenate((np.full(models, j), np.zeros(models, np.int64))))
    for turn in range(PASSES):
        for m in range(models):
            if progress is not None:
                progress(
                    f"tuning the rule, distribution {distribution}, pass {turn + 1}, {world.model_names[m]}"
                )
            choices = (range(len(world.tables.degree)), sorted({round(r * workers) for r in RESERVES}))
            for place, values in zip((m, models + m), choices):
                for value in values:
                    changed = best.copy()
                    changed[place] = value
                    consider(changed)
    return best


def _blocking(world: World, episodes: list[Arrivals], rule: NDArray[np.int64]) -> float:
    unused = np.random.default_rng(0)
    outcomes = [run_baseline(world, arrivals, "rule", unused, rule) for arrivals in episodes]
    return float(
        np.mean([metrics(world, own, outcome).blocking_rate for own, outcome in zip(episodes, outcomes)])
    )
