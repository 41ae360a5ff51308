"""What every network must hold before anybody plans on it, checked in one place for all sources."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnsched.topology.errors import InputError, shown
from gnnsched.topology.network import NodeId, Topology, portable_id


def component_labels(topology: Topology, strong: bool = False) -> NDArray[np.int32]:
    """int32 (n,): component of each node, directions ignored, or ``strong``ly connected."""
    from scipy.sparse.csgraph import connected_components

    connection = "strong" if strong else "weak"
    return connected_components(_adjacency(topology), directed=True, connection=connection)[1]


def _adjacency(topology: Topology) -> Any:
    from scipy.sparse import csr_array

    ends = (topology.link_source, topology.link_target)
    size = topology.num_nodes
    return csr_array((np.ones(topology.num_links), ends), shape=(size, size))


def validated(topology: Topology, where: str) -> Topology:
    """``topology`` without self-loops, its warnings completed: the gate for generators and readers.

    Raises InputError, which begins with ``where`` (a file or a generator's name), for: no node, a repeated
    id or one without JSON form, no participant, a switch that takes part, a bandwidth that is not positive
    and finite, a latency that is negative or not finite, a server without a link, and participants that
    cannot all reach each other. What no participant is connected to is kept and named in a warning.
    """
    _check_nodes(topology, where)
    topology = _without_self_loops(topology)
    _check_links(topology, where)
    _check_servers_linked(topology, where)
    warning = _check_connected(topology, where)
    return _with_warnings(topology, (warning,)) if warning else topology


def _with_warnings(topology: Topology, warnings: tuple[str, ...]) -> Topology:
    return Topology.from_arrays(
        topology.name,
        topology.node_ids,
        topology.is_switch,
        topology.link_source,
        topology.link_target,
        topology.bandwidth,
        topology.latency,
        topology.is_participant,
        topology.warnings + warnings,
    )


def _check_nodes(topology: Topology, where: str) -> None:
    if not _is_unicode(topology.name):
        raise InputError(f"{where}: the name {shown(topology.name)} is not valid Unicode; use another name")
    if not topology.num_nodes:
        raise InputError(f"{where}: has no nodes; declare at least one server")
    seen: set[NodeId] = set()
    for node in topology.node_ids:
        _check_id(node, where)
        if node in seen:
            raise InputError(f"{where}: node {shown(node)} is declared twice; give every node its own id")
        seen.add(node)
    switches_taking_part = np.flatnonzero(topology.is_switch & topology.is_participant)
    if len(switches_taking_part):
        node = topology.node_ids[switches_taking_part[0]]
        raise InputError(f"{where}: switch {shown(node)} is marked as participant; only servers take part")
    if not topology.is_participant.any():
        if topology.is_switch.all():
            raise InputError(f'{where}: has no server; give a node "kind": "server"')
        raise InputError(f'{where}: no server takes part; remove "participant": false from at least one')


def _check_id(node: NodeId, where: str) -> None:
    parts = [_portable_id(node, where)]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts.extend(part)
        elif isinstance(part, float) and not math.isfinite(part):
            raise InputError(f"{where}: node {shown(node)}: an id must be finite; use a string or number")
        elif isinstance(part, str) and not _is_unicode(part):
            raise InputError(f"{where}: node {shown(node)}: the id is not valid Unicode; use another id")


def _is_unicode(text: str) -> bool:
    """Whether ``text`` can be written: JSON's \\u escapes can name half a character."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _portable_id(node: NodeId, where: str) -> Any:
    """``portable_id``, with ``where`` in front of its message."""
    try:
        return portable_id(node)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _without_self_loops(topology: Topology) -> Topology:
    loops = topology.link_source == topology.link_target
    count = int(loops.sum())
    if not count:
        return topology
    first = topology.node_ids[topology.link_source[loops][0]]
    links = "1 link from a node to itself was" if count == 1 else f"{count} links from a node to itself were"
    kept = ~loops
    return Topology.from_arrays(
        topology.name,
        topology.node_ids,
        topology.is_switch,
        topology.link_source[kept],
        topology.link_target[kept],
        topology.bandwidth[kept],
        topology.latency[kept],
        topology.is_participant,
        (*topology.warnings, f"{links} dropped (first at {shown(first)})"),
    )


def _check_links(topology: Topology, where: str) -> None:
    bandwidth, latency = topology.bandwidth, topology.latency
    for values, right, attribute, rule in (
        (bandwidth, np.isfinite(bandwidth) & (bandwidth > 0), "bandwidth", "positive and finite"),
        (latency, np.isfinite(latency) & (latency >= 0), "latency", "finite and not negative"),
    ):
        wrong = np.flatnonzero(~right)
        if len(wrong):
            link = wrong[0]
            source = topology.node_ids[topology.link_source[link]]
            target = topology.node_ids[topology.link_target[link]]
            raise InputError(
                f"{where}: link {shown(source)} -> {shown(target)}: {attribute} {values[link]} must be "
                f"{rule}; correct it or leave the link out"
            )


def _check_servers_linked(topology: Topology, where: str) -> None:
    if len(topology.servers) == 1:
        return
    degree = np.bincount(topology.link_source, minlength=topology.num_nodes) + np.bincount(
        topology.link_target, minlength=topology.num_nodes
    )
    bare = topology.servers[degree[topology.servers] == 0]
    if len(bare):
        more = f" (and {len(bare) - 1} more)" if len(bare) > 1 else ""
        raise InputError(
            f"{where}: server {shown(topology.node_ids[bare[0]])}{more} has no link; link it or leave it out"
        )


def _check_connected(topology: Topology, where: str) -> str | None:
    """Raises where participants cannot reach each other; returns a warning about parts without any."""
    labels = component_labels(topology)
    participants = topology.participants
    islands = np.unique(labels[participants])
    if len(islands) > 1:
        sizes = np.bincount(labels)
        named = [
            f"{sizes[island]} node{'s' if sizes[island] > 1 else ''} with "
            f"{shown(topology.node_ids[participants[labels[participants] == island][0]])}"
            for island in islands[:4]
        ]
        more = f", and {len(islands) - 4} more" if len(islands) > 4 else ""
        raise InputError(
            f"{where}: the participants lie in {len(islands)} components without a link between them "
            f"({', '.join(named)}{more}); link them or plan for each alone"
        )
    if len(np.unique(component_labels(topology, strong=True)[participants])) > 1:
        _refuse_one_way(topology, where)
    apart = np.flatnonzero(labels != islands[0])
    if not len(apart):
        return None
    nodes = "1 node is" if len(apart) == 1 else f"{len(apart)} nodes are"
    first = shown(topology.node_ids[apart[0]])
    return f"{nodes} not connected to any participant and stay unused (first {first})"


def _refuse_one_way(topology: Topology, where: str) -> None:
    from scipy.sparse.csgraph import breadth_first_order

    adjacency = _adjacency(topology)
    first = topology.participants[0]
    reached = np.zeros((2, topology.num_nodes), bool)
    for direction, graph in enumerate((adjacency, adjacency.T.tocsr())):
        reached[direction, breadth_first_order(graph, first, return_predecessors=False)] = True
    forward = int(
        reached[0][topology.participants].all()
    )  # 1: the first reaches all, so some do not reach it
    other = topology.participants[~reached[forward][topology.participants]][0]
    pair = [shown(topology.node_ids[node]) for node in (first, other)]
    source, target = reversed(pair) if forward else pair
    back = f", though one leads from {target} to {source}" if reached[1 - forward][other] else ""
    raise InputError(
        f"{where}: no path leads from {source} to {target}{back}; add links in the missing direction"
    )
