"""List scheduling of flow trees: an algorithm's steps in order, each once its data and a path are there."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gnnsched.collective.baselines.event_loop import make_network, run_in_order
from gnnsched.collective.baselines.flow_trees import FlowTrees, over_servers
from gnnsched.collective.baselines.routes import PairPaths, switch_paths
from gnnsched.collective.mirror import allreduce_from_broadcast
from gnnsched.collective.schedule import BROADCAST, Schedule, Transfers
from gnnsched.topology import Topology


def _merge(paths: PairPaths, own: Sequence[Sequence[Sequence[int]] | None]) -> PairPaths:
    """``paths`` with those of pair p replaced by ``own[p]`` where that is not None."""
    every: list[list[Sequence[int]]] = []
    for p, replacement in enumerate(own):
        kept = range(paths.first[p], paths.first[p + 1]) if replacement is None else ()
        every.append(
            list(replacement or ())
            + [paths.links[paths.path_start[i] : paths.path_start[i + 1]].tolist() for i in kept]
        )
    flat = [path for of_pair in every for path in of_pair]
    return PairPaths(
        np.cumsum([0] + [len(of_pair) for of_pair in every], dtype=np.int64),
        np.cumsum([0] + [len(path) for path in flat], dtype=np.int64),
        np.array([link for path in flat for link in path], np.int32),
    )


def list_schedule(
    topology: Topology,
    chunk_bytes: float,
    trees: FlowTrees,
    own_paths: Mapping[tuple[int, int], Sequence[Sequence[int]]] | None = None,
) -> Transfers:
    """Broadcast all chunks down ``trees`` from time 0: every transfer as early as the order lets it start.

    At each event (an arrival, or the moment at which a path comes free) the transfers whose source holds
    their chunk are taken in order of step, then chunk, then position in ``trees``; one starts if some
    candidate path of its server pair is free: each link k has the path's ordinary rate (its smallest
    bandwidth) left at t + (latency of the links before k). The candidates are up to 8 paths of fewest links;
    the first free one is taken, in an order that differs from pair to pair, as ECMP would spread them.
    ``own_paths`` (link indices by source and target node) replaces them for some pairs. Pairs without a
    switch-only path hop over servers (``over_servers``). A link's bandwidth counts as taken by every transfer
    booked on it that ends later, also by one that begins later.

    Returns E transfers, all in the broadcast phase, in order of their start.
    """
    trees = over_servers(topology, trees)
    order = np.lexsort((np.arange(len(trees.chunk)), trees.chunk, trees.step))
    chunk, parent, child = trees.chunk[order], trees.parent[order], trees.child[order]
    count, nodes = len(chunk), topology.num_nodes
    pairs, pair = np.unique(parent.astype(np.int64) * nodes + child, return_inverse=True)
    source, target = (pairs // nodes).astype(np.int32), (pairs % nodes).astype(np.int32)
    paths = switch_paths(topology, source, target)
    if own_paths:
        paths = _merge(paths, [own_paths.get(ends) for ends in zip(source.tolist(), target.tolist())])
    delivered = chunk.astype(np.int64) * nodes + child
    needed = chunk.astype(np.int64) * nodes + parent
    by_delivery = np.argsort(delivered)
    place = np.minimum(np.searchsorted(delivered[by_delivery], needed), max(count - 1, 0))
    predecessor = (
        np.where(delivered[by_delivery[place]] == needed, by_delivery[place], -1) if count else place
    )
    network = make_network(topology.bandwidth, topology.latency, paths.first, paths.path_start, paths.links)
    chosen, start, end = run_in_order(
        network, float(chunk_bytes), predecessor.astype(np.int64), pair.astype(np.int64)
    )
    if (chosen < 0).any() or (parent != trees.roots[chunk])[predecessor < 0].any():
        raise ValueError("flow trees: some edge hangs on no root")
    by_start = np.argsort(start, kind="stable")
    chosen = chosen[by_start]
    lengths = np.diff(paths.path_start)[chosen]
    path_start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    offset = np.arange(path_start[-1]) - np.repeat(path_start[:-1], lengths)
    return Transfers(
        phase=np.full(count, BROADCAST, np.uint8),
        chunk=chunk[by_start].astype(np.int32),
        source=parent[by_start].astype(np.int32),
        target=child[by_start].astype(np.int32),
        path_start=path_start,
        path_links=paths.links[np.repeat(paths.path_start[:-1][chosen], lengths) + offset],
        rate=network.rate[chosen],
        start=start[by_start],
        end=end[by_start],
    )


def list_scheduled_allreduce(
    topology: Topology, message_bytes: float, trees: FlowTrees, planner: Mapping[str, Any]
) -> Schedule:
    """The AllReduce of ``message_bytes`` bytes that list schedules ``trees`` for both halves."""
    chunk_bytes = message_bytes / len(trees.roots)
    return allreduce_from_broadcast(
        topology,
        message_bytes,
        trees.roots,
        lambda network: list_schedule(network, chunk_bytes, trees),
        planner,
    )
