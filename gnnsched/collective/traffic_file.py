"""What is under way on a network, from JSON files: in-flight flows, and when servers are ready.

In-flight flows (``--in-flight``)::

    {"flows": [
       {"path": ["server-0", "switch-1", "server-3"], "rate": "50Gbps", "bytes_left": "10GiB"},
       {"source": "server-2", "target": "server-5", "bytes_left": "2GiB", "start": "1ms"}
    ]}

* ``path``: the nodes that a flow passes, in order; of parallel cables it takes the one with the most left. Or
  ``source`` and ``target``: the fewest links, through servers only where there is no other way.
* ``rate``: what it takes of each link of its path, "50Gbps" or "6.25GB/s", until its bytes are through; default: all
  that the flows before it in the file leave of its narrowest link.
* ``bytes_left``: "10GiB", or a number of bytes. ``start``: "1ms"; default 0, it is under way already.

Ready times (``--ready``): from when on a server's own contribution can be sent; servers without an entry are ready::

    {"ready": [{"server": "server-3", "at": "2ms"}]}

Ids are those of the topology, with their type. Unknown keys are refused.
"""

import os
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from gnnsched.collective.flows import Flows, check_flows
from gnnsched.collective.node_ids import hashable, id_index
from gnnsched.topology import InputError, NodeId, Topology
from gnnsched.topology.files import read_bytes
from gnnsched.topology.units import parse_bandwidth, parse_latency, parse_size

# Passing through a server costs a flow as much as so many links.
_THROUGH_SERVER = 1000.0

_Quantity = str | int | float
_File = TypeVar("_File")


class _Flow(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    bytes_left: Annotated[str | int, Meta(description="bytes that are not through yet")]
    path: list[Any] | UnsetType = UNSET
    source: Any = UNSET
    target: Any = UNSET
    rate: _Quantity | UnsetType = UNSET
    start: _Quantity | UnsetType = UNSET


class _FlowFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    flows: list[_Flow]


class _Ready(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    server: Any
    at: _Quantity


class _ReadyFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    ready: list[_Ready]


def load_flows(path: str | os.PathLike[str], topology: Topology) -> Flows:
    """The in-flight flows in the file ``path``, in its order.

    Raises InputError, one line that names the file and the element, for what is no such file, and for flows that
    ``topology`` cannot carry.
    """
    place = Path(path)
    index = id_index(topology)
    left = topology.bandwidth.copy()
    start, links, rates, since, until = [0], [], [], [], []
    for i, flow in enumerate(_read(place, _FlowFile).flows):
        where = f"{place}: flows[{i}]"
        way = _way(where, flow, topology, index, left)
        spare = float(left[way].min())
        try:
            size = parse_size(flow.bytes_left)
            begin = 0.0 if flow.start is UNSET else parse_latency(flow.start)
            rate = spare if flow.rate is UNSET else parse_bandwidth(flow.rate)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if not rate > 0.0:
            raise InputError(
                f"{where}: the flows before it leave nothing of its path; give all of them rates"
            )
        # Flows that end before others begin do not share a link: that is checked when all are known.
        left[way] = np.maximum(left[way] - rate, 0.0)
        links += way.tolist()
        start.append(len(links))
        rates.append(rate)
        since.append(begin)
        until.append(begin + size / rate)
    flows = Flows(
        np.array(start, np.int64),
        np.array(links, np.int32),
        np.array(rates, float),
        np.array(since, float),
        np.array(until, float),
    )
    try:
        check_flows(topology, flows)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    return flows


def load_ready(path: str | os.PathLike[str], topology: Topology) -> NDArray[np.float64]:
    """Seconds (num_nodes,) from when on each server's own contribution is there. Raises InputError as above."""
    place = Path(path)
    index = id_index(topology)
    ready = np.zeros(topology.num_nodes)
    seen: set[int] = set()
    for i, entry in enumerate(_read(place, _ReadyFile).ready):
        where = f"{place}: ready[{i}]"
        node = _node(where, "server", entry.server, index)
        if not topology.is_participant[node]:
            raise InputError(f"{where}: {entry.server!r} contributes nothing; name a server that takes part")
        if node in seen:
            raise InputError(f"{where}: {entry.server!r} occurs twice; give each server one entry")
        seen.add(node)
        try:
            ready[node] = parse_latency(entry.at)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
    return ready


def _read(path: Path, kind: type[_File]) -> _File:
    content = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}; see gnnsched schedule --help") from None


def _node(where: str, key: str, node: Any, index: dict[NodeId, int]) -> int:
    try:
        return index[hashable(node)]
    except (KeyError, TypeError):
        raise InputError(f"{where}.{key}: the topology has no node {node!r}; use its ids") from None


def _way(
    where: str, flow: _Flow, topology: Topology, index: dict[NodeId, int], left: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Links of the flow's path."""
    ends = [name for name in ("source", "target") if getattr(flow, name) is not UNSET]
    if (flow.path is UNSET) == (len(ends) < 2) or (flow.path is not UNSET and ends):
        raise InputError(f"{where}: give a path, or a source and a target")
    if flow.path is UNSET:
        nodes = _shortest(
            where,
            _node(where, "source", flow.source, index),
            _node(where, "target", flow.target, index),
            topology,
        )
    else:
        nodes = [_node(where, f"path[{k}]", node, index) for k, node in enumerate(flow.path)]
    if len(nodes) < 2:
        raise InputError(f"{where}: it goes nowhere; give a path of at least two nodes")
    way = []
    for s, d in pairwise(nodes):
        between = np.flatnonzero((topology.link_source == s) & (topology.link_target == d))
        if not len(between):
            names = " to ".join(repr(topology.node_ids[node]) for node in (s, d))
            raise InputError(f"{where}.path: there is no link from {names}; follow the topology's links")
        way.append(between[np.argmax(left[between])])
    return np.array(way, np.int32)


def _shortest(where: str, source: int, target: int, topology: Topology) -> list[int]:
    cost = np.where(topology.is_switch[topology.link_target], 1.0, _THROUGH_SERVER)
    # csr_array adds up what parallel cables cost: one of them is enough.
    ends = np.stack([topology.link_source, topology.link_target], 1)
    pairs, first = np.unique(ends, axis=0, return_index=True)
    shape = (topology.num_nodes, topology.num_nodes)
    graph = csr_array((cost[first], (pairs[:, 0], pairs[:, 1])), shape=shape)
    _, before = dijkstra(graph, indices=source, return_predecessors=True)
    nodes = [target]
    while nodes[-1] != source:
        if before[nodes[-1]] < 0:
            names = " to ".join(repr(topology.node_ids[node]) for node in (source, target))
            raise InputError(f"{where}: there is no way from {names}; follow the topology's links")
        nodes.append(int(before[nodes[-1]]))
    return nodes[::-1]
