"""Ring AllReduce, in id order and in a depth-first order of the network; the faster one is kept."""

from collections import defaultdict
from itertools import pairwise

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.baselines.flow_trees import FlowTrees, checked_participants
from gnnsched.collective.baselines.list_schedule import list_schedule
from gnnsched.collective.baselines.routes import PATHS_PER_PAIR
from gnnsched.collective.mirror import allreduce_from_broadcast
from gnnsched.collective.schedule import Schedule, Transfers
from gnnsched.topology import Topology


def ring_trees(ring: NDArray[np.int32], roots: NDArray[np.int32]) -> FlowTrees:
    """Every chunk goes once round the ``ring`` of participants (N,), from its root: in step s over hop s."""
    n = len(ring)
    position = np.empty(int(ring.max()) + 1, np.int64)
    position[ring] = np.arange(n)
    chunk = np.repeat(np.arange(len(roots)), n - 1)
    step = np.tile(np.arange(n - 1), len(roots))
    at = position[roots[chunk]] + step
    return FlowTrees(roots, chunk.astype(np.int32), ring[at % n], ring[(at + 1) % n], step.astype(np.int64))


def depth_first_tree(topology: Topology) -> tuple[NDArray[np.int32], dict[int, int]]:
    """Participants in the order in which a depth-first search meets them, and its tree (parent by child).

    The search starts at the first participant and goes over servers and switches; at each node it takes
    servers before switches, so that those on one switch follow each other.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_nodes))
    by_preference = np.lexsort((topology.link_target, topology.is_switch[topology.link_target]))
    graph.add_edges_from(
        zip(topology.link_source[by_preference].tolist(), topology.link_target[by_preference].tolist())
    )
    begin = int(topology.participants[0])
    parent = {child: node for node, child in nx.dfs_edges(graph, begin)}
    met = [node for node in (begin, *parent) if topology.is_participant[node]]
    unmet = np.setdiff1d(topology.participants, np.array(met, np.int32))
    return np.concatenate((np.array(met, np.int32), unmet)).astype(np.int32), parent


def tree_paths(
    topology: Topology, ring: NDArray[np.int32], parent: dict[int, int]
) -> dict[tuple[int, int], list[list[int]]]:
    """The tree's path between neighbours on the ring, where it exists and crosses switches only.

    Round a depth-first order each direction of a tree edge is walked at most once, so that no two hops of the
    ring share a link. Where cables are parallel, path j takes the j-th of each bundle; at most 8 paths.
    """
    cables: dict[tuple[int, int], list[int]] = defaultdict(list)
    for link, ends in enumerate(zip(topology.link_source.tolist(), topology.link_target.tolist())):
        cables[ends].append(link)

    def ancestors(node: int) -> list[int]:
        line = [node]
        while line[-1] in parent:
            line.append(parent[line[-1]])
        return line

    paths: dict[tuple[int, int], list[list[int]]] = {}
    for s, t in zip(ring.tolist(), np.roll(ring, -1).tolist()):
        up, down = ancestors(s), ancestors(t)
        if up[-1] != down[-1]:
            continue
        while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
            up.pop()
            down.pop()
        nodes = up + down[-2::-1]
        bundles = [cables.get(ends) for ends in pairwise(nodes)]
        known = [bundle for bundle in bundles if bundle]
        if len(known) == len(bundles) > 0 and topology.is_switch[nodes[1:-1]].all():
            widest = min(PATHS_PER_PAIR, max(len(bundle) for bundle in known))
            paths[s, t] = [[bundle[j % len(bundle)] for bundle in known] for j in range(widest)]
    return paths


def ring(topology: Topology, message_bytes: float, chunks_per_server: int) -> Schedule:
    """Ring AllReduce: the faster of the rings in input order and in depth-first order over tree paths.

    Each participant roots ``chunks_per_server`` chunks. Raises InputError for a message or chunk count that
    is not positive and where some participant cannot be reached.
    """
    participants = checked_participants(topology, message_bytes, chunks_per_server)
    roots = np.repeat(participants, chunks_per_server)
    chunk_bytes = message_bytes / len(roots)

    def in_id_order(network: Topology) -> Transfers:
        return list_schedule(network, chunk_bytes, ring_trees(participants, roots))

    def in_depth_first_order(network: Topology) -> Transfers:
        order, parent = depth_first_tree(network)
        return list_schedule(
            network, chunk_bytes, ring_trees(order, roots), tree_paths(network, order, parent)
        )

    schedules = [
        allreduce_from_broadcast(
            topology,
            message_bytes,
            roots,
            plan_for,
            {"name": "ring", "order": order, "chunks_per_server": chunks_per_server},
        )
        for order, plan_for in (("id", in_id_order), ("depth_first", in_depth_first_order))
    ]
    return min(schedules, key=lambda schedule: schedule.makespan)
