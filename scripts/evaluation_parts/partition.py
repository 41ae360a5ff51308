"""Partitioning of arriving jobs: every policy on the same arrivals, in the published units and in consistent ones."""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

from evaluation_parts.markdown import table
from evaluation_parts.options import ROOT, Options, Part, shipped
from evaluation_parts.results import Results
from gnnsched.partition.cases import load_cluster, load_models, time_unit
from gnnsched.partition.checkpoint import load_partition_policy, shipped_partition_checkpoint
from gnnsched.partition.episode import metrics
from gnnsched.partition.evaluation import LEARNED, LOOKING_AHEAD, Runner, policy_names
from gnnsched.partition.lookahead import Lookahead
from gnnsched.partition.topology_cluster import TopologyCluster
from gnnsched.partition.workload import DISTRIBUTIONS
from gnnsched.partition.world import World, make_world
from gnnsched.topology.generators import bcube, jellyfish

SEEDS = 10
# PipeDream's own profiles are not part of this project; they lie beside it where the published rows are made again.
PIPEDREAM = ROOT.parent / "shared" / "profiles"
# Bytes/s of a link of the BCube and the Jellyfish: that of a channel of RAMP, so that the clusters compare.
LINK = 4e11
# As printed by the authors of PAC-ML (notebooks beside arXiv 2301.13799), not measured here.
PUBLISHED = {
    "PAC-ML, best checkpoint": (0.204, 0.257, 0.117, 0.099),
    "PAC-ML, last epoch": (0.221, 0.264, 0.125, 0.104),
    "max": (0.262, 0.263, 0.267, 0.263),
    "acceptable": (0.309, 0.396, 0.307, 0.142),
    "random": (0.517, 0.601, 0.505, 0.465),
}
PUBLISHED_BASELINES = ("max", "acceptable", "random")
ALWAYS = (LEARNED, "rule", "smallest_fit", *PUBLISHED_BASELINES)
# Bars: most that the network alone may block, and lookahead; least part of max's blocked jobs that lookahead saves.
LEARNED_AT_MOST = {"A": 0.18, "B": 0.19, "C": 0.141, "D": 0.113}
SAVED_AT_LEAST = {"A": 0.33, "B": 0.33, "C": 0.562, "D": 0.562}
EXACT_AT_MOST = {"C": 0.105, "D": 0.08}
REPRODUCED_WITHIN = 0.02


@dataclass(frozen=True)
class Case:
    """A cluster ("ramp32", "bcube" or "jellyfish") with jobs and units; ``lookahead``: whether it is measured too."""

    name: str
    cluster: str
    pipedream: bool
    ddls_units: bool
    holding: Literal["faithful", "exact"] = "faithful"
    lookahead: bool = False


CASES = (
    Case("ddls units, faithful", "ramp32", True, True, "faithful", True),
    Case("ddls units, exact", "ramp32", True, True, "exact", True),
    *(
        Case(f"{cluster}, {'PipeDream' if pipedream else 'own'} jobs", cluster, pipedream, False)
        for cluster in ("ramp32", "bcube", "jellyfish")
        for pipedream in (False, True)
    ),
)


def settings(options: Options) -> dict[str, object]:
    weights = {
        f"weights_{name}": hashlib.sha256((shipped(name) / "policy.safetensors").read_bytes()).hexdigest()[
            :16
        ]
        for name in ("partition", "partition_ddls")
    }
    data = hashlib.sha256()
    for path in sorted((ROOT / "gnnsched" / "partition" / "data").rglob("*.*")):
        data.update(path.read_bytes())
    return {
        "seeds": SEEDS,
        "link_bytes_per_s": LINK,
        "lookahead": asdict(Lookahead()),
        "data": data.hexdigest()[:16],
        **weights,
    }


def _world(case: Case) -> World:
    if case.cluster == "bcube":
        cluster = TopologyCluster(bcube(4, 1, bandwidth=LINK))
    elif case.cluster == "jellyfish":
        cluster = TopologyCluster(jellyfish(16, 4, 2, rng=1, bandwidth=LINK))
    else:
        cluster = load_cluster(case.cluster, case.ddls_units)
    models = load_models(PIPEDREAM if case.pipedream else None, case.ddls_units)
    return make_world(cluster, models, time_unit(case.ddls_units), case.holding)


def measure(options: Options, results: Results) -> None:
    for case in CASES:
        if case.pipedream and not PIPEDREAM.is_dir():
            print(
                f"partition: {PIPEDREAM.name} is missing beside the project, {case.name} left out",
                file=sys.stderr,
            )
            continue
        world = _world(case)
        runner = Runner(world, load_partition_policy(shipped_partition_checkpoint(case.ddls_units)))
        names = [*policy_names(world), *([LOOKING_AHEAD] if case.lookahead else [])]
        for name in tqdm(results.missing(case.name, names), desc=case.name, file=sys.stderr):
            for distribution in DISTRIBUTIONS:
                for seed in range(SEEDS):
                    arrivals, outcome = runner.run(name, distribution, seed)
                    figures = asdict(metrics(world, arrivals, outcome))
                    results.add(case.name, name, {"distribution": distribution, "seed": seed, **figures})
            results.save()


def _rates(results: Results, case: str, policy: str, distribution: str) -> np.ndarray:
    """By seed; what was not measured is not a number."""
    rates = np.full(SEEDS, np.nan)
    for row in results.of(case, policy, distribution=distribution):
        rates[row["seed"]] = row["blocking_rate"]
    return rates


def _policies(results: Results, case: str) -> list[str]:
    return list(dict.fromkeys(row["label"] for row in results.of(case)))


def _constants(results: Results, case: str) -> list[str]:
    return [name for name in _policies(results, case) if name.startswith("constant_")]


def _best(results: Results, case: str, names: Sequence[str], distribution: str) -> str:
    return min(names, key=lambda name: float(_rates(results, case, name, distribution).mean()))


def _cell(rates: np.ndarray) -> str:
    return f"{rates.mean():.3f} ± {rates.std(ddof=1) / len(rates) ** 0.5:.3f}"


def _published_table(results: Results, case: str, published: bool) -> str:
    lines = []
    for name in _policies(results, case):
        means = [_rates(results, case, name, d) for d in DISTRIBUTIONS]
        words = f"**{name}**" if name in (LEARNED, LOOKING_AHEAD) else name
        lines.append(
            (float(np.mean([m.mean() for m in means])), [words, *map(_cell, means), "measured here"])
        )
    if published:
        for name, rates in PUBLISHED.items():
            cells = [name, *(f"{rate:.3f}" for rate in rates), "published by others"]
            lines.append((float(np.mean(rates)), cells))
    lines.sort(key=lambda line: line[0])
    return table(["blocking rate", *DISTRIBUTIONS, "source"], [cells for _, cells in lines])


def _paired(results: Results, case: str, policy: str, other: str, distribution: str) -> tuple[float, float]:
    """Mean of the paired differences (policy less other) and its standard error."""
    difference = _rates(results, case, policy, distribution) - _rates(results, case, other, distribution)
    return float(difference.mean()), float(difference.std(ddof=1) / len(difference) ** 0.5)


def _rivals(results: Results, case: str, distribution: str) -> list[str]:
    return [_best(results, case, _constants(results, case), distribution), "rule", "smallest_fit"]


def _consistent_table(results: Results) -> str:
    lines = []
    for case in CASES:
        if case.ddls_units or not results.of(case.name):
            continue
        for distribution in DISTRIBUTIONS:
            cells = [case.name, distribution, _cell(_rates(results, case.name, LEARNED, distribution))]
            for rival in _rivals(results, case.name, distribution):
                mean, error = _paired(results, case.name, LEARNED, rival, distribution)
                named = f"{rival.removeprefix('constant_')}: " if rival.startswith("constant_") else ""
                own = _rates(results, case.name, rival, distribution).mean()
                cells.append(f"{named}{own:.3f} ({mean / max(error, 1e-9):+.1f})")
            lines.append(cells)
    return table(
        ["cluster and jobs", "limits", "learned", "best constant degree", "rule", "smallest_fit"], lines
    )


def _saved_text(results: Results, case: Case) -> str:
    parts = []
    for distribution in DISTRIBUTIONS:
        ahead, most = (
            _rates(results, case.name, name, distribution).mean() for name in (LOOKING_AHEAD, "max")
        )
        parts.append(f"{distribution} {1.0 - ahead / most:.1%}")
    return f"{case.holding} holding " + ", ".join(parts)


def tables(results: Results) -> dict[str, str]:
    known = {case.name for case in CASES if results.of(case.name)}
    blocks = []
    for case in CASES:
        if case.ddls_units and case.name in known:
            blocks.append(
                f"In {case.name} holding, RAMP with 32 workers, PipeDream's profiles:\n\n"
                + _published_table(results, case.name, case.holding == "faithful")
            )
    saved = [_saved_text(results, case) for case in CASES if results.of(case.name, LOOKING_AHEAD)]
    if saved:
        blocks.append("Blocked jobs that lookahead saves of `max`'s: " + "; ".join(saved) + ".")
    blocks.append(
        "In consistent units; in brackets the paired difference of `learned`, in standard errors, below zero where "
        "it blocks less:\n\n" + _consistent_table(results)
    )
    blocks.append(
        f"Means and standard errors over {SEEDS} held-out episodes of 1,001 jobs per distribution. {results.made_by()}"
    )
    return {"partition": "\n\n".join(blocks)}


def check(results: Results) -> list[str]:
    faithful, exact = CASES[0].name, CASES[1].name
    short = [
        f"partition, {case.name}: {name} not measured"
        for case in CASES
        for name in (
            LEARNED,
            "rule",
            "smallest_fit",
            *PUBLISHED_BASELINES,
            *([LOOKING_AHEAD] if case.lookahead else []),
        )
        if len(results.of(case.name, name)) != SEEDS * len(DISTRIBUTIONS)
    ]
    if short:
        return short
    short += _check_faithful(results, faithful)
    if results.of(exact):
        for distribution in DISTRIBUTIONS:
            ahead = _rates(results, exact, LOOKING_AHEAD, distribution).mean()
            best = _best(results, exact, _constants(results, exact), distribution)
            most = EXACT_AT_MOST.get(distribution, _rates(results, exact, best, distribution).mean())
            if not ahead <= most:
                short.append(
                    f"partition, {exact}, {distribution}: lookahead blocks {ahead:.4f}, above {most:.4f}"
                )
    for case in CASES:
        if case.ddls_units:
            continue
        for distribution in DISTRIBUTIONS:
            for rival in (*_constants(results, case.name), "rule", "smallest_fit"):
                mean, error = _paired(results, case.name, LEARNED, rival, distribution)
                if not (mean < 0.0 and mean <= -2.0 * error):
                    short.append(
                        f"partition, {case.name}, {distribution}: learned less {rival} is {mean:+.4f} ± {error:.4f}"
                    )
    return short


def _check_faithful(results: Results, case: str) -> list[str]:
    short = []
    for place, distribution in enumerate(DISTRIBUTIONS):
        for name in PUBLISHED_BASELINES:
            rate = _rates(results, case, name, distribution).mean()
            if not abs(rate - PUBLISHED[name][place]) <= REPRODUCED_WITHIN:
                short.append(
                    f"partition, {distribution}: {name} blocks {rate:.4f}, published {PUBLISHED[name][place]}"
                )
        learned = _rates(results, case, LEARNED, distribution).mean()
        if not learned <= LEARNED_AT_MOST[distribution]:
            short.append(
                f"partition, {distribution}: learned blocks {learned:.4f}, above {LEARNED_AT_MOST[distribution]}"
            )
        ahead = _rates(results, case, LOOKING_AHEAD, distribution).mean()
        if not ahead < PUBLISHED["PAC-ML, best checkpoint"][place]:
            short.append(
                f"partition, {distribution}: lookahead blocks {ahead:.4f}, not below the published best"
            )
        for rival in (_best(results, case, _constants(results, case), distribution), "rule"):
            mean, error = _paired(results, case, LOOKING_AHEAD, rival, distribution)
            if not (mean < 0.0 and mean <= -2.0 * error):
                short.append(
                    f"partition, {distribution}: lookahead less {rival} is {mean:+.4f} ± {error:.4f}"
                )
        saved = 1.0 - ahead / _rates(results, case, "max", distribution).mean()
        if not saved >= SAVED_AT_LEAST[distribution]:
            short.append(f"partition, {distribution}: lookahead saves {saved:.1%} of max's blocked jobs")
    return short


def draw(results: Results, path: Path) -> None:
    """Blocking rates in the published units, policies side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    case = CASES[0].name
    if not results.of(case):
        return
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = [LOOKING_AHEAD, LEARNED, "rule", "constant_4", "acceptable", "max"]
    for i, name in enumerate(names):
        rates = [_rates(results, case, name, d) for d in DISTRIBUTIONS]
        axes.bar(
            np.arange(4) + (i - 2.5) * 0.13,
            [own.mean() for own in rates],
            0.13,
            yerr=[own.std(ddof=1) / len(own) ** 0.5 for own in rates],
            label=name,
        )
    axes.scatter(
        np.arange(4),
        PUBLISHED["PAC-ML, best checkpoint"],
        marker="_",
        s=2500,
        color="black",
        zorder=3,
        label="PAC-ML, best checkpoint (published)",
    )
    axes.set_xticks(range(4), DISTRIBUTIONS)
    axes.set_xlabel("distribution of the jobs' limits")
    axes.set_ylabel("blocking rate")
    axes.legend(fontsize=8, ncols=2, markerscale=0.2)
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=110)


PART = Part(settings, measure, tables, check, draw)
