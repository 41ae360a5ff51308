"""Networks and instances that the policy's tests share."""

import dataclasses

import numpy as np
import torch

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Instance
from gnnsched.collective.flows import NO_FLOWS, Flows
from gnnsched.models.policy import Policy
from gnnsched.topology import Topology
from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.generators import bcube, hub, random_heterogeneous, star, torus

MESSAGE = float(2**24)
OUTPUTS = ("path", "chunk", "chunk_progress", "attention")


def stirred_policy(seed: int = 0) -> Policy:
    """An untrained policy with all weights moved, so that every input reaches the scores with some force."""
    torch.manual_seed(seed)
    policy = Policy()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return policy.eval()


def read_only(column: np.ndarray) -> np.ndarray:
    """As the columns of all networks are; the kernels need not be compiled for others."""
    column.setflags(write=False)
    return column


def one_flow(topology: Topology, link: int, share: float, until: float) -> Flows:
    """A flow over a single link."""
    return Flows(
        np.array([0, 1]),
        np.array([link], np.int32),
        np.array([share * topology.bandwidth[link]]),
        np.array([0.0]),
        np.array([until]),
    )


def with_relay_at_the_end() -> Topology:
    """Three servers on a switch and, last of all nodes, a server that only relays and ends no path."""
    builder = NetworkBuilder("relay last", "test")
    servers = [builder.server(f"s{i}") for i in range(3)]
    switch = builder.switch("w")
    for server in servers:
        builder.cable(server, switch, 1e9, 1e-6)
    builder.cable(builder.server("relay", participant=False), switch, 1e9, 1e-6)
    return builder.build()


def with_isolated_switch(topology: Topology) -> Topology:
    """The same network and, last, a switch without links."""
    return dataclasses.replace(
        topology,
        node_ids=(*topology.node_ids, "alone"),
        is_switch=read_only(np.append(topology.is_switch, True)),
        is_participant=read_only(np.append(topology.is_participant, False)),
    )


def one_way_ring(servers: int = 4) -> Topology:
    """Links in one direction only, each of its own speed."""
    builder = NetworkBuilder("one-way ring", "test")
    nodes = [builder.server(i) for i in range(servers)]
    for i in nodes:
        builder.link(i, (i + 1) % servers, 1e9 * (1 + i), 1e-6)
    return builder.build()


def mixed_instances() -> list[Instance]:
    """Of all kinds: without switches, without flows, with both, a lone last node, a last node that ends no path."""
    torus_network, star_network = torus(3, 3), star([1e9, 2e9, 1e9, 4e9])
    return [
        Instance(torus_network, MESSAGE, 2),
        Instance(star_network, MESSAGE, 1, flows=one_flow(star_network, 2, 0.5, 1e-3)),
        Instance(with_isolated_switch(bcube(2, 1)), MESSAGE, 4),
        Instance(torus_network, MESSAGE, 1, flows=one_flow(torus_network, 5, 1.0, 2e-3)),
        Instance(with_relay_at_the_end(), MESSAGE, 2),
        Instance(one_way_ring(), MESSAGE, 1),
        Instance(hub(1), MESSAGE, 1),
        Instance(random_heterogeneous(3, 9, 9), MESSAGE, 1, flows=NO_FLOWS),
    ]


def assert_scores_equal(one: Scores, other: Scores, tolerance: float = 2e-5) -> None:
    for name, mine, theirs in zip(Scores._fields, one, other):
        assert mine.shape == theirs.shape, name
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=name)
