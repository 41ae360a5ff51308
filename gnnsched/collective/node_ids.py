"""Nodes in files: by the ids of the topology, with their type."""

from typing import Any

from gnnsched.topology import NodeId, Topology
from gnnsched.topology.network import portable_id


def hashable(node: Any) -> NodeId:
    """An id from JSON: a list stands for a tuple."""
    return tuple(hashable(part) for part in node) if isinstance(node, list) else node


def id_index(topology: Topology) -> dict[NodeId, int]:
    """The node of each id, as ``hashable`` gives it."""
    return {hashable(portable_id(node)): i for i, node in enumerate(topology.node_ids)}
