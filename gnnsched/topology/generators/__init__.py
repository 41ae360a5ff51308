"""Networks by formula; ``GENERATORS`` has them by name."""

from collections.abc import Callable

from gnnsched.topology.generators.checks import DEFAULT_BANDWIDTH, DEFAULT_LATENCY
from gnnsched.topology.generators.heterogeneous import random_heterogeneous
from gnnsched.topology.generators.server_centric import bcube, dcell, hub, hypercube, torus
from gnnsched.topology.generators.switched import dgx, dumbbell, fat_tree, jellyfish, leaf_spine, star
from gnnsched.topology.network import Topology

GENERATORS: dict[str, Callable[..., Topology]] = {
    "bcube": bcube,
    "dcell": dcell,
    "jellyfish": jellyfish,
    "fat_tree": fat_tree,
    "torus": torus,
    "hypercube": hypercube,
    "dgx": dgx,
    "leaf_spine": leaf_spine,
    "star": star,
    "hub": hub,
    "dumbbell": dumbbell,
    "random_heterogeneous": random_heterogeneous,
}

__all__ = [
    "DEFAULT_BANDWIDTH",
    "DEFAULT_LATENCY",
    "GENERATORS",
    "bcube",
    "dcell",
    "dgx",
    "dumbbell",
    "fat_tree",
    "hub",
    "hypercube",
    "jellyfish",
    "leaf_spine",
    "random_heterogeneous",
    "star",
    "torus",
]
