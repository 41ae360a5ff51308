"""The linear scorer: one score function for every path of every network, and the prior that it was tuned from.

The tuned weights lie in ``linear.json`` beside this module, written by ``scripts/tune_linear.py``.
"""

import json
from pathlib import Path

from gnnsched.collective.decode.problem import CHUNK_FEATURES, PATH_FEATURES

WEIGHTS_FILE = Path(__file__).with_name("linear.json")

# Prefer rare chunks, paths that are short for what they reach, and what the packed trees have planned.
_PRIOR_PATH = {"rarest": -6.0, "log_rate_share": 2.0, "longest_tail": 2.0}
_PRIOR_CHUNK = {
    "constant": 6.0,
    "log_holders": -8.0,
    "log_near_0": -0.6,
    "regret_duration": -4.0,
    "regret_load": -1.0,
    "random_priority": 1.0,
    "in_packed_tree": 2.0,
    "packed_price": -4.0,
    "packed_tail": 4.0,
    "wait_gain": -4.0,
}
_weights = json.loads(WEIGHTS_FILE.read_text(encoding="utf-8"))

# Weights of a path's features, and of a chunk's: coefficients, then their change with progress.
PRIOR_PATH = tuple(_PRIOR_PATH.get(name, 0.0) for name in PATH_FEATURES)
PRIOR_CHUNK = tuple(_PRIOR_CHUNK.get(name, 0.0) for name in CHUNK_FEATURES) + (0.0,) * len(CHUNK_FEATURES)
LINEAR_PATH = tuple(float(_weights["path"][name]) for name in PATH_FEATURES)
LINEAR_CHUNK = tuple(
    float(_weights[part][name]) for part in ("chunk", "chunk_progress") for name in CHUNK_FEATURES
)
