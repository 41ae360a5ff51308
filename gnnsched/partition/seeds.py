"""Random generators by purpose: what is tuned or trained on is never evaluated on."""

import numpy as np

from gnnsched.partition.workload import DISTRIBUTIONS

# Purposes.
EVALUATION, LOOKAHEAD, TUNING, TRAINING, VALIDATION = range(5)


def generator(purpose: int, distribution: str, seed: int) -> np.random.Generator:
    """The generator of one episode's arrivals, or of what is drawn beside them."""
    return np.random.default_rng([purpose, DISTRIBUTIONS.index(distribution), seed])
