"""Networks: the ``Topology`` type, generators and file formats."""

from gnnsched.topology.errors import InputError
from gnnsched.topology.network import NodeId, Topology

__all__ = ["InputError", "NodeId", "Topology"]
