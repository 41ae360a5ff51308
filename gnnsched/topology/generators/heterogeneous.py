"""Small random connected networks with mixed link speeds: what a policy is trained on besides BCube."""

import numpy as np

from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.errors import InputError
from gnnsched.topology.generators.checks import DEFAULT_BANDWIDTH, DEFAULT_LATENCY, at_least
from gnnsched.topology.network import Topology

_FACTORS = (0.5, 1.0, 2.0, 4.0, 10.0)
_FAST_FACTORS = (2.0, 4.0, 8.0, 12.0)


def random_heterogeneous(
    rng: np.random.Generator | int,
    min_servers: int = 3,
    max_servers: int = 16,
    bandwidth: float = DEFAULT_BANDWIDTH,
    latency: float = DEFAULT_LATENCY,
) -> Topology:
    """A random connected network of full-duplex cables with ``min_servers`` to ``max_servers`` servers.

    One of three kinds, equally likely: **direct** (a random tree of servers and some more cables),
    **switched** (a random tree of switches and some more cables, each server on one or two of them) and
    **grouped** (groups of servers behind a fast switch or in a full mesh, each server also on a slow fabric
    of one or more switches). Link speeds are ``bandwidth`` times a factor, in half of the networks one per
    class of links, otherwise one per cable; latencies are ``latency`` times 1, 2 or 4, one per class. Ids:
    "server-<i>", "switch-<i>".
    """
    at_least("random_heterogeneous", 1, min_servers=min_servers)
    if max_servers < min_servers:
        raise InputError(
            f"random_heterogeneous: max_servers {max_servers} is below min_servers {min_servers}; swap them"
        )
    draw = _Draw(np.random.default_rng(rng), bandwidth, latency)
    servers = int(draw.rng.integers(min_servers, max_servers + 1))
    kind = ("direct", "switched", "grouped")[draw.rng.integers(3)]
    builder = NetworkBuilder(f"random_{kind}_{servers}", "random_heterogeneous")
    nodes = [builder.server(f"server-{i}") for i in range(servers)]
    {"direct": _direct, "switched": _switched, "grouped": _grouped}[kind](builder, nodes, draw)
    return builder.build()


class _Draw:
    """The random choices that all kinds share."""

    def __init__(self, rng: np.random.Generator, bandwidth: float, latency: float) -> None:
        self.rng = rng
        self._bandwidth = bandwidth
        self._latency = latency
        self._per_class = bool(rng.integers(2))
        self._classes: dict[str, tuple[float, float]] = {}

    def below(self, limit: int) -> int:
        return int(self.rng.integers(limit))

    def cable(
        self,
        builder: NetworkBuilder,
        one: int,
        other: int,
        link_class: str,
        factors: tuple[float, ...] = _FACTORS,
    ) -> None:
        """Add a cable of the class ``link_class``."""
        if link_class not in self._classes:
            latency = self._latency * (1, 2, 4)[self.below(3)]
            self._classes[link_class] = factors[self.below(len(factors))], latency
        factor, latency = self._classes[link_class]
        if not self._per_class:
            factor = factors[self.below(len(factors))]
        builder.cable(one, other, self._bandwidth * factor, latency)

    def connected(self, builder: NetworkBuilder, nodes: list[int], link_class: str) -> None:
        """Link ``nodes`` by a random tree and up to as many further cables, which may be parallel ones."""
        for i in range(1, len(nodes)):
            self.cable(builder, nodes[i], nodes[self.below(i)], link_class)
        if len(nodes) > 1:
            for _ in range(self.below(len(nodes) + 1)):
                one, other = self.rng.choice(len(nodes), 2, replace=False).tolist()
                self.cable(builder, nodes[one], nodes[other], link_class)


def _direct(builder: NetworkBuilder, servers: list[int], draw: _Draw) -> None:
    draw.connected(builder, servers, "server")


def _switched(builder: NetworkBuilder, servers: list[int], draw: _Draw) -> None:
    switches = [builder.switch(f"switch-{i}") for i in range(1 + draw.below(max(1, len(servers) // 2)))]
    draw.connected(builder, switches, "switch")
    nics = 1 + draw.below(min(2, len(switches)))
    for server in servers:
        for place in draw.rng.choice(len(switches), nics, replace=False).tolist():
            draw.cable(builder, server, switches[place], "server")


def _grouped(builder: NetworkBuilder, servers: list[int], draw: _Draw) -> None:
    size = 2 + draw.below(max(1, len(servers) // 2))
    groups = [servers[first : first + size] for first in range(0, len(servers), size)]
    fabric = [builder.switch(f"switch-{i}") for i in range(1 + draw.below(size))]
    linked_fabric = len(fabric) > 1 and bool(draw.below(2))
    if linked_fabric:
        draw.connected(builder, fabric, "fabric")
    mesh = bool(draw.below(2))
    for number, group in enumerate(groups):
        if mesh:
            for i, one in enumerate(group):
                for other in group[:i]:
                    draw.cable(builder, one, other, "group", _FAST_FACTORS)
        elif len(group) > 1:
            switch = builder.switch(f"switch-{len(fabric) + number}")
            for server in group:
                draw.cable(builder, server, switch, "group", _FAST_FACTORS)
        for i, server in enumerate(group):
            draw.cable(builder, server, fabric[i % len(fabric)], "nic", (0.5, 1.0))
