"""Flow trees as columns, and their fit to a network: hops over servers where no switch-only path exists."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.baselines.routes import relay_sequences, switch_paths
from gnnsched.topology import InputError, Topology


@dataclass(frozen=True, eq=False)
class FlowTrees:
    """The broadcast trees of all chunks, with the order in which an algorithm sends over their edges.

    ``roots`` int32 (C,): node index of each chunk's root. One entry per tree edge (E,): ``chunk`` int32,
    ``parent`` and ``child`` int32 node indices of servers, ``step`` int64, the algorithm's step; lower steps
    go first. Each server is the child of at most one edge of a chunk.
    """

    roots: NDArray[np.int32]
    chunk: NDArray[np.int32]
    parent: NDArray[np.int32]
    child: NDArray[np.int32]
    step: NDArray[np.int64]


def checked_participants(
    topology: Topology, message_bytes: float, chunks_per_server: int
) -> NDArray[np.int32]:
    """The participants, once the request makes sense. Raises InputError where it does not."""
    if not len(topology.participants):
        raise InputError(f"topology {topology.name}: no server takes part; mark at least one as participant")
    if not (np.isfinite(message_bytes) and message_bytes > 0):
        raise InputError(f"message size {message_bytes} bytes: give a positive number of bytes")
    if chunks_per_server < 1:
        raise InputError(f"{chunks_per_server} chunks per server: give at least 1")
    return topology.participants


def over_servers(topology: Topology, trees: FlowTrees) -> FlowTrees:
    """The same trees with edges split into hops between servers that reach each other over switches alone.

    A hop sequence is a shortest path through servers, another one of the equally short for each chunk. The
    servers on the way keep the chunk (and, mirrored, reduce on the way), as any server in this model does.
    The first visit wins: a later edge starts at the last server of its sequence that has the chunk already,
    and an edge into such a server is dropped, so every server still gets each chunk once. Raises InputError
    where there is no path at all.
    """
    pairs, pair = np.unique(
        trees.parent.astype(np.int64) * topology.num_nodes + trees.child, return_inverse=True
    )
    source = (pairs // topology.num_nodes).astype(np.int32)
    target = (pairs % topology.num_nodes).astype(np.int32)
    direct = np.diff(switch_paths(topology, source, target).first) > 0
    if direct.all():
        return trees
    indirect = iter(relay_sequences(topology, source[~direct], target[~direct]))
    sequences = [
        [(s, t)] if reached else next(indirect)
        for s, t, reached in zip(source.tolist(), target.tolist(), direct.tolist())
    ]
    edges: list[tuple[int, int, int, int]] = []
    visited = set(zip(range(len(trees.roots)), trees.roots.tolist()))
    for edge in np.lexsort((trees.chunk, trees.step)).tolist():
        chunk, step = int(trees.chunk[edge]), int(trees.step[edge])
        if (chunk, int(trees.child[edge])) in visited:
            continue
        choices = sequences[pair[edge]]
        servers = choices[chunk % len(choices)]
        last = max(i for i, server in enumerate(servers) if (chunk, server) in visited)
        for parent, child in zip(servers[last:], servers[last + 1 :]):
            edges.append((chunk, parent, child, step))
            visited.add((chunk, child))
    columns = np.array(edges, np.int64).T
    return FlowTrees(
        trees.roots,
        columns[0].astype(np.int32),
        columns[1].astype(np.int32),
        columns[2].astype(np.int32),
        columns[3],
    )
