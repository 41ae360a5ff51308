"""The network that everything else plans on: servers, switches and directed links, as integer arrays."""

import hashlib
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnsched.topology.errors import InputError, shown

if TYPE_CHECKING:
    import networkx

NodeId = Hashable


def portable_id(node: NodeId) -> Any:
    """The JSON value of a node id: strings, numbers and booleans stay, tuples become lists."""
    if isinstance(node, tuple):
        return [portable_id(part) for part in node]
    if isinstance(node, np.generic):
        return node.item()
    if node is None or isinstance(node, str | int | float):
        return node
    raise InputError(
        f"node {shown(node)}: an id of type {type(node).__name__} has no JSON form; use a string or number"
    )


@dataclass(frozen=True, eq=False)
class Topology:
    """A directed network. Frozen: a change is a new object. Nodes and links are known by their index.

    Shapes: ``n`` nodes, ``m`` directed links (a full-duplex cable is two of them; parallel cables stay
    apart).

    Attributes
    ----------
    node_ids : the user's ids, in the order of the input, length n
    is_switch : bool (n,): forwards only; all other nodes are servers
    is_participant : bool (n,): servers that take part in the AllReduce; other servers relay
    link_source, link_target : int32 (m,): node indices
    bandwidth : float64 (m,): bytes/s, positive and finite
    latency : float64 (m,): seconds of propagation, non-negative and finite
    warnings : what the reader of the input should know, one sentence each
    """

    name: str
    node_ids: tuple[NodeId, ...]
    is_switch: NDArray[np.bool_]
    is_participant: NDArray[np.bool_]
    link_source: NDArray[np.int32]
    link_target: NDArray[np.int32]
    bandwidth: NDArray[np.float64]
    latency: NDArray[np.float64]
    warnings: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        # Compiled kernels know read-only arrays from others: all topologies have the same kind.
        for name in ("is_switch", "is_participant", "link_source", "link_target", "bandwidth", "latency"):
            array = getattr(self, name).view()
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @property
    def num_nodes(self) -> int:
        return len(self.node_ids)

    @property
    def num_links(self) -> int:
        return len(self.link_source)

    @cached_property
    def servers(self) -> NDArray[np.int32]:
        """Node indices of all servers, in input order."""
        return np.flatnonzero(~self.is_switch).astype(np.int32)

    @cached_property
    def participants(self) -> NDArray[np.int32]:
        """Node indices of the participants, in input order; their number is N."""
        return np.flatnonzero(self.is_participant).astype(np.int32)

    @cached_property
    def index_of(self) -> dict[NodeId, int]:
        """Node index by user's id."""
        return {node: index for index, node in enumerate(self.node_ids)}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content: ids, kinds, participants, links with bandwidth and latency.

        The order of nodes, links and keys and the name do not count, so that a file written in another order
        is the same network.
        """
        ids = [json.dumps(portable_id(node), ensure_ascii=True) for node in self.node_ids]
        nodes = sorted(
            (ids[i], bool(self.is_switch[i]), bool(self.is_participant[i])) for i in range(self.num_nodes)
        )
        links = sorted(
            zip(
                (ids[i] for i in self.link_source),
                (ids[i] for i in self.link_target),
                (float(b).hex() for b in self.bandwidth),
                (float(x).hex() for x in self.latency),
            )
        )
        return hashlib.sha256(json.dumps([nodes, links]).encode()).hexdigest()[:32]

    @cached_property
    def opposite(self) -> NDArray[np.int32] | None:
        """int32 (m,): for each link the one in the other direction of the same cable, or None.

        None where some link has no partner of equal bandwidth and latency; such a network's reduce phase is
        planned on ``reversed()`` instead of being the mirror image of the broadcast phase.
        """
        waiting: dict[tuple[int, int, float, float], list[int]] = {}
        result = np.full(self.num_links, -1, np.int32)
        for link in range(self.num_links):
            s, d = int(self.link_source[link]), int(self.link_target[link])
            b, x = float(self.bandwidth[link]), float(self.latency[link])
            partners = waiting.get((d, s, b, x))
            if partners:
                partner = partners.pop(0)
                result[link], result[partner] = partner, link
            else:
                waiting.setdefault((s, d, b, x), []).append(link)
        return None if (result < 0).any() else result

    def reversed(self) -> "Topology":
        """The same network with every link turned around; link indices keep their meaning. One object per network."""
        return self._reversed

    @cached_property
    def _reversed(self) -> "Topology":
        return replace(self, link_source=self.link_target, link_target=self.link_source)

    @staticmethod
    def from_networkx(graph: "networkx.Graph", name: str | None = None) -> "Topology":
        """The network of a Graph, DiGraph, MultiGraph or MultiDiGraph, checked as every network is.

        An undirected edge is a full-duplex cable, i.e. two links; parallel edges stay apart. Node
        attributes: ``kind`` ("server", the default, or "switch") and ``participant`` (default true on
        servers). Edge attributes: ``bandwidth`` (required) and ``latency`` (missing: 0, said in
        ``warnings``), each text with a unit ("100Gbps", "12.5GB/s", "500ns") or a bare number in the units
        of the graph attribute ``units``, as in ``graph.graph["units"] = {"bandwidth": "Gbps", "latency":
        "us"}``; without it, in bytes/s and seconds. Other attributes are left alone, except misspellings of
        these, which are refused.

        ``name`` defaults to the graph's. Raises InputError that names the element and the cure.
        """
        from gnnsched.topology.networkx_graph import from_networkx

        return from_networkx(graph, name)

    def to_networkx(self) -> "networkx.MultiDiGraph":
        """A MultiDiGraph with an edge per link, in bytes/s and seconds; ``from_networkx`` reads it back."""
        from gnnsched.topology.networkx_graph import to_networkx

        return to_networkx(self)

    def with_participants(self, nodes: Sequence[int] | NDArray[np.integer]) -> "Topology":
        """The same network with other participants, by node index. Raises InputError for switches and for none."""
        chosen = np.zeros(self.num_nodes, bool)
        chosen[np.asarray(nodes, np.int64)] = True
        if not chosen.any():
            raise InputError(f"topology {self.name}: no participants given; name at least one server")
        if (chosen & self.is_switch).any():
            switch = self.node_ids[int(np.argmax(chosen & self.is_switch))]
            raise InputError(f"topology {self.name}: participant {switch!r} is a switch; name servers")
        return self if np.array_equal(chosen, self.is_participant) else replace(self, is_participant=chosen)

    @staticmethod
    def from_arrays(
        name: str,
        node_ids: Sequence[NodeId],
        is_switch: Sequence[bool] | NDArray[np.bool_],
        link_source: Sequence[int] | NDArray[np.int32],
        link_target: Sequence[int] | NDArray[np.int32],
        bandwidth: Sequence[float] | NDArray[np.float64],
        latency: Sequence[float] | NDArray[np.float64],
        is_participant: Sequence[bool] | NDArray[np.bool_] | None = None,
        warnings: Sequence[str] = (),
    ) -> "Topology":
        """Build from plain sequences: read-only arrays of the right types; checks nothing but lengths."""
        switch = np.array(is_switch, bool)
        topology = Topology(
            name,
            tuple(node_ids),
            switch,
            ~switch if is_participant is None else np.array(is_participant, bool),
            np.array(link_source, np.int32),
            np.array(link_target, np.int32),
            np.array(bandwidth, np.float64),
            np.array(latency, np.float64),
            tuple(warnings),
        )
        if len(topology.is_switch) != topology.num_nodes or len(topology.bandwidth) != topology.num_links:
            raise InputError(
                f"topology {name}: arrays of unequal length; give one entry per node and per link"
            )
        return topology
