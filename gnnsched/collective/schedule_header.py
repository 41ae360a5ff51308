"""What a schedule file says beside its transfers: for which network, message and roots, beside which flows."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.flows import NO_FLOWS, Flows
from gnnsched.collective.node_ids import hashable, id_index
from gnnsched.collective.schedule import Schedule
from gnnsched.topology import InputError, NodeId, Topology

FORMAT = "gnnsched-schedule/1"

Index = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Network(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    fingerprint: str


class InFlight(msgspec.Struct, forbid_unknown_fields=True):
    path: list[Index]
    rate_Bps: float
    since_s: float
    until_s: float | None


class Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: str
    topology: Network
    message_bytes: Annotated[float, msgspec.Meta(gt=0)]
    chunks: Index
    participants: list[Any]
    roots: list[Any]
    links: list[tuple[Any, Any, float, float]]
    planner: dict[str, Any]
    in_flight: list[InFlight] = []
    ready_s: list[tuple[Any, float]] = []
    lost: list[Any] = []


def header_of(schedule: Schedule, ids: Sequence[object]) -> dict[str, Any]:
    """What a file says beside its transfers; ``ids``: the nodes' ids in JSON."""
    topology = schedule.topology
    return {
        "format": FORMAT,
        "topology": {"name": topology.name, "fingerprint": topology.fingerprint},
        "message_bytes": schedule.message_bytes,
        "chunks": schedule.num_chunks,
        "participants": [ids[i] for i in topology.participants.tolist()],
        "roots": [ids[i] for i in schedule.roots.tolist()],
        "links": [
            [ids[s], ids[d], b, x]
            for s, d, b, x in zip(
                topology.link_source.tolist(),
                topology.link_target.tolist(),
                topology.bandwidth.tolist(),
                topology.latency.tolist(),
            )
        ],
        "planner": {"name": "unnamed", **schedule.planner},
        **_surroundings(schedule, ids),
    }


def _surroundings(schedule: Schedule, ids: Sequence[object]) -> dict[str, Any]:
    """Flows and ready times, where there are any."""
    flows, ready = schedule.flows, schedule.ready
    found: dict[str, Any] = {}
    if flows.num_flows:
        links = flows.links.tolist()
        found["in_flight"] = [
            {
                "path": links[a:b],
                "rate_Bps": rate,
                "since_s": since,
                "until_s": until if until < np.inf else None,
            }
            for (a, b), rate, since, until in zip(
                pairwise(flows.start.tolist()),
                flows.rate.tolist(),
                flows.since.tolist(),
                flows.until.tolist(),
            )
        ]
    if ready is not None and ready.any():
        found["ready_s"] = [[ids[node], float(ready[node])] for node in np.flatnonzero(ready).tolist()]
    if schedule.lost:
        found["lost"] = [ids[node] for node in schedule.lost]
    return found


def read_surroundings(
    path: Path, file: Header, topology: Topology, link_map: NDArray[np.int32]
) -> tuple[Flows, NDArray[np.float64] | None]:
    flows, ready = NO_FLOWS, None
    if file.in_flight:
        lengths = [len(flow.path) for flow in file.in_flight]
        links = np.array([link for flow in file.in_flight for link in flow.path], np.int64)
        check_range(path, "in_flight.path", links, len(link_map))
        flows = Flows(
            np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            link_map[links],
            np.array([flow.rate_Bps for flow in file.in_flight]),
            np.array([flow.since_s for flow in file.in_flight]),
            np.array([np.inf if flow.until_s is None else flow.until_s for flow in file.in_flight]),
        )
    if file.ready_s:
        ready = np.zeros(topology.num_nodes)
        ready[indices(path, "ready_s", [node for node, _ in file.ready_s], id_index(topology))] = [
            seconds for _, seconds in file.ready_s
        ]
    return flows, ready


def with_its_participants(path: Path, file: Header, topology: Topology) -> Topology:
    """``topology`` with the file's participants, where it was made for that: a part of the servers, say."""
    if file.topology.fingerprint == topology.fingerprint:
        return topology
    index = id_index(topology)
    try:
        own = topology.with_participants([index[hashable(node)] for node in file.participants])
    except (KeyError, TypeError, InputError):
        return topology
    return own if own.fingerprint == file.topology.fingerprint else topology


def match_header(path: Path, file: Header, topology: Topology) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Roots, and the topology's link for each of the file's, after the checks that tie the two together."""
    if file.topology.fingerprint != topology.fingerprint:
        raise InputError(
            f"{path}: made for topology {file.topology.name!r} ({file.topology.fingerprint}), not for "
            f"{topology.name!r} ({topology.fingerprint}); plan again or name the right topology"
        )
    if not isinstance(file.planner.get("name"), str):
        raise InputError(f"{path}: planner.name is missing; name who made the schedule")
    if not np.isfinite(file.message_bytes):
        raise InputError(f"{path}: message_bytes is {file.message_bytes}; give a finite number")
    if len(file.roots) != file.chunks:
        raise InputError(f"{path}: {file.chunks} chunks and {len(file.roots)} roots; give one root per chunk")
    index = id_index(topology)
    participants = indices(path, "participants", file.participants, index)
    if not np.array_equal(np.sort(participants), np.sort(topology.participants)):
        raise InputError(f"{path}: participants are not those of topology {topology.name!r}; plan again")
    roots = indices(path, "roots", file.roots, index)
    waiting: dict[tuple[int, int, float, float], list[int]] = {}
    ours = zip(
        topology.link_source.tolist(),
        topology.link_target.tolist(),
        topology.bandwidth.tolist(),
        topology.latency.tolist(),
    )
    for link, content in enumerate(ours):
        waiting.setdefault(content, []).append(link)
    for links in waiting.values():
        links.reverse()
    sources = indices(path, "links", [link[0] for link in file.links], index).tolist()
    targets = indices(path, "links", [link[1] for link in file.links], index).tolist()
    result = np.empty(len(file.links), np.int32)
    for i, (_, _, bandwidth, latency) in enumerate(file.links):
        partners = waiting.get((sources[i], targets[i], bandwidth, latency))
        if not partners:
            raise InputError(
                f"{path}: links[{i}]: topology {topology.name!r} has no such link (left); plan again or name "
                "the right topology"
            )
        result[i] = partners.pop()
    return roots, result


def indices(path: Path, where: str, nodes: Sequence[Any], index: dict[NodeId, int]) -> NDArray[np.int32]:
    """Node indices of the ids in ``nodes``; an unknown id is named with its place."""
    try:
        return np.fromiter(map(index.__getitem__, nodes), np.int32, len(nodes))
    except (KeyError, TypeError):
        pass
    result = np.empty(len(nodes), np.int32)
    for i, node in enumerate(nodes):
        try:
            result[i] = index[hashable(node)]
        except (KeyError, TypeError):
            raise InputError(
                f"{path}: {where}[{i}]: the topology has no node {node!r}; use its ids"
            ) from None
    return result


def check_range(path: Path, where: str, column: NDArray[Any], limit: int) -> None:
    odd = np.flatnonzero((column < 0) | (column >= limit))
    if len(odd):
        raise InputError(f"{path}: {where}[{odd[0]}] is {column[odd[0]]}; it must be from 0 to {limit - 1}")
