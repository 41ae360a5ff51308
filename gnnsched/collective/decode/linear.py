"""Weights of the linear scorer: one score function for every path of every network."""

from gnnsched.collective.decode.problem import CHUNK_FEATURES, PATH_FEATURES

_PATH = {"rarest": -3.0, "log_rate_share": 1.0, "longest_tail": 1.0}
_CHUNK = {
    "constant": 3.0,
    "log_holders": -4.0,
    "log_near_0": -0.3,
    "regret_duration": -2.0,
    "regret_load": -0.5,
    "random_priority": 0.5,
    "in_packed_tree": 1.0,
    "packed_tail": 2.0,
}

LINEAR_PATH = tuple(_PATH.get(name, 0.0) for name in PATH_FEATURES)
# Coefficients, then their change with progress.
LINEAR_CHUNK = tuple(_CHUNK.get(name, 0.0) for name in CHUNK_FEATURES) + (0.0,) * len(CHUNK_FEATURES)
