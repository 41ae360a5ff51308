"""The rows of one part of the evaluation, kept in a JSON file that is whole at any moment."""

import json
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from evaluation_parts.statistics import mean
from gnnsched.topology import InputError
from gnnsched.topology.files import read_bytes, write_atomically
from gnnsched.training.machine import machine

Row = dict[str, Any]


@cache
def commit() -> str:
    """Short name of the commit that was checked out at the first call, empty outside a clone."""
    folder = Path(__file__).resolve().parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def _rounded(value: Any) -> Any:
    return float(f"{value:.8g}") if isinstance(value, float) else value


class Results:
    """Rows, each with its "topology", "label" (who planned) and "commit", and facts by network.

    ``settings`` say what all rows have in common. ``save`` writes the file, one row a line, never in part.
    """

    def __init__(self, path: Path, command: str = "", settings: dict[str, Any] | None = None) -> None:
        self.path = path
        self.command = command
        self.settings = settings or {}
        self.machine: dict[str, Any] = machine()
        self.networks: dict[str, dict[str, Any]] = {}
        self.rows: list[Row] = []

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Raises InputError where the file is missing or damaged."""
        content = read_bytes(path)
        try:
            document = json.loads(content)
            results = cls(path, document["command"], document["settings"])
            results.machine = document["machine"]
            results.networks = document["networks"]
            results.rows = document["rows"]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}: no results of the evaluation; measure them again") from None
        return results

    @classmethod
    def begin(
        cls, path: Path, command: str, settings: dict[str, Any], resume: bool, again: Sequence[str]
    ) -> "Results":
        """Results to add to: those of ``path`` where ``resume`` is set, those of other networks than ``again`` where
        it names any, none otherwise; kept rows keep their command. Raises InputError where they were measured with
        other settings.
        """
        results = cls(path, command, settings)
        if path.exists() and (resume or again):
            kept = cls.read(path)
            if kept.settings != settings:
                changed = [key for key in settings if kept.settings.get(key) != settings[key]]
                raise InputError(
                    f"{path}: measured with other {', '.join(changed) or 'settings'}; use the same, or measure it all"
                )
            results.rows = [row for row in kept.rows if resume or row["topology"] not in again]
            results.networks = kept.networks
            if results.rows:
                results.command = kept.command
        return results

    def has(self, topology: str, label: str) -> bool:
        return any(row["topology"] == topology and row["label"] == label for row in self.rows)

    def missing(self, topology: str, labels: Iterable[str]) -> list[str]:
        """Of ``labels``, those without rows on the network."""
        return [label for label in labels if not self.has(topology, label)]

    def add(self, topology: str, label: str, row: Row) -> None:
        rounded = {key: _rounded(value) for key, value in row.items()}
        self.rows.append({**rounded, "topology": topology, "label": label, "commit": commit()})

    def about(self, topology: str, **facts: Any) -> None:
        """Keep facts of a network beside the rows."""
        self.networks.setdefault(topology, {}).update({k: _rounded(v) for k, v in facts.items()})

    def of(self, topology: str | None = None, label: str | None = None, **values: Any) -> list[Row]:
        """Rows of a network, a label and whatever else ``values`` names."""
        return [
            row
            for row in self.rows
            if topology in (None, row["topology"])
            and label in (None, row["label"])
            and all(row.get(key) == value for key, value in values.items())
        ]

    def mean(
        self, column: str, topology: str | None = None, label: str | None = None, **values: Any
    ) -> float | None:
        """Mean of a column over the rows that ``of`` finds; None where no row has it."""
        known = [row[column] for row in self.of(topology, label, **values) if row[column] is not None]
        return mean(known) if known else None

    def names(self) -> list[str]:
        """Networks with rows, in alphabetical order."""
        return sorted({row["topology"] for row in self.rows})

    def save(self) -> None:
        head = {
            "command": self.command,
            "machine": self.machine,
            "commit": commit(),
            "settings": self.settings,
            "networks": {name: self.networks[name] for name in sorted(self.networks)},
        }
        self.rows.sort(key=lambda row: row["topology"])
        lines = ",\n".join("  " + json.dumps(row) for row in self.rows)
        text = json.dumps(head, indent=1).removesuffix("\n}") + f',\n "rows": [\n{lines}\n ]\n}}\n'
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, lambda stream: stream.write(text.encode()))

    def made_by(self) -> str:
        """A sentence on how the rows were measured."""
        commits = sorted({row["commit"] for row in self.rows})
        named = (
            f"commit {commits[0]}" if len(commits) == 1 else f"commits in `scripts/results/{self.path.name}`"
        )
        return (
            f"Made by `{self.command}` ({named}) on {self.machine['processor']}, "
            f"{self.machine['cpus']} processors."
        )
