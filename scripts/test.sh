#!/usr/bin/env bash
# Sets up as quickstart.sh does and passes all checks: formatting, lint, types, import order, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh '[dev]'
export OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1
.venv/bin/ruff format --check .
.venv/bin/ruff check .
.venv/bin/mypy
.venv/bin/lint-imports
.venv/bin/pytest -n 2 -q "$@"
