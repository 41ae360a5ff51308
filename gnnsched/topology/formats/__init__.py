"""Reading and writing network files."""

from gnnsched.topology.formats.json_format import dump_topology, load_topology, topology_schema

__all__ = ["dump_topology", "load_topology", "topology_schema"]
