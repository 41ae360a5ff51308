"""Parameter server: push to one server, pull from it; sharded, where every server does so for its share."""

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.baselines.flow_trees import FlowTrees, checked_participants
from gnnsched.collective.baselines.list_schedule import list_scheduled_allreduce
from gnnsched.collective.schedule import Schedule
from gnnsched.topology import Topology


def direct_trees(participants: NDArray[np.int32], root_rank: NDArray[np.int64]) -> FlowTrees:
    """Each chunk goes from its root straight to every other participant.

    ``root_rank`` (C,): position of each chunk's root among the participants. In step k a root sends to the
    participant k + 1 places behind it, so that no two of different roots send to the same one.
    """
    n, count = len(participants), len(root_rank)
    chunk = np.repeat(np.arange(count), n - 1)
    step = np.tile(np.arange(n - 1), count)
    return FlowTrees(
        participants[root_rank],
        chunk.astype(np.int32),
        participants[root_rank[chunk]],
        participants[(root_rank[chunk] + step + 1) % n],
        step.astype(np.int64),
    )


def parameter_server(topology: Topology, message_bytes: float, chunks_per_server: int) -> Schedule:
    """The first participant roots all N * ``chunks_per_server`` chunks: all push to it, then pull from it.

    Raises InputError for a message or chunk count that is not positive and where some participant cannot
    be reached.
    """
    participants = checked_participants(topology, message_bytes, chunks_per_server)
    trees = direct_trees(participants, np.zeros(len(participants) * chunks_per_server, np.int64))
    return list_scheduled_allreduce(
        topology,
        message_bytes,
        trees,
        {"name": "parameter_server", "chunks_per_server": chunks_per_server},
    )


def sharded_parameter_server(topology: Topology, message_bytes: float, chunks_per_server: int) -> Schedule:
    """Every participant is the parameter server of its own ``chunks_per_server`` chunks.

    Raises InputError for a message or chunk count that is not positive and where some participant cannot
    be reached.
    """
    participants = checked_participants(topology, message_bytes, chunks_per_server)
    trees = direct_trees(participants, np.repeat(np.arange(len(participants)), chunks_per_server))
    return list_scheduled_allreduce(
        topology,
        message_bytes,
        trees,
        {"name": "sharded_parameter_server", "chunks_per_server": chunks_per_server},
    )
