"""Plots of partitioning policies: blocking rate by distribution, and the cluster's occupancy over time."""

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gnnsched.partition.episode import Outcome
from gnnsched.partition.evaluation import Row, Runner
from gnnsched.partition.workload import Arrivals

# Policies whose occupancy is drawn: more lines on one another cannot be told apart.
MOST_LINES = 4
# Arrivals that the drawn occupancy is a mean over.
SMOOTHED = 25
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#f0e442")


def occupancy(arrivals: Arrivals, outcome: Outcome, workers: int) -> NDArray[np.float64]:
    """(n,): part of the cluster's workers that is held right after each arrival."""
    start = np.arange(len(arrivals)) * arrivals.interarrival
    ends = start + outcome.lasting
    change_at = np.concatenate((start, ends))
    change = np.concatenate((outcome.holding, -outcome.holding)).astype(float)
    order = np.argsort(change_at, kind="stable")
    level = np.concatenate(([0.0], np.cumsum(change[order])))
    return level[np.searchsorted(change_at[order], start, side="right")] / workers


def partition_figure(rows: Sequence[Row], runner: Runner) -> Figure:
    """Left, mean blocking rates with standard errors; right, occupancy in the first distribution's first episode."""
    policies = list(dict.fromkeys(row.policy for row in rows))
    distributions = list(dict.fromkeys(row.distribution for row in rows))
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    bars, lines = figure.subplots(1, 2)
    width = 0.85 / len(policies)
    for i, policy in enumerate(policies):
        rates = [
            [r.metrics.blocking_rate for r in rows if r.policy == policy and r.distribution == name]
            for name in distributions
        ]
        error = [np.std(own, ddof=1) / len(own) ** 0.5 if len(own) > 1 else 0.0 for own in rates]
        bars.bar(
            np.arange(len(distributions)) + (i - (len(policies) - 1) / 2) * width,
            [np.mean(own) if own else np.nan for own in rates],
            width,
            yerr=error,
            label=policy,
            color=COLOURS[i % len(COLOURS)],
            hatch="//" * (i // len(COLOURS)),
            edgecolor="white",
            linewidth=0.3,
        )
    bars.set_xticks(range(len(distributions)), distributions)
    bars.set_xlabel("distribution of the jobs' limits")
    bars.set_ylabel("blocking rate")
    bars.grid(axis="y", alpha=0.3)
    # Below: inside it would hide bars.
    bars.legend(fontsize=7, ncols=6, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    best = sorted(
        policies, key=lambda name: np.mean([r.metrics.blocking_rate for r in rows if r.policy == name])
    )
    kernel = np.ones(SMOOTHED) / SMOOTHED
    for name in best[:MOST_LINES]:
        arrivals, outcome = runner.run(name, distributions[0], 0)
        held = np.convolve(occupancy(arrivals, outcome, runner.world.tables.workers), kernel, "valid")
        moments = np.arange(len(held)) * arrivals.interarrival
        lines.plot(moments, held, label=name, color=COLOURS[policies.index(name) % len(COLOURS)], linewidth=1)
    lines.set_ylim(0, 1)
    lines.set_xlabel("time (s)")
    lines.set_ylabel(f"workers held, mean over {SMOOTHED} arrivals")
    lines.set_title(f"distribution {distributions[0]}, seed 0, the policies that block least", fontsize=9)
    lines.grid(alpha=0.3)
    lines.legend(fontsize=8, loc="lower right")
    figure.suptitle(f"{runner.world.cluster.name}, {runner.world.holding} holding")
    return figure


def draw_partition(rows: Sequence[Row], runner: Runner, stream: BinaryIO, kind: str) -> None:
    """Write the figure to ``stream`` as ``kind`` (png, svg or pdf)."""
    figure = partition_figure(rows, runner)
    FigureCanvasAgg(figure)
    figure.savefig(stream, format=kind, dpi=110)
