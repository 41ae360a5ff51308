"""Networks and a policy that the planning tests share."""

import dataclasses
import hashlib

import networkx as nx
import numpy as np
import torch

from gnnsched.collective.schedule import Schedule
from gnnsched.models.policy import Policy
from gnnsched.topology import Topology
from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.generators import bcube, dgx, random_heterogeneous


def untrained_policy() -> Policy:
    """The same one in every process."""
    torch.manual_seed(0)
    return Policy().eval()


def one_way_ring(servers: int = 4) -> Topology:
    """Links in one direction only, each of its own speed."""
    builder = NetworkBuilder("one-way ring", "test")
    nodes = [builder.server(i) for i in range(servers)]
    for i in nodes:
        builder.link(i, (i + 1) % servers, 1e9 * (1 + i), 1e-6)
    return builder.build()


def slow_uplinks() -> Topology:
    """Servers on a switch that send more slowly than they receive."""
    builder = NetworkBuilder("slow uplinks", "test")
    servers = [builder.server(f"s{i}") for i in range(3)]
    switch = builder.switch("w")
    for i, server in enumerate(servers):
        builder.link(server, switch, 1e9 * (1 + i), 1e-6)
        builder.link(switch, server, 4e9, 2e-6)
    return builder.build()


def relays_between() -> Topology:
    """Three participants that only reach each other through servers that do not take part."""
    builder = NetworkBuilder("relays", "test")
    a, b, c = (builder.server(name) for name in "abc")
    r, s = (builder.server(name, participant=False) for name in "rs")
    switch = builder.switch("w")
    for one, other, bandwidth in (
        (a, r, 1e9),
        (r, switch, 2e9),
        (switch, b, 1e9),
        (switch, s, 2e9),
        (s, c, 1e9),
    ):
        builder.cable(one, other, bandwidth, 1e-6)
    return builder.build()


def some_take_part() -> Topology:
    """Three of the six servers of two groups."""
    network = dgx(2, 3)
    chosen = np.zeros(network.num_nodes, bool)
    chosen[network.servers[[0, 2, 4]]] = True
    return changed(network, is_participant=chosen)


def small_networks() -> dict[str, Topology]:
    return {
        network.name: network
        for network in (
            bcube(2, 1),
            dgx(2, 2),
            random_heterogeneous(1, 4, 5),
            one_way_ring(),
            slow_uplinks(),
            relays_between(),
            dataclasses.replace(some_take_part(), name="some take part"),
        )
    }


def changed(topology: Topology, **columns: np.ndarray) -> Topology:
    """The same network with other columns, made the way that all networks are."""
    own = {name: getattr(topology, name) for name in ("bandwidth", "latency", "is_participant")} | columns
    return Topology.from_arrays(
        topology.name,
        topology.node_ids,
        topology.is_switch,
        topology.link_source,
        topology.link_target,
        own["bandwidth"],
        own["latency"],
        own["is_participant"],
    )


def switched(servers: int, bandwidth: str, latency: str = "0ns") -> Topology:
    """Read with its units: servers on one switch."""
    graph = nx.Graph(name="switched")
    graph.add_node("w", kind="switch")
    for i in range(servers):
        graph.add_edge(f"s{i}", "w", bandwidth=bandwidth, latency=latency)
    return Topology.from_networkx(graph)


def digest(schedule: Schedule) -> str:
    """Of everything in a schedule."""
    t = schedule.transfers
    columns = (t.phase, t.chunk, t.source, t.target, t.path_start, t.path_links, t.rate, t.start, t.end)
    parts = [np.ascontiguousarray(column).tobytes() for column in (schedule.roots, *columns)]
    return hashlib.sha256(b"".join(parts)).hexdigest()
