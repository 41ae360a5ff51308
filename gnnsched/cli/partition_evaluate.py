"""``gnnsched partition evaluate``: policies compared on the same arriving jobs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from gnnsched.cli.options import Checkpoint, at_least_one, check_output, check_rows_file, write_rows
from gnnsched.cli.partition_options import BoundFactor, ClusterName, Profiles, load
from gnnsched.cli.progress import Progress
from gnnsched.cli.tables import table

if TYPE_CHECKING:
    from gnnsched.partition.evaluation import Row, Runner


@dataclass(frozen=True)
class EvaluatePartition:
    """Compare policies by the jobs that they block, over distributions of limits and seeds of arrivals."""

    profiles: Profiles = None
    """Folder of the jobs' profiles (default: the five shipped models)."""
    cluster: ClusterName = "ramp32"
    """ramp8, ramp16, ramp32, ramp64, ramp128, ramp512, or a topology file."""
    ddls_units: bool = False
    """A profile's milliseconds are taken for seconds, as in the published program; selects its checkpoint too."""
    distributions: tuple[Literal["A", "B", "C", "D"], ...] = ("A", "B", "C", "D")
    """Of the limits: A uniform, B tight, C middling, D loose."""
    seeds: int = 5
    """Number of episodes per distribution, from seed 0."""
    policies: Annotated[tuple[str, ...], arg(metavar="NAME")] = ()
    """learned, learned_lookahead, max, acceptable, random, sip_ml, none, smallest_fit, rule, constant_1, constant_2,
    ... (default: all but learned_lookahead)."""
    holding: Literal["faithful", "exact"] = "faithful"
    """A job holds the blocks of all its ops, or just as many workers as its degree (always so on a topology)."""
    bound_factor: BoundFactor = None
    """Take an AllReduce on a topology to last this many times its bound, such as 1.1, instead of planning it."""
    checkpoint: Checkpoint = None
    """Of the policy (default: the shipped one)."""
    json: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the rows to this file as a JSON list; - is the standard output."""
    plot: Annotated[Path | None, arg(metavar="FILE")] = None
    """Draw blocking rates and the cluster's occupancy over time (.png, .svg or .pdf)."""

    def run(self) -> int:
        at_least_one("--distributions", self.distributions)
        check_rows_file(self.json)
        if self.plot is not None:
            check_output(self.plot, (".png", ".svg", ".pdf"))
        from gnnsched.topology import InputError

        if self.seeds < 1:
            raise InputError(f"--seeds: {self.seeds} is below 1; give a number such as 5")
        from gnnsched.partition.baselines import check_baseline, check_name
        from gnnsched.partition.checkpoint import load_partition_policy, shipped_partition_checkpoint
        from gnnsched.partition.evaluation import LEARNED, LOOKING_AHEAD, Runner, evaluate, policy_names

        # What cannot be used is found before a cluster is planned for, which may take minutes.
        asked = tuple(dict.fromkeys(self.policies))
        baselines = [name for name in asked if name not in (LEARNED, LOOKING_AHEAD)]
        for name in baselines:
            check_name(name)
        policy = None
        if not asked or len(baselines) < len(asked):
            policy = load_partition_policy(self.checkpoint or shipped_partition_checkpoint(self.ddls_units))
        (world,) = load(
            (self.cluster,), (self.profiles,), self.ddls_units, (self.holding,), self.bound_factor
        )
        for name in baselines:
            check_baseline(name, world)
        names = asked or tuple(policy_names(world))
        distributions = tuple(dict.fromkeys(self.distributions))
        rows: list[Row] = []
        try:
            with Progress("evaluating", len(names) * len(distributions) * self.seeds) as progress:
                runner = Runner(world, policy, progress.say)
                for row in evaluate(runner, names, distributions, self.seeds):
                    rows.append(row)
                    progress.step(f"distribution {row.distribution}, {row.policy}")
        finally:
            # Interrupted or not, what has been measured is worth keeping.
            if rows:
                self._report(rows)
        if self.plot is not None:
            self._draw(rows, runner)
        return 0

    def _report(self, rows: "Sequence[Row]") -> None:
        if not write_rows([row.as_dict() for row in rows], self.json):
            print(_described(rows))

    def _draw(self, rows: "Sequence[Row]", runner: "Runner") -> None:
        from gnnsched.report.partition_plots import draw_partition
        from gnnsched.topology.files import write_atomically

        assert self.plot is not None
        kind = self.plot.suffix[1:].lower()
        write_atomically(self.plot, lambda stream: draw_partition(rows, runner, stream, kind))
        print(f"plot written to {self.plot}", file=sys.stderr)


def _described(rows: "Sequence[Row]") -> str:
    """Mean blocking rate and its standard error per policy and distribution, the best mean first."""
    import numpy as np

    distributions = list(dict.fromkeys(row.distribution for row in rows))
    rates: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        rates.setdefault(row.policy, {}).setdefault(row.distribution, []).append(row.metrics.blocking_rate)
    lines = []
    for policy, own in sorted(
        rates.items(), key=lambda item: np.mean([np.mean(v) for v in item[1].values()])
    ):
        cells = []
        for name in distributions:
            values = own.get(name, [])
            error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
            cells.append(f"{np.mean(values):.3f} ± {error:.3f}" if values else "-")
        mine = [row.metrics for row in rows if row.policy == policy]
        lines.append(
            (
                policy,
                *cells,
                f"{np.mean([m.mean_speedup for m in mine]):.2f}",
                f"{np.mean([m.utilisation for m in mine]):.2f}",
            )
        )
    seeds = len({row.seed for row in rows})
    return (
        table(("blocking rate", *distributions, "speed-up", "utilisation"), lines)
        + f"\nMean and standard error over {seeds} episode{'s' if seeds > 1 else ''} per distribution."
    )
