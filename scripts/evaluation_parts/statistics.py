"""Means and intervals of the evaluation's tables."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean logarithm; of positive values."""
    return math.exp(mean([math.log(value) for value in values]))


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's interval of the mean of independent normal ``values``: mean -+ t(n-1) s / sqrt(n); None for fewer
    than two.
    """
    if len(values) < 2:
        return None
    half = (
        stats.t.ppf(0.5 + confidence / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    )
    return mean(values) - float(half), mean(values) + float(half)
