"""Weights of the linear scorer: one score function for every path of every network.

They lie in ``linear.json`` beside this module, written by ``scripts/tune_linear.py``.
"""

import json
from pathlib import Path

from gnnsched.collective.decode.problem import CHUNK_FEATURES, PATH_FEATURES

WEIGHTS_FILE = Path(__file__).with_name("linear.json")

_weights = json.loads(WEIGHTS_FILE.read_text(encoding="utf-8"))

LINEAR_PATH = tuple(float(_weights["path"][name]) for name in PATH_FEATURES)
# Coefficients, then their change with progress.
LINEAR_CHUNK = tuple(
    float(_weights[part][name]) for part in ("chunk", "chunk_progress") for name in CHUNK_FEATURES
)
