"""Which sets of servers a symmetry of the network maps onto each other."""

import networkx as nx
import numpy as np
from networkx.algorithms.isomorphism import DiGraphMatcher
from numpy.typing import NDArray

from gnnsched.topology import Topology

# Rounds of refining colours; networks are a few links wide.
_ROUNDS = 6


class Symmetry:
    """Finds, for a set of workers, an earlier set that is the same up to a symmetry of ``topology``.

    Colours that are refined by those of the neighbours (Weisfeiler and Lehman, 1968) tell sets apart; where they
    agree, an isomorphism is looked for, so that sets are never taken for the same wrongly.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        speed = np.round(np.log(topology.bandwidth), 6)
        delay = np.round(topology.latency, 12)
        _, self._link_kind = np.unique(np.stack((speed, delay), 1), axis=0, return_inverse=True)
        self._link_kind = self._link_kind.reshape(-1)
        self._known: dict[bytes, list[tuple[tuple[int, ...], nx.DiGraph]]] = {}
        self._found: dict[tuple[int, ...], tuple[int, ...]] = {}

    def representative(self, workers: tuple[int, ...]) -> tuple[int, ...]:
        """The first set seen that ``workers`` (ascending) can be mapped onto, itself perhaps."""
        if workers not in self._found:
            colours = self._colours(workers)
            graph = self._graph(colours)
            alike = self._known.setdefault(np.sort(colours).tobytes(), [])
            for other, theirs in alike:
                matcher = DiGraphMatcher(
                    graph,
                    theirs,
                    node_match=lambda a, b: a["colour"] == b["colour"],
                    edge_match=lambda a, b: a["kinds"] == b["kinds"],
                )
                if matcher.is_isomorphic():
                    self._found[workers] = other
                    break
            else:
                alike.append((workers, graph))
                self._found[workers] = workers
        return self._found[workers]

    def _colours(self, workers: tuple[int, ...]) -> NDArray[np.uint64]:
        """A colour per node that a symmetry keeping the set cannot change; equal ones may still differ."""
        topology = self._topology
        colour: NDArray[np.uint64] = topology.is_switch.astype(np.uint64) + np.uint64(3)
        colour[topology.participants[list(workers)]] += np.uint64(7)
        kind = self._link_kind.astype(np.uint64)
        for _ in range(_ROUNDS):
            # Sums of mixed colours do not depend on the order of the neighbours.
            out = np.zeros(len(colour), np.uint64)
            into = np.zeros(len(colour), np.uint64)
            np.add.at(out, topology.link_source, _mixed(colour[topology.link_target] * np.uint64(31) + kind))
            np.add.at(into, topology.link_target, _mixed(colour[topology.link_source] * np.uint64(37) + kind))
            colour = _mixed(colour + np.uint64(11) * out + np.uint64(13) * into)
        return colour

    def _graph(self, colours: NDArray[np.uint64]) -> nx.DiGraph:
        graph = nx.DiGraph()
        for node, colour in enumerate(colours.tolist()):
            graph.add_node(node, colour=colour)
        ends = zip(self._topology.link_source.tolist(), self._topology.link_target.tolist())
        for (tail, head), kind in zip(ends, self._link_kind.tolist()):
            if graph.has_edge(tail, head):
                graph.edges[tail, head]["kinds"] = tuple(sorted((*graph.edges[tail, head]["kinds"], kind)))
            else:
                graph.add_edge(tail, head, kinds=(kind,))
        return graph


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's last step, which spreads every bit over all others."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
