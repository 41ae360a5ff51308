"""Recursive halving (reduce) and doubling (broadcast), for any number of servers.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (IJHPCA 19,
2005), section 4.5; numbers that are not powers of two are handled as there.
"""

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.baselines.flow_trees import FlowTrees, checked_participants
from gnnsched.collective.baselines.list_schedule import list_scheduled_allreduce
from gnnsched.collective.schedule import Schedule
from gnnsched.topology import Topology


def binomial_trees(participants: NDArray[np.int32], chunks: int) -> FlowTrees:
    """Recursive doubling as trees: in step s every holder of a chunk passes it on at distance 2**s.

    Of N participants the first 2(N - p), p being the largest power of two up to N, form pairs: the second one
    of a pair hands its data to the first before all else and gets the result from it after all else (here:
    the last step). The other p exchange; the chunks are shared among them as evenly as their number allows.
    """
    n = len(participants)
    levels = n.bit_length() - 1
    power = 1 << levels
    extra = n - power
    core = np.concatenate((np.arange(0, 2 * extra, 2), np.arange(2 * extra, n)))
    root = np.arange(chunks) * power // chunks
    chunk, parent, child, step = [], [], [], []
    for s in range(levels):
        # Before step s the holders of a chunk are those that differ from its root in the lowest s bits only.
        holder = root[:, None] ^ np.arange(1 << s)[None, :]
        chunk.append(np.repeat(np.arange(chunks), 1 << s))
        parent.append(core[holder.ravel()])
        child.append(core[holder.ravel() ^ (1 << s)])
        step.append(np.full(holder.size, s))
    chunk.append(np.repeat(np.arange(chunks), extra))
    parent.append(np.tile(2 * np.arange(extra), chunks))
    child.append(np.tile(2 * np.arange(extra) + 1, chunks))
    step.append(np.full(chunks * extra, levels))
    return FlowTrees(
        participants[core[root]],
        np.concatenate(chunk).astype(np.int32),
        participants[np.concatenate(parent)],
        participants[np.concatenate(child)],
        np.concatenate(step).astype(np.int64),
    )


def halving_doubling(topology: Topology, message_bytes: float, chunks_per_server: int) -> Schedule:
    """Recursive halving-doubling over the participants in input order, with N * ``chunks_per_server`` chunks.

    Raises InputError for a message or chunk count that is not positive and where some participant cannot
    be reached.
    """
    participants = checked_participants(topology, message_bytes, chunks_per_server)
    trees = binomial_trees(participants, len(participants) * chunks_per_server)
    return list_scheduled_allreduce(
        topology,
        message_bytes,
        trees,
        {"name": "halving_doubling", "chunks_per_server": chunks_per_server},
    )
