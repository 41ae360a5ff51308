"""Collecting a network node by node and link by link: what generators and readers share."""

from gnnsched.topology.errors import InputError, shown
from gnnsched.topology.network import NodeId, Topology
from gnnsched.topology.validate import validated


class NetworkBuilder:
    """Nodes and links in the order in which they are added; ``build`` checks the whole.

    ``where`` begins every error message: the file, or the generator with its arguments.
    """

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        self.where = where
        self.warnings: list[str] = []
        self._index: dict[NodeId, int] = {}
        self._is_switch: list[bool] = []
        self._is_participant: list[bool] = []
        self._links: list[tuple[int, int, float, float]] = []

    def server(self, node: NodeId, participant: bool = True) -> int:
        """Add a server; returns its index."""
        return self._node(node, False, participant)

    def switch(self, node: NodeId) -> int:
        """Add a switch; returns its index."""
        return self._node(node, True, False)

    def index(self, node: NodeId) -> int | None:
        """Index of a node that was added, None for any other."""
        return self._index.get(node)

    def link(self, source: int, target: int, bandwidth: float, latency: float) -> None:
        """Add one directed link between node indices: bytes/s and seconds."""
        self._links.append((source, target, bandwidth, latency))

    def cable(self, one: int, other: int, bandwidth: float, latency: float) -> None:
        """Add a full-duplex cable, i.e. two links that follow each other."""
        self.link(one, other, bandwidth, latency)
        self.link(other, one, bandwidth, latency)

    def build(self) -> Topology:
        """The checked network; raises InputError as ``validated`` does."""
        source, target, bandwidth, latency = zip(*self._links) if self._links else ((), (), (), ())
        topology = Topology.from_arrays(
            self.name,
            tuple(self._index),
            self._is_switch,
            source,
            target,
            bandwidth,
            latency,
            self._is_participant,
            self.warnings,
        )
        return validated(topology, self.where)

    def _node(self, node: NodeId, is_switch: bool, is_participant: bool) -> int:
        if node in self._index:
            raise InputError(
                f"{self.where}: node {shown(node)} is declared twice; give every node its own id"
            )
        index = self._index[node] = len(self._index)
        self._is_switch.append(is_switch)
        self._is_participant.append(is_participant)
        return index
