"""Measures the README's tables: every scheduler on the evaluation suite, and the BCube-only policy against PS and ring.

Usage: .venv/bin/python scripts/measure_suite.py [--seeds 1] [--only NETWORK ...] [--render-only]

Writes scripts/results/suite.json (rows, machine, seeds, command) and the tables between the markers in README.md.
``--only`` measures some networks again, after a change that cannot touch the others; each row keeps the commit that
it was measured at. ``--render-only`` makes the tables again from the JSON.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from gnnsched.collective.baselines import CLASSICAL
from gnnsched.evaluation import evaluate
from gnnsched.planning import SCHEDULERS, load_policy
from gnnsched.topology.files import write_atomically
from gnnsched.topology.formats import load_topology
from gnnsched.training.machine import machine

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "scripts" / "results" / "suite.json"
README = ROOT / "README.md"
MESSAGE_BYTES = 2**30
CHUNKS, SAMPLES = 4, 16
# What the published RL planner (arXiv 2503.21013) claims over BCube, DCell and Jellyfish together.
PUBLISHED = {"completion time": 0.197, "throughput": 0.223}
RIVALS = ("ring", "parameter_server", "sharded_parameter_server", "double_tree", "halving_doubling", "greedy")

FAMILIES = (
    "bcube",
    "dcell",
    "jellyfish",
    "fat_tree",
    "torus",
    "dgx",
    "leaf_spine",
    "dumbbell",
    "star",
    "hub",
)
# Largest ratio of the policy at 4 chunks per server, and of auto; the star and the hub have none, nor the largest.
AIMS = {
    name: (1.015, 1.005) for name in ("bcube", "dcell", "jellyfish", "fat_tree", "torus", "leaf_spine")
} | {
    "dgx": (1.07, 1.02),
    "dumbbell": (1.08, 1.02),
}
LARGE = ("jellyfish_30x4x4", "fat_tree_8")


def measure(seeds: int, only: Sequence[str]) -> dict[str, Any]:
    """Rows of the whole suite: all schedulers at 4 chunks per server, the front door, and the BCube-only policy."""
    networks = [load_topology(path) for path in sorted((ROOT / "topologies").glob("*.json"))]
    kept: list[dict[str, Any]] = []
    if only:
        networks = [network for network in networks if network.name in only]
        kept = [row for row in json.loads(RESULTS.read_text())["rows"] if row["topology"] not in only]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    default = load_policy(ROOT / "checkpoints" / "default")
    bcube_only = load_policy(ROOT / "checkpoints" / "bcube_only")
    rows: list[dict[str, Any]] = []
    bar = tqdm(total=len(networks) * (len(SCHEDULERS) + 2) * seeds, file=sys.stderr)
    for network in networks:
        for policy, names, chunks, label in (
            (default, SCHEDULERS, CHUNKS, None),
            (default, ("auto",), None, "auto"),
            (bcube_only, ("policy",), CHUNKS, "policy, BCube only"),
        ):
            for row in evaluate(
                [network], names, [chunks], MESSAGE_BYTES, SAMPLES, seeds, 30.0 if chunks else 10.0, policy
            ):
                rows.append({**row.as_dict(), "label": label or row.scheduler, "commit": commit})
                bar.update()
    bar.close()
    return {
        "command": f"scripts/measure_suite.py --seeds {seeds}",
        "machine": machine(),
        "message_bytes": MESSAGE_BYTES,
        "samples": SAMPLES,
        "seeds": seeds,
        "rows": sorted(kept + rows, key=lambda row: row["topology"]),
    }


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def tables(results: dict[str, Any]) -> tuple[str, str]:
    """The suite's table and the one per family, as Markdown."""
    by_network: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in results["rows"]:
        by_network.setdefault(row["topology"], {}).setdefault(row["label"], []).append(row)

    def ratio(rows: list[dict[str, Any]]) -> float:
        return mean([row["best_ratio"] for row in rows])

    columns = (
        "policy",
        "policy, BCube only",
        "linear",
        "greedy_augmented",
        "trees_augmented",
        "greedy",
        *CLASSICAL,
    )
    lines = [
        "| topology | auto (chunks, s) | " + " | ".join(columns) + " |",
        "|---|---|" + "---|" * len(columns),
    ]
    for name, labels in by_network.items():
        auto = labels["auto"]
        how = f"{auto[0]['chunks_per_server']}, {mean([row['plan_s'] for row in auto]):.1f}"
        cells = [f"{ratio(labels[column]):.3f}" for column in columns]
        lines.append(f"| {name} | {ratio(auto):.3f} ({how}) | " + " | ".join(cells) + " |")
    suite = "\n".join(lines)

    lines = [
        "| family | less time than PS | more throughput than PS | less time than ring | more throughput than ring |",
        "|---|---|---|---|---|",
    ]
    for family in ("bcube", "dcell", "jellyfish"):
        cells = []
        for rival in ("parameter_server", "ring"):
            shares = [
                mean([row["makespan_s"] for row in labels["policy, BCube only"]])
                / mean([row["makespan_s"] for row in labels[rival]])
                for name, labels in by_network.items()
                if name.startswith(family)
            ]
            cells += [f"{1 - mean(shares):.1%}", f"{1 / mean(shares) - 1:.1%}"]
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    lines.append(
        f"| claimed by the published planner, all three | {PUBLISHED['completion time']:.1%} | "
        f"{PUBLISHED['throughput']:.1%} | | |"
    )
    return suite, "\n".join(lines)


def render(results: dict[str, Any]) -> None:
    """Put the tables between their markers in the README."""
    text = README.read_text(encoding="utf-8")
    about = (
        f"\n\nMade by `{results['command']}` (commits of the rows in `scripts/results/suite.json`) "
        f"on {results['machine']['processor']}, {results['machine']['cpus']} processors; "
        f"1 GiB, {CHUNKS} chunks per server (auto: its own choice), best of {results['samples']} samples, "
        f"mean over {results['seeds']} seed(s); all schedules verified."
    )
    for name, table in zip(("suite", "families"), tables(results)):
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n{table}{about if name == 'suite' else ''}\n{end}{tail}"
    write_atomically(README, lambda stream: stream.write(text.encode()))


def check(results: dict[str, Any]) -> list[str]:
    """What falls short: of beating the rivals, of the ratios aimed at, of planning within ten seconds."""
    by_network: dict[str, dict[str, dict[str, Any]]] = {}
    for row in results["rows"]:
        by_network.setdefault(row["topology"], {}).setdefault(row["label"], row)
    short = []
    for name, labels in by_network.items():
        family = next(f for f in FAMILIES if name.startswith(f))
        aim = AIMS.get(family)
        if aim is not None and name not in LARGE:
            for label, most in zip(("policy", "auto"), aim):
                if labels[label]["best_ratio"] > most:
                    short.append(f"{label} on {name}: {labels[label]['best_ratio']:.4f}, above {most}")
            if labels["auto"]["plan_s"] > 10.0:
                short.append(f"auto on {name}: planned for {labels['auto']['plan_s']:.1f} s")
        for label, rivals in (("policy", RIVALS), ("policy, BCube only", RIVALS[:3])):
            if aim is None or (label != "policy" and family not in ("dcell", "jellyfish")):
                continue
            ours = labels[label]["best_ratio"]
            for rival in rivals:
                theirs = labels[rival]["best_ratio"]
                if not (ours < theirs or (theirs <= 1.02 and ours <= 1.01 * theirs)):
                    short.append(f"{label} does not beat {rival} on {name}: {ours:.4f} against {theirs:.4f}")
    return short


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], metavar="NETWORK")
    parser.add_argument("--render-only", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.render_only:
        results = measure(args.seeds, args.only)
        RESULTS.parent.mkdir(exist_ok=True)
        content = json.dumps(results, indent=1) + "\n"
        write_atomically(RESULTS, lambda stream: stream.write(content.encode()))
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    render(results)
    short = check(results)
    print("\n".join(short) or "nothing falls short")
    sys.exit(1 if short else 0)


if __name__ == "__main__":
    main()
