"""Double binary tree: two binary trees with half of the chunks each; parents in one are leaves in the other.

The construction is that of Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan" (Parallel Computing 35, 2009), in the numbering that NCCL uses.
"""

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.baselines.flow_trees import FlowTrees, checked_participants
from gnnsched.collective.baselines.list_schedule import list_scheduled_allreduce
from gnnsched.collective.schedule import Schedule
from gnnsched.topology import Topology


def binary_tree(n: int) -> NDArray[np.int64]:
    """Parent (n,) of each rank in the first tree; -1 for its root, rank 0. Odd ranks are leaves.

    A rank whose lowest set bit is b hangs below that of its neighbours at distance b whose lowest set bit is
    2b, or, where that is beyond the last rank, below the other neighbour.
    """
    parent = np.full(n, -1, np.int64)
    for rank in range(1, n):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        parent[rank] = up if up < n else rank ^ bit
    return parent


def twin_trees(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Parents in both trees: the second is the first, mirrored for even n, shifted by one rank for odd n."""
    first = binary_tree(n)
    rank = np.arange(n)
    if n % 2 == 0:
        up = first[n - 1 - rank]
        return first, np.where(up < 0, -1, n - 1 - up)
    up = first[(rank - 1) % n]
    return first, np.where(up < 0, -1, (up + 1) % n)


def double_trees(participants: NDArray[np.int32], chunks: int) -> FlowTrees:
    """Even chunks go down the first tree, odd ones down the second, one behind the other as a pipeline.

    The k-th chunk of a tree enters it in step k and moves down one level a step.
    """
    n = len(participants)
    level_edges = []
    for parent in twin_trees(n):
        depth = np.zeros(n, np.int64)
        for rank in range(n):
            at = rank
            while parent[at] >= 0:
                at = parent[at]
                depth[rank] += 1
        level_edges.append((np.flatnonzero(parent >= 0), parent, depth, np.flatnonzero(parent < 0)[0]))
    columns: list[tuple[NDArray[np.int64], ...]] = []
    roots = np.empty(chunks, np.int32)
    for chunk in range(chunks):
        child, parent, depth, root = level_edges[chunk % 2]
        roots[chunk] = participants[root]
        columns.append((np.full(n - 1, chunk), parent[child], child, chunk // 2 + depth[child] - 1))
    chunk_of, parent_of, child_of, step = (np.concatenate(column) for column in zip(*columns))
    return FlowTrees(
        roots,
        chunk_of.astype(np.int32),
        participants[parent_of],
        participants[child_of],
        step.astype(np.int64),
    )


def double_tree(topology: Topology, message_bytes: float, chunks_per_server: int) -> Schedule:
    """Double binary tree AllReduce over the participants in input order, N * ``chunks_per_server`` chunks.

    Raises InputError for a message or chunk count that is not positive and where some participant cannot
    be reached.
    """
    participants = checked_participants(topology, message_bytes, chunks_per_server)
    trees = double_trees(participants, len(participants) * chunks_per_server)
    return list_scheduled_allreduce(
        topology,
        message_bytes,
        trees,
        {"name": "double_tree", "chunks_per_server": chunks_per_server},
    )
