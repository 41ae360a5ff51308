"""The evaluation: the suite, ablations, message sizes, held-out networks, training seeds, partitioned jobs.

Usage: bash scripts/evaluate_suite.sh [--resume] [...]
           [--parts suite ablation sizes held_out training_seeds partition partition_ablation]

Each part keeps its rows in scripts/results/PART.json, written anew after each network, so that an interrupted run
loses one network at most and goes on with ``--resume``. Then the tables are put between their markers in README.md,
the pictures are drawn, and what misses a bar is printed (exit status 1). ``--render-only`` does just that.
``--topologies`` measures some networks again and keeps the rows of the others.
"""

import argparse
import sys
from pathlib import Path

import torch
from evaluation_parts import ablation, held_out, partition, partition_ablation, sizes, suite, training_seeds
from evaluation_parts.markdown import between_markers
from evaluation_parts.options import RESULTS, ROOT, Options, Part
from evaluation_parts.results import Results

from gnnsched.topology import InputError
from gnnsched.topology.files import write_atomically

README = ROOT / "README.md"
PARTS: dict[str, Part] = {
    "suite": suite.PART,
    "ablation": ablation.PART,
    "sizes": sizes.PART,
    "held_out": held_out.PART,
    "training_seeds": training_seeds.PART,
    "partition": partition.PART,
    "partition_ablation": partition_ablation.PART,
}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Options()
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--topologies", nargs="+", default=[], metavar="NAME", help="default: all networks")
    parser.add_argument("--seeds", type=int, default=default.seeds, help="planning seeds of the suite's rows")
    parser.add_argument(
        "--chunks", type=int, nargs="+", default=list(default.chunks), help="of the suite's rows"
    )
    parser.add_argument("--samples", type=int, default=default.samples)
    parser.add_argument("--ablations", type=Path, default=default.ablations, help="folder of checkpoints")
    parser.add_argument(
        "--training-seeds", type=Path, default=default.training_seeds, help="folder of checkpoints"
    )
    parser.add_argument("--held-out-count", type=int, default=default.held_out_count, help="networks")
    parser.add_argument("--held-out-seed", type=int, default=default.held_out_seed)
    parser.add_argument("--results", type=Path, default=RESULTS, help="elsewhere, README.md stays as it is")
    parser.add_argument(
        "--resume", action="store_true", help="keep what is measured, measure what is missing"
    )
    parser.add_argument("--render-only", action="store_true", help="tables and pictures from the results")
    return parser.parse_args(arguments)


def evaluate(args: argparse.Namespace, command: str) -> None:
    """Measure the parts asked for. Raises InputError for networks that are in none of them."""
    options = Options(
        tuple(args.topologies),
        args.seeds,
        tuple(args.chunks),
        args.samples,
        args.ablations,
        args.training_seeds,
        args.held_out_count,
        args.held_out_seed,
    )
    known = {network.name for network in options.suite()}
    known |= {network.name for _, network in options.held_out(args.held_out_seed)}
    for name in args.topologies:
        if name not in known:
            raise InputError(f"topology {name}: neither of the suite nor held out; name one of topologies/")
    for name in args.parts:
        part, path = PARTS[name], args.results / f"{name}.json"
        results = Results.begin(path, command, part.settings(options), args.resume, args.topologies)
        part.measure(options, results)


def render(parts: list[str], folder: Path) -> list[str]:
    """Draw, put the tables in README.md (print those of another folder's results); returns what misses a bar."""
    contents: dict[str, str] = {}
    short = []
    for name in parts:
        path = folder / f"{name}.json"
        if not path.exists():
            print(f"{path}: not measured yet", file=sys.stderr)
            continue
        part, results = PARTS[name], Results.read(path)
        if part.draw is not None:
            part.draw(results, path.with_suffix(".png"))
        contents |= part.tables(results)
        short += part.check(results)
    if folder.resolve() == RESULTS:
        text = between_markers(README.read_text(encoding="utf-8"), contents)
        write_atomically(README, lambda stream: stream.write(text.encode()))
    else:
        print("\n\n".join(contents.values()))
    return short


def main(arguments: list[str]) -> int:
    args = parse(arguments)
    torch.set_num_threads(1)
    try:
        if not args.render_only:
            evaluate(args, " ".join(["scripts/evaluate_suite.sh", *arguments]))
        short = render(args.parts, args.results)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(short) or "nothing falls short")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
