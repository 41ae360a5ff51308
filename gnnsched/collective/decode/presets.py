"""Scores without a network: greedy, packed trees, random, and the linear scorer."""

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding, Instance
from gnnsched.collective.decode.linear import LINEAR_CHUNK, LINEAR_PATH
from gnnsched.collective.decode.problem import CHUNK_FEATURES, PATH_FEATURES

Floats = NDArray[np.float64]


def constant_scores(instance: Instance, path: Floats, chunk: Floats, chunk_progress: Floats) -> Scores:
    """The same coefficients for every path of the instance."""
    paths = instance.paths.num_paths
    return Scores(
        np.tile(path, (paths, 1)),
        np.tile(chunk, (paths, 1)),
        np.tile(chunk_progress, (paths, 1)),
        instance.uniform_attention(),
    )


def _weights(names: tuple[str, ...], values: dict[str, float]) -> Floats:
    result = np.zeros(len(names))
    for name, value in values.items():
        result[names.index(name)] = value
    return result


def preset(instance: Instance, path: dict[str, float], chunk: dict[str, float]) -> Scores:
    """Constant scores from feature names and weights."""
    return constant_scores(
        instance,
        _weights(PATH_FEATURES, path),
        _weights(CHUNK_FEATURES, chunk),
        np.zeros(len(CHUNK_FEATURES)),
    )


def greedy_scores(instance: Instance) -> Scores:
    """Rarest chunk first (as TACOS does), ties at random."""
    return preset(instance, {"rarest": -40.0}, {"log_holders": -40.0, "random_priority": 0.1})


def tree_scores(instance: Instance) -> Scores:
    """Packed trees listed by remaining tail, then rarity."""
    return preset(
        instance,
        {"longest_tail": 40.0, "rarest": -4.0},
        {"packed_tail": 40.0, "log_holders": -4.0, "random_priority": 0.1},
    )


def linear_scores(instance: Instance) -> Scores:
    """The linear scorer: the same tuned weights on every path of every network."""
    split = len(CHUNK_FEATURES)
    return constant_scores(
        instance, np.array(LINEAR_PATH), np.array(LINEAR_CHUNK[:split]), np.array(LINEAR_CHUNK[split:])
    )


def random_scores(instance: Instance) -> Scores:
    """Any useful chunk over any idle path, all equally likely."""
    return preset(instance, {}, {})


GREEDY = Decoding(augment=False, floor=2.0, allow_none=False, sample=False)
GREEDY_AUGMENTED = Decoding(allow_none=False, sample=False)
TREES_AUGMENTED = Decoding(guide=0.0, allow_none=False, sample=False)
LINEAR = Decoding()
RANDOM = Decoding(augment=False, floor=2.0, allow_none=False)
