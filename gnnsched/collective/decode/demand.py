"""Who has which chunks and who needs them: a whole all-gather, or what is left of one."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnsched.topology import Topology


class Demand(NamedTuple):
    """``since`` (num_nodes, C): seconds from when on a server has the chunk, inf where it must come first. ``needed``
    (num_nodes, C): must get the chunk. A chunk that somebody needs is somewhere.
    """

    since: NDArray[np.float64]
    needed: NDArray[np.bool_]


def all_gather_demand(topology: Topology, roots: NDArray[np.integer]) -> Demand:
    """Every participant needs every chunk, which its root (C,), a node index, has from the beginning."""
    since = np.full((topology.num_nodes, len(roots)), np.inf)
    since[roots, np.arange(len(roots))] = 0.0
    return Demand(since, topology.is_participant[:, None] & ~np.isfinite(since))
