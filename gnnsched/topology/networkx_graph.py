"""Networks from and to networkx graphs; see ``Topology.from_networkx`` for the contract."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.errors import InputError, nearest, shown, unknown_key
from gnnsched.topology.network import NodeId, Topology
from gnnsched.topology.units import bandwidth_unit, latency_unit, parse_bandwidth, parse_latency

if TYPE_CHECKING:
    import networkx

NODE_ATTRIBUTES = ("kind", "participant")
EDGE_ATTRIBUTES = ("bandwidth", "latency")
KINDS = ("server", "switch")


def from_networkx(graph: "networkx.Graph", name: str | None = None) -> Topology:
    """See ``Topology.from_networkx``."""
    if not all(hasattr(graph, method) for method in ("is_directed", "is_multigraph", "nodes", "edges")):
        raise InputError(
            f"from_networkx: {type(graph).__name__} is not a networkx graph; pass a Graph or DiGraph"
        )
    name = str(name or graph.graph.get("name") or "graph")
    where = f"graph {name}"
    bandwidth_in, latency_in = _declared_units(graph.graph.get("units", {}), where)
    builder = NetworkBuilder(name, where)
    for node, attributes in graph.nodes(data=True):
        _refuse_typos(attributes, NODE_ATTRIBUTES, f"{where}: node {shown(node)}")
        add_node(builder, node, attributes.get("kind", "server"), attributes.get("participant"))
    without_latency = 0
    add = builder.link if graph.is_directed() else builder.cable
    for source, target, attributes in graph.edges(data=True):
        element = f"{where}: link {shown(source)} -> {shown(target)}"
        _refuse_typos(attributes, EDGE_ATTRIBUTES, element)
        without_latency += "latency" not in attributes
        try:
            if "bandwidth" not in attributes:
                raise InputError('has no bandwidth; set the edge attribute, e.g. bandwidth="100Gbps"')
            bandwidth = parse_bandwidth(attributes["bandwidth"], bandwidth_in)
            latency = parse_latency(attributes.get("latency", 0), latency_in)
        except InputError as error:
            raise InputError(f"{element}: {error}") from None
        add(_index(builder, source), _index(builder, target), bandwidth, latency)
    note_missing_latency(builder, without_latency, graph.number_of_edges())
    return builder.build()


def to_networkx(topology: Topology) -> "networkx.MultiDiGraph":
    """See ``Topology.to_networkx``."""
    import networkx

    graph = networkx.MultiDiGraph(name=topology.name, units={"bandwidth": "B/s", "latency": "s"})
    for index, node in enumerate(topology.node_ids):
        if topology.is_switch[index]:
            graph.add_node(node, kind="switch")
        else:
            graph.add_node(node, kind="server", participant=bool(topology.is_participant[index]))
    for source, target, bandwidth, latency in zip(
        topology.link_source.tolist(),
        topology.link_target.tolist(),
        topology.bandwidth.tolist(),
        topology.latency.tolist(),
    ):
        ends = topology.node_ids[source], topology.node_ids[target]
        graph.add_edge(*ends, bandwidth=bandwidth, latency=latency)
    return graph


def add_node(builder: NetworkBuilder, node: NodeId, kind: Any, participant: Any) -> None:
    """Add a node of the given kind; ``participant`` None is the default (servers do, switches do not)."""
    element = f"{builder.where}: node {shown(node)}"
    if kind not in KINDS:
        raise InputError(f'{element}: kind {shown(kind)} is unknown; use "server" or "switch"')
    if participant is not None and not isinstance(participant, bool | np.bool_):
        raise InputError(f"{element}: participant {shown(participant)} is not a boolean; use true or false")
    if kind == "server":
        builder.server(node, participant is None or bool(participant))
    elif participant:
        raise InputError(f"{element}: a switch is marked as participant; only servers take part")
    else:
        builder.switch(node)


def note_missing_latency(builder: NetworkBuilder, missing: int, total: int) -> None:
    """Say once that links without latency have none."""
    if missing:
        which = "no link has" if missing == total else f"{missing} of {total} links have no"
        builder.warnings.append(f"{which} latency: taken as 0")


def _declared_units(units: Any, where: str) -> tuple[str, str]:
    """Units of bare numbers: the declared ones, SI by default."""
    if not isinstance(units, Mapping):
        raise InputError(f'{where}: units {shown(units)} is not a mapping; use {{"bandwidth": "Gbps"}}')
    for key in units:
        if key not in EDGE_ATTRIBUTES:
            raise InputError(f"{where}: units: {unknown_key(str(key), EDGE_ATTRIBUTES)}")
    try:
        return bandwidth_unit(units.get("bandwidth", "B/s")), latency_unit(units.get("latency", "s"))
    except InputError as error:
        raise InputError(f"{where}: units: {error}") from None


def _refuse_typos(attributes: Mapping[Any, Any], known: Collection[str], element: str) -> None:
    """Graphs carry foreign attributes (positions, labels); only what is nearly one of ours is refused."""
    for key in attributes:
        if key not in known and nearest(str(key), known, cutoff=0.8):
            raise InputError(f"{element}: {unknown_key(str(key), known)}")


def _index(builder: NetworkBuilder, node: NodeId) -> int:
    index = builder.index(node)
    assert index is not None  # networkx adds the ends of an edge as nodes
    return index
