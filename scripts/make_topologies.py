"""Write the evaluation suite: ``python scripts/make_topologies.py [FOLDER]`` (default: topologies/)."""

import sys
from pathlib import Path

from gnnsched.topology.formats import dump_topology
from gnnsched.topology.suite import suite_topologies


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "topologies")
    folder.mkdir(parents=True, exist_ok=True)
    for topology in suite_topologies():
        dump_topology(topology, folder / f"{topology.name}.json")


if __name__ == "__main__":
    main()
