#!/usr/bin/env bash
# Makes the two shipped partitioning checkpoints again, side by side (under an hour on two cores): one in the units of
# the published program (needs PipeDream's profiles, by default beside the project), and one in consistent units, on
# RAMP, a BCube and a Jellyfish of links as fast as RAMP's, and a BCube of slow links.
# Usage: bash scripts/train_partition.sh [OUTPUT] [PROFILES]
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
export OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1
out=${1:-runs/train_partition}
profiles=${2:-../shared/profiles}
mkdir -p "$out"
trap 'kill $(jobs -p) 2> /dev/null' EXIT
.venv/bin/gnnsched topology generate bcube --ports 4 --levels 1 --bandwidth 3200Gbps -o "$out/bcube.json"
.venv/bin/gnnsched topology generate jellyfish --switches 16 --network-ports 4 --servers-per-switch 2 --seed 1 \
    --bandwidth 3200Gbps -o "$out/jellyfish.json"
.venv/bin/gnnsched partition train --ddls-units --profiles "$profiles" --holding both --minutes 54 \
    --expert-share 0.5 -o "$out/partition_ddls" &
.venv/bin/gnnsched partition train --cluster ramp32 "$out/bcube.json" "$out/jellyfish.json" \
    topologies/bcube_4_1.json --profiles "$profiles" --shipped --minutes 54 -o "$out/partition"
wait %1
trap - EXIT
for name in partition_ddls partition; do
    mkdir -p "checkpoints/$name"
    cp "$out/$name/policy.safetensors" "$out/$name/checkpoint.json" "checkpoints/$name/"
done
