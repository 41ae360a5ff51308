"""What the evaluation measures and where it keeps the results, and what a part of it consists of."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from held_out import held_out_networks

from evaluation_parts.results import Results
from gnnsched.topology import Topology
from gnnsched.topology.formats import load_topology

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "scripts" / "results"
GIBIBYTE = 2**30
SAMPLES = 16


@dataclass(frozen=True)
class Options:
    """``topologies``: names of networks to limit the work to, all where empty.

    ``seeds``: planning seeds 0 .. ``seeds`` - 1 of each row of the suite. ``ablations`` and ``training_seeds``: folders
    of checkpoint folders. ``held_out_count`` and ``held_out_seed``: the networks of the held-out part.
    """

    topologies: tuple[str, ...] = ()
    seeds: int = 5
    chunks: tuple[int, ...] = (1, 2, 4, 16)
    samples: int = SAMPLES
    ablations: Path = ROOT / "runs" / "ablations"
    training_seeds: Path = ROOT / "checkpoints" / "seeds"
    held_out_count: int = 20
    held_out_seed: int = 2027

    def suite(self) -> list[Topology]:
        """The networks of ``topologies/``, as far as asked for."""
        networks = [load_topology(path) for path in sorted((ROOT / "topologies").glob("*.json"))]
        return [network for network in networks if not self.topologies or network.name in self.topologies]

    def held_out(self, seed: int) -> list[tuple[int, Topology]]:
        """Held-out networks, as far as asked for, each with its place in the draw."""
        networks = enumerate(held_out_networks(self.held_out_count, seed))
        return [item for item in networks if not self.topologies or item[1].name in self.topologies]

    def training_seed_folders(self) -> dict[str, Path]:
        """Checkpoint of each training seed by its name, the shipped one where there is no other."""
        folders = [path for path in self.training_seeds.glob("*") if (path / "checkpoint.json").is_file()]
        folders.sort(key=lambda path: (len(path.name), path.name))
        return {path.name: path for path in folders} or {"shipped": ROOT / "checkpoints" / "default"}


@dataclass(frozen=True)
class Part:
    """``settings``: what rows of one file must have in common. ``tables``: Markdown by the name of its marker.

    ``draw`` writes a picture to the given path. ``check`` says what falls short of the bars, one line each.
    """

    settings: Callable[[Options], dict[str, object]]
    measure: Callable[[Options, Results], None]
    tables: Callable[[Results], dict[str, str]]
    check: Callable[[Results], list[str]]
    draw: Callable[[Results, Path], None] | None = None


def shipped(name: str) -> Path:
    """Folder of a shipped checkpoint."""
    return ROOT / "checkpoints" / name
