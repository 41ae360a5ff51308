"""Flow trees of a known shape as a guide, where packing gains nothing over them: chains, and straight to everybody.

Where every server has one port, a chain through all servers loads each link once; where latency is all there is,
nothing is faster than sending straight to everybody. The event loop decodes them as it decodes packed trees.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.baselines.flow_trees import FlowTrees, over_servers
from gnnsched.collective.baselines.parameter_server import direct_trees
from gnnsched.collective.baselines.ring import depth_first_tree, ring_trees, tree_paths
from gnnsched.collective.baselines.routes import switch_paths
from gnnsched.collective.decode.packing import Trees
from gnnsched.collective.decode.paths import Paths, paths_of
from gnnsched.topology import Topology

CHAIN, CHAIN_BY_ID, DIRECT, FARTHEST = "chain", "chain_by_id", "direct", "farthest_first"
# Where every server sends to every other, alternatives are left out beyond so many paths: the loop looks at them all.
MOST_PATHS = 140_000


class Shape:
    """The flow trees of one shape on one network at one chunk count, and the candidate paths that they need.

    ``name``: "chain" passes each chunk on along a depth-first order of the participants, "chain_by_id" along their
    input order; "direct" sends it from its root to each other participant, the next one first, and "farthest_first"
    does so in order of latency. Over relays where no path crosses switches alone. ``root``: the node at which all
    chunks are rooted.
    """

    def __init__(
        self, name: str, topology: Topology, chunks_per_server: int, root: int | None = None
    ) -> None:
        self.topology = topology
        self._by_latency = name == FARTHEST
        members = topology.participants
        ranks = np.arange(len(members)) if root is None else np.flatnonzero(members == root)
        rank = np.repeat(ranks, chunks_per_server)
        own: Mapping[tuple[int, int], Sequence[Sequence[int]]] = {}
        if name in (DIRECT, FARTHEST):
            flow = direct_trees(members, rank)
        else:
            order = members
            if name == CHAIN:
                order, parent = depth_first_tree(topology)
                own = tree_paths(topology, order, parent)
            flow = ring_trees(order, members[rank])
        self._flow = over_servers(topology, flow)
        self.paths = _paths(topology, self._flow, own)

    def least_seconds(self, chunk_bytes: float) -> float:
        """Seconds that a link is busy at least with chunks of so many bytes, if each pair's go over its paths alike.

        The longest path's latency is added. What the event loop makes of the trees is seldom faster.
        """
        flow, paths, nodes = self._flow, self.paths, self.topology.num_nodes
        if not paths.num_paths:
            return 0.0
        edges = np.bincount(flow.parent.astype(np.int64) * nodes + flow.child, minlength=nodes * nodes)
        pair = paths.nodes[paths.source].astype(np.int64) * nodes + paths.nodes[paths.target]
        share = edges[pair] / np.bincount(pair, minlength=nodes * nodes)[pair]
        return float(self._busy(share, chunk_bytes).max() + paths.latency.max())

    def _busy(self, chunks: NDArray[np.float64], chunk_bytes: float) -> NDArray[np.float64]:
        """Seconds for which each link is busy, (m,), where each path carries so many ``chunks``, (P,)."""
        hops, bandwidth = np.diff(self.paths.start), self.topology.bandwidth
        return (
            np.bincount(self.paths.links, np.repeat(chunks, hops), len(bandwidth)) * chunk_bytes / bandwidth
        )

    def trees(self, chunk_bytes: float) -> Trees:
        """The trees for chunks of so many bytes; their tails give the order in which transfers start."""
        flow, paths = self._flow, self.paths
        number = np.full(self.topology.num_nodes, -1, np.int64)
        number[paths.nodes] = np.arange(paths.num_servers)
        first = np.full((paths.num_servers, paths.num_servers), -1, np.int64)
        # Backwards, so that of several paths the first one stays.
        first[paths.source[::-1], paths.target[::-1]] = np.arange(paths.num_paths)[::-1]
        parent, child = number[flow.parent], number[flow.child]
        path = np.full((len(flow.roots), paths.num_servers), -1, np.int32)
        path[flow.chunk, child] = first[parent, child]
        left = flow.step.max(initial=0) + 1 - flow.step
        tail = np.zeros(path.shape)
        if self._by_latency:
            # The next one first among those that are equally far.
            latency = paths.latency[first[parent, child]]
            least = 1e-3 * (latency.max(initial=0.0) or 1.0)
            tail[flow.chunk, child] = latency + least * left / left.max(initial=1)
        else:
            tail[flow.chunk, child] = float(np.median(paths.latency + chunk_bytes / paths.rate)) * left
        used = np.bincount(path[path >= 0], minlength=paths.num_paths).astype(float)
        return Trees(path, tail, np.ones(paths.num_paths), self._busy(used, chunk_bytes))


def _paths(
    topology: Topology, flow: FlowTrees, own: Mapping[tuple[int, int], Sequence[Sequence[int]]]
) -> Paths:
    """Paths of all edges of the trees: ``own`` where given by source and target, else shortest ones over switches."""
    pairs = np.unique(flow.parent.astype(np.int64) * topology.num_nodes + flow.child)
    source, target = (
        (pairs // topology.num_nodes).astype(np.int32),
        (pairs % topology.num_nodes).astype(np.int32),
    )
    shortest = switch_paths(topology, source, target)
    nodes = np.unique(np.concatenate([topology.participants, source, target])).astype(np.int32)
    number = {node: i for i, node in enumerate(nodes.tolist())}
    most = max(1, MOST_PATHS // max(1, len(pairs)))
    found: list[tuple[int, int, int, list[int]]] = []
    for pair, (s, d) in enumerate(zip(source.tolist(), target.tolist())):
        ways: Sequence[Sequence[int]] = own.get((s, d)) or [
            shortest.links[shortest.path_start[i] : shortest.path_start[i + 1]].tolist()
            for i in range(shortest.first[pair], shortest.first[pair + 1])
        ]
        found += [(number[d], way[-1], number[s], list(way)) for way in ways[:most]]
    return paths_of(topology, nodes, found)
