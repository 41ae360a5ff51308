#!/usr/bin/env bash
# Makes .venv beside this folder and installs the package in it, editable, with the pinned versions.
# Usage: bash scripts/setup.sh [EXTRAS]      EXTRAS: e.g. [dev] for what the tests need
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "gnnsched needs Python 3.11 or newer; set PYTHON to one" >&2
    exit 2
}
[ -x .venv/bin/python ] || "$python" -m venv .venv
stamp=.venv/installed-$(cat scripts/constraints.txt pyproject.toml scripts/setup.sh | cksum | cut -d' ' -f1)-${1:-run}
if [ ! -e "$stamp" ]; then
    echo "installing gnnsched${1:-} into .venv (a few minutes the first time)"
    .venv/bin/pip install --quiet --disable-pip-version-check -c scripts/constraints.txt -e ".${1:-}"
    touch "$stamp"
fi
# numba looks only at a kernel's own file: drop what it kept when any source has changed.
sources=.venv/kernels-$(find gnnsched/collective gnnsched/partition gnnsched/topology -name '*.py' -print0 | sort -z | xargs -0 cat | cksum | cut -d' ' -f1)
if [ ! -e "$sources" ]; then
    find gnnsched -name '*.nb[ic]' -delete
    rm -f .venv/kernels-*
    echo "compiling kernels (three minutes)"
fi
.venv/bin/python -c 'from gnnsched.planning import warm_up; warm_up()'
.venv/bin/python -c 'from gnnsched.partition.warm_up import warm_up; warm_up()'
touch "$sources"
