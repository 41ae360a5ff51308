"""The package's own network file: networkx node-link JSON with units.

The contract::

    {
      "directed": false,                  false (default): an edge is a full-duplex cable, i.e. two links;
                                          true: an edge is one link from source to target
      "multigraph": true,                 true (default): repeated edges are parallel cables;
                                          false: an edge that occurs twice is refused
      "graph": {
        "name": "leaf_spine",             default: the file's name without its ending
        "units": {"bandwidth": "Gbps", "latency": "us"},    the units of bare numbers, no default
        "nodes": 3, "links": 2            optional: numbers of entries in the lists below, which must match
      },
      "nodes": [
        {"id": "server-0", "kind": "server"},
        {"id": "server-1", "kind": "server", "participant": false},
        {"id": "switch-0", "kind": "switch"}
      ],
      "edges": [                          or "links", as networkx wrote before 3.6; never both
        {"source": "server-0", "target": "switch-0", "bandwidth": "100Gbps", "latency": "500ns"},
        {"source": "server-1", "target": "switch-0", "bandwidth": 100, "latency": 0.5}
      ]
    }

* Ids are strings, numbers, booleans or lists of these (a list is a tuple inside). Their type is kept (``1``
  and ``"1"`` are two nodes) and so is their order. An edge's ends must be declared under "nodes".
* ``kind`` is "server" (holds data, reduces) or "switch" (forwards only). Missing: server, with a warning.
* ``participant``: a server with false only relays; default true. Never true on a switch.
* ``bandwidth`` (required, per direction) is text with a unit, as in "100Gbps", "100Gb/s", "100Gbit/s"
  (small b: bits), "12.5GB/s" (capital B: bytes), or a number in the unit declared under "units". Positive
  and finite.
* ``latency``: text ("500ns", "1.5us") or a number in the declared unit. Missing: 0, with a warning.
* ``key``: networkx's number of a parallel edge; must not repeat between the same ends, otherwise without
  meaning.
* Unknown keys, repeated keys, NaN and Infinity are refused. Self-loops are dropped with a warning.
  UTF-8, UTF-16 and UTF-32 with or without byte order mark, any line ends.
* Every two participants must reach each other, every server needs a link unless it is the only one
  (``gnnsched.topology.validate``).

Files are written with "kind" on every node, units on every bandwidth and latency, one entry per line, the
same bytes for the same network. A network of full-duplex cables is written with one undirected edge per
cable, any other one with directed edges. ``networkx.node_link_graph(json.load(file), edges="edges")`` reads
them too.
"""

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.errors import InputError, shown, unknown_key
from gnnsched.topology.files import read_bytes, write_atomically
from gnnsched.topology.network import NodeId, Topology, portable_id
from gnnsched.topology.networkx_graph import add_node, note_missing_latency
from gnnsched.topology.units import (
    bandwidth_unit,
    exact_bandwidth,
    exact_latency,
    latency_unit,
    parse_bandwidth,
    parse_latency,
)

IdPart = str | int | float | bool
Id = IdPart | list[Any]
Quantity = str | int | float


class NodeEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    id: Annotated[Id, Meta(description="unique; a list stands for a tuple")]
    kind: Annotated[Literal["server", "switch"] | UnsetType, Meta(description="default: server")] = UNSET
    participant: Annotated[bool | UnsetType, Meta(description="false: a server that only relays")] = UNSET


class EdgeEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    source: Annotated[Id, Meta(description="id of a declared node")]
    target: Annotated[Id, Meta(description="id of a declared node")]
    bandwidth: Annotated[
        Quantity, Meta(description='per direction: "100Gbps", "12.5GB/s", or a number in the declared unit')
    ]
    latency: Annotated[
        Quantity | UnsetType,
        Meta(description='"500ns", "1.5us", or a number in the declared unit; default: 0'),
    ] = UNSET
    key: Annotated[str | int | UnsetType, Meta(description="number of a parallel edge")] = UNSET


class Units(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    bandwidth: Annotated[str | None, Meta(description="unit of bare bandwidths, e.g. Gbps")] = None
    latency: Annotated[str | None, Meta(description="unit of bare latencies, e.g. us")] = None


class GraphEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: str = ""
    units: Units = Units()
    nodes: Annotated[int | UnsetType, Meta(description="number of entries under nodes")] = UNSET
    links: Annotated[int | UnsetType, Meta(description="number of entries under edges or links")] = UNSET


class NetworkFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A network: node-link JSON as networkx writes it, with units."""

    nodes: list[NodeEntry]
    edges: Annotated[list[EdgeEntry] | UnsetType, Meta(description="or links, never both")] = UNSET
    links: Annotated[list[EdgeEntry] | UnsetType, Meta(description="the older name of edges")] = UNSET
    directed: Annotated[bool, Meta(description="false: an edge is a full-duplex cable")] = False
    multigraph: Annotated[bool, Meta(description="false: an edge that occurs twice is refused")] = True
    graph: GraphEntry = GraphEntry()


def topology_schema() -> dict[str, Any]:
    """JSON Schema of the format; what a schema cannot say is in this module's docstring."""
    schema = msgspec.json.schema(NetworkFile)
    body = schema["$defs"]["NetworkFile"]
    body["oneOf"] = [{"required": ["edges"]}, {"required": ["links"]}]
    return schema


def load_topology(path: str | os.PathLike[str]) -> Topology:
    """Read and check a network file; InputError with one line for whatever cannot be used."""
    return decode_topology(read_bytes(path), str(path), Path(path).stem)


def dump_topology(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Write a network file, in full or not at all."""
    content = encode_topology(topology)
    write_atomically(path, lambda stream: stream.write(content))


def decode_topology(content: bytes, where: str, name: str) -> Topology:
    """The network in ``content``; ``where`` begins the messages, ``name`` is the default name."""
    file = _parsed(content, where)
    if (file.edges is UNSET) == (file.links is UNSET):
        raise InputError(f'{where}: needs exactly one of "edges" and "links"; keep one list of edges')
    spelling, edges = ("links", file.links) if isinstance(file.links, list) else ("edges", file.edges)
    assert isinstance(edges, list)
    for what, declared, entries in (
        ("nodes", file.graph.nodes, file.nodes),
        ("links", file.graph.links, edges),
    ):
        if declared is not UNSET and declared != len(entries):
            raise InputError(
                f"{where}: graph.{what} declares {declared} {what} but the file lists {len(entries)}; "
                "restore the missing entries or correct the number"
            )
    builder = NetworkBuilder(file.graph.name or name, where)
    without_kind = sum(node.kind is UNSET for node in file.nodes)
    for node in file.nodes:
        kind = "server" if node.kind is UNSET else node.kind
        add_node(
            builder, _node_id(node.id, where), kind, None if node.participant is UNSET else node.participant
        )
    if without_kind:
        which = "no node has" if without_kind == len(file.nodes) else f"{without_kind} nodes have no"
        builder.warnings.append(f"{which} kind: taken as servers")
    _add_edges(builder, file, edges, spelling)
    return builder.build()


def encode_topology(topology: Topology) -> bytes:
    """The file's content, the same bytes for the same network."""
    nodes: list[dict[str, Any]] = []
    ids = [portable_id(node) for node in topology.node_ids]
    for index, node in enumerate(ids):
        entry = {"id": node, "kind": "switch" if topology.is_switch[index] else "server"}
        if not topology.is_switch[index] and not topology.is_participant[index]:
            entry["participant"] = False
        nodes.append(entry)
    opposite = topology.opposite
    kept = np.arange(topology.num_links)
    if opposite is not None:
        kept = kept[kept < opposite]
        # all cables of a pair the same way round, or they would look like two directions
        turned = topology.link_source[kept] > topology.link_target[kept]
        kept = np.where(turned, opposite[kept], kept)
    edges = [
        {
            "source": ids[topology.link_source[link]],
            "target": ids[topology.link_target[link]],
            "bandwidth": exact_bandwidth(topology.bandwidth[link]),
            "latency": exact_latency(topology.latency[link]),
        }
        for link in kept
    ]
    head = {"directed": opposite is None, "multigraph": True, "graph": {"name": topology.name}}
    lists = [f" {_text(key)}: {_text(value)}" for key, value in head.items()]
    for key, entries in (("nodes", nodes), ("edges", edges)):
        lines = ",\n".join(f"  {_text(entry)}" for entry in entries)
        lists.append(f' "{key}": [\n{lines}\n ]' if lines else f' "{key}": []')
    return ("{\n" + ",\n".join(lists) + "\n}\n").encode()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _add_edges(builder: NetworkBuilder, file: NetworkFile, edges: list[EdgeEntry], spelling: str) -> None:
    where = builder.where
    bandwidth_in, latency_in = _declared_units(file.graph.units, where)
    add = builder.link if file.directed else builder.cable
    seen: dict[tuple[int, int], set[str | int]] = {}
    orientations: set[tuple[int, int]] = set()
    both_ways = 0
    for position, edge in enumerate(edges):
        source, target = _node_id(edge.source, where), _node_id(edge.target, where)
        element = f"{where}: {spelling}[{position}] ({shown(source)} -> {shown(target)})"
        ends = _declared(builder, source, element), _declared(builder, target, element)
        pair = ends if file.directed else (min(ends), max(ends))
        if pair in seen and not file.multigraph:
            raise InputError(
                f'{element}: repeats an edge; set "multigraph": true for parallel cables '
                'or "directed": true for two directions'
            )
        keys = seen.setdefault(pair, set())
        if edge.key in keys:
            raise InputError(f"{element}: key {shown(edge.key)} repeats between these ends; number the edges")
        if not isinstance(edge.key, UnsetType):
            keys.add(edge.key)
        both_ways += not file.directed and ends[0] != ends[1] and ends[::-1] in orientations
        orientations.add(ends)
        try:
            bandwidth = parse_bandwidth(edge.bandwidth, bandwidth_in)
            latency = 0.0 if edge.latency is UNSET else parse_latency(edge.latency, latency_in)
        except InputError as error:
            raise InputError(f"{element}: {error}") from None
        add(*ends, bandwidth, latency)
    note_missing_latency(builder, sum(edge.latency is UNSET for edge in edges), len(edges))
    if both_ways:
        builder.warnings.append(
            f"{both_ways} edges of an undirected file are also listed the other way round: "
            "counted as further cables"
        )


def _declared_units(units: Units, where: str) -> tuple[str | None, str | None]:
    try:
        return (
            None if units.bandwidth is None else bandwidth_unit(units.bandwidth),
            None if units.latency is None else latency_unit(units.latency),
        )
    except InputError as error:
        raise InputError(f"{where}: graph.units: {error}") from None


def _declared(builder: NetworkBuilder, node: NodeId, element: str) -> int:
    index = builder.index(node)
    if index is None:
        raise InputError(f"{element}: node {shown(node)} is not declared; add it to nodes")
    return index


def _node_id(node: Any, where: str) -> NodeId:
    if isinstance(node, list):
        return tuple(_node_id(part, where) for part in node)
    if node is None or isinstance(node, dict):
        raise InputError(f"{where}: {shown(node)} is no part of a node id; use strings, numbers and lists")
    return node


def _parsed(content: bytes, where: str) -> NetworkFile:
    try:
        data = json.loads(content, object_pairs_hook=_object)
        return msgspec.convert(data, NetworkFile)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: not JSON: {error.msg} (line {error.lineno}, column {error.colno}); correct it there "
            "or write the network as node-link JSON"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{where}: not a text file; write the network as JSON") from None
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {_explained(str(error))}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply; write the network as node-link JSON") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise InputError(f"{where}: a number has thousands of digits; shorten it") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a repeated key would hide what stands under the first."""
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"key {shown(repeated)} stands twice in the object {shown(result)}; keep one")
    return result


_STRUCTS = (
    ("$.graph.units", Units),
    ("$.graph", GraphEntry),
    ("$.nodes[", NodeEntry),
    ("$.edges[", EdgeEntry),
    ("$.links[", EdgeEntry),
    ("", NetworkFile),
)


def _explained(message: str) -> str:
    """msgspec's message with the element in front and a cure behind."""
    fault, _, path = message.partition(" - at `")
    path = path.rstrip("`")
    element = f"{path.removeprefix('$.')}: " if path not in ("", "$") else ""
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", fault, re.DOTALL)
    if unknown:
        struct = next(struct for prefix, struct in _STRUCTS if path.startswith(prefix))
        return element + unknown_key(unknown[1], struct.__struct_fields__)
    fault = " ".join(fault.split())
    return f"{element}{fault[:1].lower()}{fault[1:]}; `gnnsched topology schema` prints what belongs there"
