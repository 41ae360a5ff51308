"""How much training seeds differ: the policy of each on the suite, and how long its training took."""

import json
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from evaluation_parts.markdown import number, table
from evaluation_parts.options import GIBIBYTE, Options, Part
from evaluation_parts.results import Results
from evaluation_parts.statistics import geometric_mean
from evaluation_parts.suite_bars import family_of, is_uniform
from gnnsched.evaluation import evaluate
from gnnsched.planning import load_policy

CHUNKS = (1, 4)
ROW_SECONDS = 10.0
# Larger networks take long and differ little.
MOST_SERVERS = 64
UNIFORM = "uniform networks"
# Most minutes of training on 2 processors; seeds whose spread is asked for.
MOST_MINUTES, LEAST_SEEDS = 60.0, 3


def settings(options: Options) -> dict[str, object]:
    return {
        "message_bytes": GIBIBYTE,
        "samples": options.samples,
        "seeds": 1,
        "chunks_per_server": list(CHUNKS),
    }


def measure(options: Options, results: Results) -> None:
    networks = [
        network
        for network in options.suite()
        if len(network.participants) <= MOST_SERVERS and family_of(network.name) not in ("star", "hub")
    ]
    folders = options.training_seed_folders()
    policies = {name: load_policy(folder) for name, folder in folders.items()}
    bar = tqdm(total=len(networks) * len(policies), desc="training seeds", file=sys.stderr)
    for network in networks:
        missing = results.missing(network.name, policies)
        bar.update(len(policies) - len(missing))
        for name in missing:
            for row in evaluate(
                [network], ["policy"], CHUNKS, GIBIBYTE, options.samples, 1, ROW_SECONDS, policies[name]
            ):
                kept = {
                    "chunks_per_server": row.chunks_per_server,
                    "sample_mean_ratio": row.sample_mean_ratio,
                    "best_ratio": row.best_ratio,
                    **_training(folders[name]),
                }
                results.add(network.name, name, kept)
            bar.update()
        if missing:
            results.save()
    bar.close()


def _training(folder: Path) -> dict[str, Any]:
    """Minutes, environment steps and processors that the checkpoint was trained with."""
    about = json.loads((folder / "checkpoint.json").read_text(encoding="utf-8"))
    return {
        "training_minutes": about["wall_time_s"] / 60,
        "training_steps": about["steps"],
        "training_cpus": about["machine"]["cpus"],
    }


def _seeds(results: Results) -> list[str]:
    return sorted({row["label"] for row in results.rows}, key=lambda name: (len(name), name))


def tables(results: Results) -> dict[str, str]:
    """Best of 16 and, in brackets, single samples."""
    seeds = _seeds(results)
    groups = {UNIFORM: [name for name in results.names() if is_uniform(name)]}
    groups |= {name: [name] for name in results.names() if not is_uniform(name)}
    rows = []
    for group, names in groups.items():
        for chunks in CHUNKS:
            values: dict[str, list[float]] = {}
            for column in ("best_ratio", "sample_mean_ratio"):
                for seed in seeds:
                    found = [
                        row[column]
                        for row in results.of(label=seed, chunks_per_server=chunks)
                        if row["topology"] in names
                    ]
                    if found:
                        values.setdefault(column, []).append(geometric_mean(found))
            if values:
                best, single = values["best_ratio"], values["sample_mean_ratio"]
                cells = [f"{one:.3f} ({other:.3f})" for one, other in zip(best, single)]
                rows.append([f"{group}, {chunks}", *cells, number(max(best) - min(best))])
    trained = [results.of(label=seed)[0] for seed in seeds]
    minutes = [
        f"{row['training_minutes']:.0f} min, {row['training_steps'] / 1e6:.0f} M steps" for row in trained
    ]
    rows.append(["training", *minutes, ""])
    columns = ["networks, chunks per server", *(f"seed {seed}" for seed in seeds), "spread"]
    return {"training_seeds": f"{table(columns, rows)}\n\n{results.made_by()}"}


def check(results: Results) -> list[str]:
    """Too few training seeds, or training that took too long."""
    seeds = _seeds(results)
    short = []
    if len(seeds) < LEAST_SEEDS:
        short.append(f"training seeds: {len(seeds)} measured, fewer than {LEAST_SEEDS}")
    for seed in seeds:
        minutes = results.of(label=seed)[0]["training_minutes"]
        if minutes > MOST_MINUTES:
            short.append(
                f"training seed {seed}: trained for {minutes:.0f} minutes, more than {MOST_MINUTES:.0f}"
            )
    return short


PART = Part(settings, measure, tables, check)
