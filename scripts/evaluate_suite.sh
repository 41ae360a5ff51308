#!/usr/bin/env bash
# Measures everything that README.md claims: the suite, ablations, message sizes, held-out networks, training seeds,
# partitioned jobs.
# Hours on one core; see scripts/evaluate_suite.py for the parts, and for going on with --resume.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
export OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1
.venv/bin/python scripts/evaluate_suite.py "$@"
