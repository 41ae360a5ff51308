"""Where to draw the nodes of a network."""

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from gnnsched.topology import Topology

# A switch whose neighbours lie all around, rather than side by side, goes to the middle.
_SIDE_BY_SIDE = 0.3


def node_positions(topology: Topology) -> NDArray[np.float64]:
    """Coordinates (n, 2) within -1 .. 1, the same for the same network.

    Servers on a circle in input order, switches on smaller circles inside: the farther from the servers, the
    smaller, each near its neighbours. Networks without switches are laid out by their distances.
    """
    if topology.num_nodes == 1:
        return np.zeros((1, 2))
    if not topology.is_switch.any():
        return _by_distance(topology)
    angle, layer = _angles(topology)
    rings = sorted(set(layer.tolist()))
    position = np.zeros((topology.num_nodes, 2))
    for ring, number in enumerate(rings):
        members = np.flatnonzero(layer == number)
        radius = 1.0 - ring / max(len(rings) - 0.4, 1.0)
        if len(members) == 1 and ring == len(rings) - 1:
            radius = 0.0
        position[members, 0] = radius * np.sin(angle[members])
        position[members, 1] = radius * np.cos(angle[members])
    return position


def _by_distance(topology: Topology) -> NDArray[np.float64]:
    graph = nx.Graph()
    graph.add_nodes_from(range(topology.num_nodes))
    graph.add_edges_from(zip(topology.link_source.tolist(), topology.link_target.tolist()))
    spots = nx.kamada_kawai_layout(graph)
    position = np.array([spots[node] for node in range(topology.num_nodes)])
    return position / max(float(np.abs(position).max()), 1e-12)


def _angles(topology: Topology) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Angle of every node on its circle, and the circle's number: 0 outside (servers), larger inside."""
    n = topology.num_nodes
    neighbours: list[set[int]] = [set() for _ in range(n)]
    for s, d in zip(topology.link_source.tolist(), topology.link_target.tolist()):
        neighbours[s].add(d)
        neighbours[d].add(s)
    angle = np.zeros(n)
    layer = np.full(n, -1)
    known = topology.servers.tolist()
    angle[known] = 2 * np.pi * np.arange(len(known)) / len(known)
    layer[known] = 0
    depth = 0
    while known:
        reached = sorted({w for v in known for w in neighbours[v] if layer[w] < 0})
        near: list[int] = []
        around: list[int] = []
        for switch in reached:
            outer = [v for v in neighbours[switch] if layer[v] >= 0]
            mean = np.exp(1j * angle[outer]).mean()
            (near if abs(mean) >= _SIDE_BY_SIDE else around).append(switch)
            angle[switch] = np.angle(mean) % (2 * np.pi) if abs(mean) >= _SIDE_BY_SIDE else np.inf
        for group in (near, around):
            if group:
                depth += 1
                _spread(angle, sorted(group, key=lambda switch: (angle[switch], switch)))
                layer[group] = depth
        known = reached
    alone = np.flatnonzero(layer < 0).tolist()
    if alone:
        _spread(angle, alone)
        layer[alone] = depth + 1
    return angle, layer


def _spread(angle: NDArray[np.float64], members: list[int]) -> None:
    """Even angles in this order, turned so that they stay near where they belong."""
    even = 2 * np.pi * np.arange(len(members)) / len(members)
    wanted = angle[members]
    turn = 0.0
    if np.isfinite(wanted).all():
        turn = float(np.angle(np.exp(1j * (wanted - even)).mean()))
    angle[members] = even + turn
