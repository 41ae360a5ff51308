"""The baseline ``rule``: a degree and a reserve per model, tuned on arrivals of their own."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gnnsched.partition import kernel
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
    """Parameters (3 M,) of ``rule``: per model a degree's number, where to turn to, and workers to leave free.

    A job gets the degree that its model begins at, if that can be placed, meets the limit and leaves so many workers
    free. Else it is refused, or gets the first degree upwards that does, or failing that the largest one below, as
    ``kernel.NOWHERE``, ``UPWARDS``, ``ANYWHERE`` say. Found coordinate by coordinate, from the best choice that is
    the same for all models, on episodes that no evaluation uses.
    """
    models, workers = len(world.models), world.tables.workers
    episodes = [
        draw_arrivals(models, betas, generator(TUNING, distribution, seed), world.time_unit)
        for seed in range(EPISODES)
    ]
    best, least = np.zeros(3 * models, np.int64), np.inf
    degrees, turns = range(len(world.tables.degree)), (kernel.NOWHERE, kernel.UPWARDS, kernel.ANYWHERE)

    def consider(candidate: NDArray[np.int64]) -> None:
        nonlocal best, least
        rate = _blocking(world, episodes, candidate)
        if rate < least:
            best, least = candidate, rate

    for j in degrees:
        for turn in turns:
            consider(np.repeat(np.array([j, turn, 0], np.int64), models))
    for number in range(PASSES):
        for m in range(models):
            if progress is not None:
                progress(
                    f"tuning the rule, distribution {distribution}, pass {number + 1}, {world.model_names[m]}"
                )
            reserves = sorted({round(share * workers) for share in RESERVES})
            for place, values in ((m, degrees), (models + m, turns), (2 * models + m, reserves)):
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
