"""Smallest cuts of a network, by scipy's maximum flow on integer capacities."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from gnnsched.topology import Topology

# scipy computes flows in 32 bits; no flow may exceed this.
LARGEST_FLOW = 2**31 - 2


class CutFinder:
    """Minimum cuts between a super source, with an arc to every server, and one server.

    The graph's structure is built once; ``smallest_cut`` fills in capacities. Parallel links are one arc.
    """

    def __init__(self, topology: Topology) -> None:
        self._nodes = topology.num_nodes
        self._servers = topology.servers
        source = np.full(len(self._servers), self._nodes, np.int32)
        tail = np.concatenate((topology.link_source, source, topology.link_target, self._servers))
        head = np.concatenate((topology.link_target, self._servers, topology.link_source, source))
        # Both directions of every pair, so that flow and capacity share one structure.
        keys, arc = np.unique(tail.astype(np.int64) * (self._nodes + 1) + head, return_inverse=True)
        rows, columns = np.divmod(keys, self._nodes + 1)
        self._arc_of_link = arc[: topology.num_links]
        self._arc_of_supply = arc[topology.num_links :][: len(self._servers)]
        self._indices = columns.astype(np.int32)
        self._indptr = np.searchsorted(rows, np.arange(self._nodes + 2)).astype(np.int32)

    def smallest_cut(
        self, supply: NDArray[np.int64], capacity: NDArray[np.int64], target: int
    ) -> NDArray[np.bool_] | None:
        """The source's side (a mask over nodes) of a minimum cut towards ``target``, None if all arrives.

        ``supply`` is the capacity of the arc to each server, its sum at most LARGEST_FLOW; ``capacity`` that
        of each link; ``target`` a server.
        """
        total = int(supply.sum())
        data = np.zeros(len(self._indices), np.int64)
        np.add.at(data, self._arc_of_link, np.minimum(capacity, total))
        data[self._arc_of_supply] = supply
        data = np.minimum(data, total)
        shape = (self._nodes + 1, self._nodes + 1)
        graph = csr_array((data.astype(np.int32), self._indices, self._indptr), shape=shape)
        result = maximum_flow(graph, self._nodes, target)
        if result.flow_value >= total:
            return None
        left = graph - result.flow
        left.eliminate_zeros()
        reached = breadth_first_order(left, self._nodes, return_predecessors=False)
        side = np.zeros(self._nodes + 1, bool)
        side[reached] = True
        return side[:-1]
