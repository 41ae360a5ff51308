"""Networks in which servers relay: BCube, DCell, torus, hypercube and hub.

All take ``bandwidth`` in bytes/s per link direction and ``latency`` in seconds per link; InputError for
arguments that make no network.
"""

import itertools

from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.errors import InputError
from gnnsched.topology.generators.checks import DEFAULT_BANDWIDTH, DEFAULT_LATENCY, at_least, not_too_many
from gnnsched.topology.network import Topology


def bcube(
    ports: int,
    levels: int,
    bandwidth: float = DEFAULT_BANDWIDTH,
    latency: float = DEFAULT_LATENCY,
    level_bandwidths: tuple[float, ...] | None = None,
) -> Topology:
    """BCube(ports, levels) of Guo et al., SIGCOMM 2009; levels count from 0, so BCube(n, 0) is one switch.

    n^(k+1) servers with k+1 NICs each and k+1 levels of n^k switches with n ports. Server i has the address
    digits of i in base n; the servers on a level-l switch differ in digit l only. ``level_bandwidths``
    gives one bandwidth per level in place of ``bandwidth``. Ids: "server-<i>", "switch-<level>-<index>".
    """
    at_least("bcube", 2, ports=ports)
    at_least("bcube", 0, levels=levels)
    _not_too_many_powers("bcube", ports, levels + 1)
    if level_bandwidths is not None and len(level_bandwidths) != levels + 1:
        raise InputError(
            f"bcube: {len(level_bandwidths)} level_bandwidths for {levels + 1} levels; give one each"
        )
    builder = NetworkBuilder(f"bcube_{ports}_{levels}", "bcube")
    servers = [builder.server(f"server-{i}") for i in range(ports ** (levels + 1))]
    for level in range(levels + 1):
        speed = bandwidth if level_bandwidths is None else level_bandwidths[level]
        stride = ports**level
        for index in range(ports**levels):
            switch = builder.switch(f"switch-{level}-{index}")
            # the index is the address without digit `level`
            high, low = divmod(index, stride)
            for digit in range(ports):
                builder.cable(servers[(high * ports + digit) * stride + low], switch, speed, latency)
    return builder.build()


def dcell(
    ports: int,
    levels: int,
    bandwidth: float = DEFAULT_BANDWIDTH,
    latency: float = DEFAULT_LATENCY,
    server_bandwidth: float | None = None,
) -> Topology:
    """DCell(ports, levels) of Guo et al., SIGCOMM 2008; levels count from 0, so DCell(n, 0) is one switch.

    A DCell_l is g_l = t_(l-1) + 1 DCell_(l-1)s of t_(l-1) servers, fully linked: for i < j, server j-1 of
    the i-th is linked to server i of the j-th (the procedure BuildDCells of the paper). ``bandwidth`` is that
    of the links to the switches, ``server_bandwidth`` that of the links between servers (default: the
    same). Ids are the paper's addresses, "server-<a_k>-...-<a_0>", and "switch-<a_k>-...-<a_1>" ("switch-0"
    in a DCell_0).
    """
    at_least("dcell", 2, ports=ports)
    at_least("dcell", 0, levels=levels)
    sizes = [ports]  # t_l
    for _ in range(levels):
        sizes.append(sizes[-1] * (sizes[-1] + 1))
        not_too_many("dcell", sizes[-1])
    builder = NetworkBuilder(f"dcell_{ports}_{levels}", "dcell")
    digits = [range(size + 1) for size in reversed(sizes[:-1])]
    servers = [
        builder.server("server-" + "-".join(map(str, address)))
        for address in itertools.product(*digits, range(ports))
    ]
    for cell, prefix in enumerate(itertools.product(*digits)):
        switch = builder.switch("switch-" + ("-".join(map(str, prefix)) or "0"))
        for server in servers[cell * ports : (cell + 1) * ports]:
            builder.cable(server, switch, bandwidth, latency)
    speed = bandwidth if server_bandwidth is None else server_bandwidth
    for level in range(1, levels + 1):
        inner = sizes[level - 1]
        for first in range(0, len(servers), sizes[level]):
            for i, j in itertools.combinations(range(inner + 1), 2):
                one, other = servers[first + i * inner + j - 1], servers[first + j * inner + i]
                builder.cable(one, other, speed, latency)
    return builder.build()


def torus(*dims: int, bandwidth: float = DEFAULT_BANDWIDTH, latency: float = DEFAULT_LATENCY) -> Topology:
    """Servers on a wrapped grid of the given sizes, each linked straight to its neighbours.

    A dimension of size 2 has one cable per pair (both neighbours are the same server), one of size 1 has
    none. Ids: "server-<x>-<y>-...".
    """
    if not dims:
        raise InputError("torus: no dimensions; give at least one size, as in 4 4")
    servers_wanted = 1
    for position, size in enumerate(dims):
        at_least("torus", 1, **{f"dimension {position}": size})
        servers_wanted *= size
        not_too_many("torus", servers_wanted)
    builder = NetworkBuilder("torus_" + "x".join(map(str, dims)), "torus")
    positions = list(itertools.product(*(range(size) for size in dims)))
    servers = {place: builder.server("server-" + "-".join(map(str, place))) for place in positions}
    for place in positions:
        for axis, size in enumerate(dims):
            if place[axis] + 1 < size or size > 2:
                step = (place[axis] + 1) % size
                neighbour = (*place[:axis], step, *place[axis + 1 :])
                builder.cable(servers[place], servers[neighbour], bandwidth, latency)
    return builder.build()


def hypercube(dim: int, bandwidth: float = DEFAULT_BANDWIDTH, latency: float = DEFAULT_LATENCY) -> Topology:
    """2^dim servers, linked straight where their numbers differ in one bit. Ids: "server-<i>"."""
    at_least("hypercube", 0, dim=dim)
    _not_too_many_powers("hypercube", 2, dim)
    builder = NetworkBuilder(f"hypercube_{dim}", "hypercube")
    servers = [builder.server(f"server-{i}") for i in range(2**dim)]
    for server in servers:
        for bit in range(dim):
            if not server >> bit & 1:
                builder.cable(server, server | 1 << bit, bandwidth, latency)
    return builder.build()


def hub(leaves: int, bandwidth: float = DEFAULT_BANDWIDTH, latency: float = DEFAULT_LATENCY) -> Topology:
    """One server in the middle with a straight link to each of ``leaves`` others. Ids: "hub", "leaf-<i>"."""
    at_least("hub", 0, leaves=leaves)
    not_too_many("hub", leaves)
    builder = NetworkBuilder(f"hub_{leaves}", "hub")
    middle = builder.server("hub")
    for i in range(leaves):
        builder.cable(middle, builder.server(f"leaf-{i}"), bandwidth, latency)
    return builder.build()


def _not_too_many_powers(family: str, base: int, exponent: int) -> None:
    servers = 1
    for _ in range(exponent):
        servers *= base
        not_too_many(family, servers)
