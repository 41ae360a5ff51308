"""Jobs as they arrive: models in random order, each with a limit on its time."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.topology.errors import InputError, shown

DISTRIBUTIONS = ("A", "B", "C", "D")
ARRIVALS = 1001
# Copies of each model in the pool that arrivals are drawn from without replacement.
REPLICAS = 201
# Time between two arrivals, in units of the profiles' time.
INTERARRIVAL = 1000.0


class Betas(NamedTuple):
    """Values (k,) of the jobs' limits over their sequential time, and their probabilities (k,)."""

    value: NDArray[np.float64]
    probability: NDArray[np.float64]


@cache
def beta_distribution(name: str) -> Betas:
    """The limits' distribution: two decimals in 0.10..1.00.

    A is uniform; B, C and D are one stored realisation each of skew-normal draws of shape +5, 0 and -5 (arXiv
    2301.13799): tight, middling and loose deadlines. Raises InputError for another name.
    """
    if name not in DISTRIBUTIONS:
        raise InputError(f"distribution {shown(name)}: unknown; one of {', '.join(DISTRIBUTIONS)}")
    stored = json.loads((files("gnnsched.partition") / "data" / "betas.json").read_text())
    probability = np.array(stored["probability"][name])
    return Betas(np.array(stored["beta"]), probability / probability.sum())


@njit(cache=True)
def in_time(moment: Any, horizon: float) -> Any:
    """Whether ``moment`` is not after the horizon, rounding aside; arrays are compared entry by entry."""
    return moment <= horizon * (1.0 + 1e-12)


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Jobs of one episode in order: ``model`` (n,) and ``beta`` (n,); one every ``interarrival`` seconds from 0 on.

    ``horizon``: seconds after which nothing more counts; a job still running then is a blocked one.
    """

    model: NDArray[np.int64]
    beta: NDArray[np.float64]
    interarrival: float
    horizon: float

    def __len__(self) -> int:
        return len(self.model)


def draw_arrivals(
    models: int,
    betas: Betas,
    rng: np.random.Generator,
    time_unit: float,
    count: int = ARRIVALS,
    interarrival: float = INTERARRIVAL,
) -> Arrivals:
    """Draw an episode: a pool of copies of each model, each with its own beta, emptied at random and filled again.

    ``interarrival`` is in units of the profiles' time, of ``time_unit`` seconds. The horizon is the last arrival.
    """
    model: list[NDArray[np.int64]] = []
    while sum(map(len, model)) < count:
        model.append(rng.permutation(np.repeat(np.arange(models), REPLICAS)))
    seconds = interarrival * time_unit
    return Arrivals(
        np.concatenate(model)[:count],
        rng.choice(betas.value, count, p=betas.probability),
        seconds,
        (count - 1) * seconds,
    )
