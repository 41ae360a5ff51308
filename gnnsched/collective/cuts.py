"""Smallest cuts of a network, by scipy's maximum flow on integer capacities."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from gnnsched.topology import Topology

# scipy computes with 32 bits, and what is left of an arc is its capacity plus the flow against it.
LARGEST_FLOW = 2**30 - 1


class CutFinder:
    """Minimum cuts between a super source, with an arc to every server, and one server.

    The graph's structure is built once; ``smallest_cut`` fills in capacities. Parallel links are one arc.
    """

    def __init__(self, topology: Topology) -> None:
        self._source, self._sink = topology.num_nodes, topology.num_nodes + 1
        self._size = topology.num_nodes + 2
        servers = topology.servers
        source, sink = np.full(len(servers), self._source), np.full(len(servers), self._sink)
        tail = np.concatenate((topology.link_source, source, servers))
        head = np.concatenate((topology.link_target, servers, sink))
        # Both directions of every pair, so that flow and capacity share one structure.
        tail, head = np.concatenate((tail, head)).astype(np.int64), np.concatenate((head, tail))
        keys, arc = np.unique(tail * self._size + head, return_inverse=True)
        rows, columns = np.divmod(keys, self._size)
        links = topology.num_links
        self._arc_of_link = arc[:links]
        self._arc_of_supply = arc[links:][: len(servers)]
        self._arc_to_sink = dict(zip(servers.tolist(), arc[links + len(servers) :].tolist()))
        self._indices = columns.astype(np.int32)
        self._indptr = np.searchsorted(rows, np.arange(self._size + 1)).astype(np.int32)

    def smallest_cut(
        self, supply: NDArray[np.int64], capacity: NDArray[np.int64], target: int, wanted: int
    ) -> NDArray[np.bool_] | None:
        """The source's side (a mask over nodes) of a least cut to ``target``, None if ``wanted`` gets there.

        ``supply`` is the capacity of the arc to each server, ``capacity`` that of each link, ``target`` a
        server; ``wanted`` is at most LARGEST_FLOW. A server that ``wanted`` gets to may supply ``wanted`` to
        the others from then on: no cut that is too small leaves it out, and their flows become short.
        """
        data = np.zeros(len(self._indices), np.int64)
        np.add.at(data, self._arc_of_link, np.minimum(capacity, wanted))
        data[self._arc_of_supply] = supply
        data[self._arc_to_sink[target]] = wanted
        data = np.minimum(data, wanted)
        shape = (self._size, self._size)
        graph = csr_array((data.astype(np.int32), self._indices, self._indptr), shape=shape)
        result = maximum_flow(graph, self._source, self._sink)
        if result.flow_value >= wanted:
            return None
        left = graph - result.flow
        left.eliminate_zeros()
        reached = breadth_first_order(left, self._source, return_predecessors=False)
        side = np.zeros(self._size, bool)
        side[reached] = True
        return side[: self._source]
