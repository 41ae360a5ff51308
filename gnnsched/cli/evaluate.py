"""``gnnsched evaluate``: schedulers against the bound over several networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from gnnsched.cli.options import (
    Checkpoint,
    NetworkFiles,
    at_least_one,
    check_rows_file,
    message_bytes,
    write_rows,
)
from gnnsched.cli.progress import Progress
from gnnsched.cli.tables import counted, ratio_text, table

if TYPE_CHECKING:
    from gnnsched.evaluation import Row


@dataclass(frozen=True)
class Evaluate:
    """Compare schedulers on networks, each at the same chunks per server, against the bound."""

    topology: NetworkFiles
    checkpoint: Checkpoint = None
    """Of the policy (default: the shipped one)."""
    scheduler: Annotated[tuple[str, ...], arg(metavar="NAME")] = ()
    """Names as of schedule --scheduler, auto included (default: all but auto)."""
    message_size: Annotated[str, arg(metavar="SIZE")] = "1GiB"
    """Bytes that every participant holds."""
    chunks_per_server: tuple[Literal["auto"] | int, ...] = (1, 4, 16)
    """Chunks rooted at each participant; auto is the ladder of schedule."""
    samples: int = 16
    """Plans drawn per seed by schedulers that draw."""
    seeds: int = 3
    """Number of seeds, from 0."""
    time_limit: Annotated[float, arg(metavar="SECONDS")] = 10.0
    """For one scheduler, network, chunk count and seed."""
    json: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write the rows to this file as a JSON list; - is the standard output."""

    def run(self) -> int:
        at_least_one("evaluate", self.topology)
        at_least_one("--chunks-per-server", self.chunks_per_server)
        check_rows_file(self.json)
        from gnnsched.topology.formats import load_topology

        size = message_bytes(self.message_size)
        topologies = [load_topology(path) for path in self.topology]
        from gnnsched.evaluation import evaluate
        from gnnsched.planning import SCHEDULERS, load_policy

        names = self.scheduler or SCHEDULERS
        needs_policy = "policy" in names or "auto" in names
        counts = [None if count == "auto" else count for count in self.chunks_per_server]
        rows: list[Row] = []
        try:
            with Progress("evaluating", len(topologies) * len(counts) * len(names) * self.seeds) as progress:
                for row in evaluate(
                    topologies,
                    names,
                    counts,
                    size,
                    self.samples,
                    self.seeds,
                    self.time_limit,
                    load_policy(self.checkpoint) if needs_policy else None,
                    progress.say,
                ):
                    rows.append(row)
                    progress.step(f"{row.topology}, {row.scheduler}")
        finally:
            # Interrupted or not, what has been measured is worth keeping.
            if rows:
                self._report(rows, size)
        return 0

    def _report(self, rows: "Sequence[Row]", size: int) -> None:
        if not write_rows([row.as_dict() for row in rows], self.json):
            print(_described(rows, size))


def _described(rows: "Sequence[Row]", size: int) -> str:
    """A table per network and chunk count, best first, seeds together."""
    from gnnsched.topology.units import format_size, format_time

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        # Rungs of the ladder differ from seed to seed; they belong together.
        chunks = "a ladder of chunks" if row.ladder else counted(row.chunks_per_server, "chunk")
        groups.setdefault((row.topology, chunks), {}).setdefault(row.scheduler, []).append(row)
    blocks = []
    for (topology, chunks), by_name in groups.items():
        lines = []
        for name, own in sorted(by_name.items(), key=lambda item: min(r.makespan_s for r in item[1])):
            lines.append(
                (
                    name,
                    format_time(min(row.makespan_s for row in own)),
                    ratio_text(mean([row.best_ratio for row in own])),
                    ratio_text(mean([row.sample_mean_ratio for row in own])),
                    format_time(mean([row.plan_s for row in own]) or 0.0),
                )
            )
        bound = next(iter(by_name.values()))[0].bound_s
        blocks.append(
            f"{topology}, {format_size(size)}, {chunks} per server; bound {format_time(bound)}\n"
            + table(("scheduler", "best time", "best of samples", "mean of samples", "planning"), lines)
        )
    seeds = len({row.seed for row in rows})
    return "\n\n".join(blocks) + f"\nRatios to the bound, mean over {seeds} seed{'s' if seeds > 1 else ''}."
