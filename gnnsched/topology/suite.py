"""The evaluation suite: the networks that schedulers are compared on, shipped as files in ``topologies/``."""

import dataclasses
from pathlib import Path

from gnnsched.topology.errors import InputError
from gnnsched.topology.generators import (
    DEFAULT_BANDWIDTH,
    bcube,
    dcell,
    dgx,
    dumbbell,
    fat_tree,
    hub,
    jellyfish,
    leaf_spine,
    star,
    torus,
)
from gnnsched.topology.network import Topology

JELLYFISH_SEED = 1


def suite_topologies() -> list[Topology]:
    """The suite's networks, freshly generated; each one's file is ``<name>.json``."""
    uneven = star([10 * DEFAULT_BANDWIDTH] * 4 + [DEFAULT_BANDWIDTH] * 4)
    return [
        *(bcube(ports, levels) for ports, levels in ((2, 1), (3, 1), (4, 1), (8, 1), (4, 2))),
        *(dcell(ports, levels) for ports, levels in ((2, 1), (4, 1), (6, 1), (2, 2))),
        *(jellyfish(*sizes, JELLYFISH_SEED) for sizes in ((10, 3, 2), (20, 4, 2), (30, 4, 4))),
        fat_tree(4),
        fat_tree(8),
        torus(4, 4),
        torus(8, 8),
        dgx(2, 8),
        dgx(4, 8),
        leaf_spine(4, 4, uplink_bandwidth=DEFAULT_BANDWIDTH),
        dumbbell(8),
        dataclasses.replace(uneven, name="star_4x10_4x1"),
        hub(4),
    ]


def suite_folder() -> Path:
    """The folder of the shipped files, in an installed package or in a clone."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "data" / "topologies", package.parent / "topologies"):
        if folder.is_dir():
            return folder
    raise InputError("topologies: the shipped networks are missing; install the package again")


def suite_files() -> list[Path]:
    """The shipped files, by name."""
    return sorted(suite_folder().glob("*.json"))
