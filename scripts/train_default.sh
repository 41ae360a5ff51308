#!/usr/bin/env bash
# Makes the two shipped checkpoints again: the default one on the default mixture (about 10 minutes) and the one
# trained on BCube(2,1), (3,1) and (4,1) alone (about 5 minutes). One process each; they can run side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
export OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1
out=${1:-runs/train}
mkdir -p "$out"
.venv/bin/gnnsched train --mixture default --iterations 1500 --seed 2 -o "$out/default"
.venv/bin/gnnsched train --mixture bcube --iterations 1200 --seed 0 -o "$out/bcube_only"
for name in default bcube_only; do
    mkdir -p "checkpoints/$name"
    cp "$out/$name/policy.safetensors" "$out/$name/checkpoint.json" "checkpoints/$name/"
done
