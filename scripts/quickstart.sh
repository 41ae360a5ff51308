#!/usr/bin/env bash
# From nothing to two verified AllReduce schedules: an unseen DCell and an unseen Jellyfish, planned by the shipped
# policy, compared with every baseline and the bound. Schedules and pictures land in runs/quickstart.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
mkdir -p runs/quickstart
for name in dcell_4_1 jellyfish_20x4x2; do
    echo
    .venv/bin/gnnsched schedule "topologies/$name.json" --message-size 1GiB --chunks-per-server 4 \
        -o "runs/quickstart/$name.schedule.json" --plot "runs/quickstart/$name.png"
    .venv/bin/gnnsched verify "topologies/$name.json" "runs/quickstart/$name.schedule.json"
done
echo
echo "schedules and pictures: runs/quickstart"
