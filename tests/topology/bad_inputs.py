"""Network files that must be refused in one line: name of the case -> (content, what the line must name)."""

import json
from typing import Any

SERVERS = [{"id": name, "kind": "server"} for name in ("a", "b", "c")]
EDGE = {"source": "a", "target": "b", "bandwidth": "100Gbps", "latency": "500ns"}
RING = [EDGE, {**EDGE, "source": "b", "target": "c"}, {**EDGE, "source": "c", "target": "a"}]


def network(**changes: Any) -> bytes:
    """A right file of three servers in a ring with some keys replaced."""
    return json.dumps({"nodes": SERVERS, "edges": RING, **changes}).encode()


def with_edge(**changes: Any) -> bytes:
    """The ring with changes to its second edge; a key of value ... is left out."""
    edge = {key: value for key, value in {**RING[1], **changes}.items() if value is not ...}
    return network(edges=[RING[0], edge, RING[2]])


def with_node(**changes: Any) -> bytes:
    """The ring with changes to its second node."""
    return network(nodes=[SERVERS[0], {**SERVERS[1], **changes}, SERVERS[2]])


def without(text: bytes, old: bytes, new: bytes) -> bytes:
    assert old in text
    return text.replace(old, new)


BAD_FILES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    # T1: parallel cables in a file that says it has none
    "repeated edge": (
        network(edges=[*RING, EDGE], multigraph=False),
        ("edges[3] ('a' -> 'b')", "multigraph"),
    ),
    "turned edge": (
        network(edges=[*RING, {**EDGE, "source": "b", "target": "a"}], multigraph=False),
        ("edges[3] ('b' -> 'a')", '"directed": true'),
    ),
    "repeated key": (network(edges=[{**edge, "key": 0} for edge in [*RING, EDGE]]), ("edges[3]", "key 0")),
    # T3, T20
    "islands": (
        network(
            nodes=[*SERVERS, {"id": "d"}, {"id": "e"}], edges=[*RING, {**EDGE, "source": "d", "target": "e"}]
        ),
        ("2 components", "3 nodes with 'a'", "2 nodes with 'd'"),
    ),
    # T4: nothing but a self-loop is no link at all
    "only self-loops": (
        network(edges=[RING[0], {**EDGE, "source": "c", "target": "c"}]),
        ("'c' has no link",),
    ),
    # T5
    "no bandwidth": (with_edge(bandwidth=...), ("edges[1]", "`bandwidth`")),
    "empty bandwidth": (with_edge(bandwidth=""), ("edges[1] ('b' -> 'c')", "bandwidth ''")),
    "unknown bandwidth": (with_edge(bandwidth="Unknown"), ("edges[1] ('b' -> 'c')", "bandwidth 'Unknown'")),
    "null bandwidth": (with_edge(bandwidth=None), ("edges[1].bandwidth", "null")),
    "zero bandwidth": (with_edge(bandwidth="0Gbps"), ("edges[1] ('b' -> 'c')", "bandwidth '0Gbps'")),
    "negative bandwidth": (with_edge(bandwidth="-1Gbps"), ("edges[1] ('b' -> 'c')", "'-1Gbps'")),
    "NaN bandwidth": (
        with_edge(bandwidth=float("nan")),
        ("edges[1] ('b' -> 'c')", "bandwidth nan is not finite"),
    ),
    "infinite bandwidth": (without(with_edge(bandwidth=7), b": 7", b": 1e999"), ("edges[1]", "not finite")),
    "boolean bandwidth": (with_edge(bandwidth=True), ("edges[1].bandwidth", "bool")),
    "list as bandwidth": (with_edge(bandwidth=["100Gbps"]), ("edges[1].bandwidth", "array")),
    "negative latency": (with_edge(latency="-1ns"), ("edges[1] ('b' -> 'c')", "latency '-1ns'")),
    "latency without sense": (with_edge(latency="soon"), ("edges[1] ('b' -> 'c')", "latency 'soon'")),
    # T6
    "server without link": (network(nodes=[*SERVERS, {"id": "gpu-9"}]), ("server 'gpu-9' has no link",)),
    "relay without link": (
        network(nodes=[*SERVERS, {"id": "r", "participant": False}]),
        ("server 'r' has no",),
    ),
    # T7
    "undeclared target": (with_edge(target="x"), ("edges[1] ('b' -> 'x')", "node 'x' is not declared")),
    "undeclared type": (
        network(nodes=[{"id": 1}, {"id": 2}], edges=[{**EDGE, "source": 1, "target": "2"}]),
        ("'2'",),
    ),
    # T8
    "one-way link": (
        network(edges=[RING[0], {**RING[0], "source": "b", "target": "a"}, RING[1]], directed=True),
        ("no path leads from 'c' to 'a'", "from 'a' to 'c'"),
    ),
    # T9
    "no nodes": (network(nodes=[], edges=[]), ("no nodes",)),
    "switches only": (network(nodes=[{**node, "kind": "switch"} for node in SERVERS]), ("no server",)),
    "no participant": (
        network(nodes=[{**node, "participant": False} for node in SERVERS]),
        ("no server takes part", "participant"),
    ),
    # T10
    "bare bandwidth": (with_edge(bandwidth=100), ("edges[1] ('b' -> 'c')", "100 has no unit", "100Gbps")),
    "bare text": (with_edge(bandwidth="100"), ("edges[1]", "'100' has no unit")),
    "bare latency": (with_edge(latency=1), ("edges[1]", "latency 1 has no unit")),
    "foreign unit": (with_edge(bandwidth="100GT/s"), ("edges[1]", "unknown unit 'GT/s'")),
    "foreign declared unit": (network(graph={"units": {"bandwidth": "GT/s"}}), ("graph.units", "'GT/s'")),
    "foreign declared latency": (network(graph={"units": {"latency": "min"}}), ("graph.units", "'min'")),
    # T12
    "duplicate id": (network(nodes=[*SERVERS, SERVERS[1]]), ("node 'b' is declared twice",)),
    "null id": (with_node(id=None), ("nodes[1].id", "null")),
    "NaN as id": (network(nodes=[{"id": float("nan")}], edges=[]), ("node nan", "finite")),
    "object in id": (network(nodes=[{"id": [{}]}], edges=[]), ("{} is no part of a node id",)),
    "half a character": (network(nodes=[{"id": "\ud800"}], edges=[]), ("node '\\ud800'", "Unicode")),
    "half a character in the name": (network(graph={"name": "\ud800"}), ("name '\\ud800'", "Unicode")),
    "line end in id": (with_edge(target="x\ny"), ("'x\\ny'",)),
    # T13
    "both spellings": (network(links=RING), ('"edges" and "links"',)),
    "neither spelling": (json.dumps({"nodes": SERVERS}).encode(), ('"edges" and "links"',)),
    # T16
    "typo in edge": (with_edge(bandwith="1Gbps"), ("edges[1]", "'bandwith'", 'did you mean "bandwidth"')),
    "other word in edge": (with_edge(capacity=5), ("edges[1]", "'capacity'", 'did you mean "bandwidth"')),
    "typo in node": (with_node(knid="switch"), ("nodes[1]", "'knid'", 'did you mean "kind"')),
    "typo at top": (network(edgess=[]), ("'edgess'", 'did you mean "edges"')),
    "typo in graph": (network(graph={"unit": {}}), ("graph: ", "'unit'", 'did you mean "units"')),
    "typo in units": (
        network(graph={"units": {"Bandwidth": "Gbps"}}),
        ("graph.units", 'did you mean "bandwidth"'),
    ),
    "foreign key": (with_node(zzz=1), ("nodes[1]", "'zzz'", "known keys: id, kind, participant")),
    "unknown kind": (with_node(kind="router"), ("nodes[1].kind", "router")),
    "participant as text": (with_node(participant="false"), ("nodes[1].participant", "bool")),
    "switch takes part": (with_node(kind="switch", participant=True), ("node 'b'", "only servers take part")),
    "key twice": (
        without(network(), b'{"nodes"', b'{"edges": [], "nodes"'),
        ("key 'edges' stands twice", "{'edges'"),
    ),
    # T17
    "empty": (b"", ("empty",)),
    "blank": (b" \r\n", ("empty",)),
    "byte order mark only": (b"\xef\xbb\xbf", ("not JSON",)),
    "truncated": (network()[:-30], ("not JSON", "(line 1, column")),
    "YAML": (b"nodes:\n- id: a\n", ("not JSON", "(line 1, column 1)")),
    "XML": (b"<system version='1'/>", ("not JSON",)),
    "not text": (bytes(range(128, 256)), ("not a text file",)),
    "zip": (b"PK\x03\x04\x14\x00\x00\x00\x08\x00", ("not JSON",)),
    "a list": (b"[1, 2]", ("expected `object`, got `array`",)),
    "a number": (b"7", ("expected `object`, got `int`",)),
    "deep": (b"[" * 100_000, ("nested too deeply",)),
    "long number": (without(with_edge(bandwidth=7), b": 7", b": 1" + b"0" * 5000), ("thousands of digits",)),
    # T18
    "fewer nodes": (network(graph={"nodes": 4}), ("declares 4 nodes", "lists 3")),
    "more links": (network(graph={"links": 2}), ("declares 2 links", "lists 3")),
}
