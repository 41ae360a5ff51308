"""Networks in which switches forward: Jellyfish, fat-tree, DGX-like nodes, leaf-spine, star and dumbbell.

All take bandwidths in bytes/s per link direction and ``latency`` in seconds per link; InputError for
arguments that make no network.
"""

from collections.abc import Sequence

import numpy as np

from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.errors import InputError
from gnnsched.topology.generators.checks import DEFAULT_BANDWIDTH, DEFAULT_LATENCY, at_least, not_too_many
from gnnsched.topology.network import Topology

_MOST_DRAWS = 100


def jellyfish(
    switches: int,
    network_ports: int,
    servers_per_switch: int,
    rng: np.random.Generator | int,
    bandwidth: float = DEFAULT_BANDWIDTH,
    latency: float = DEFAULT_LATENCY,
    network_bandwidth: float | None = None,
) -> Topology:
    """A random regular graph of switches with servers on each (Singla et al., NSDI 2012).

    ``rng`` draws the first seed, or is it; a draw that is not connected is followed by the next seed, at
    most 100 times. The seed that was used stands in ``warnings`` and makes the same network again.
    ``bandwidth`` is that of the NICs, ``network_bandwidth`` that of the links between switches (default:
    the same). Ids: "server-<i>" on "switch-<i // servers_per_switch>".
    """
    at_least("jellyfish", 1, switches=switches, servers_per_switch=servers_per_switch)
    at_least("jellyfish", 0, network_ports=network_ports)
    not_too_many("jellyfish", switches * servers_per_switch)
    seed = int(rng.integers(2**31)) if isinstance(rng, np.random.Generator) else int(rng)
    edges, seed = _random_regular_edges(switches, network_ports, seed)
    builder = NetworkBuilder(f"jellyfish_{switches}x{network_ports}x{servers_per_switch}", "jellyfish")
    servers = [builder.server(f"server-{i}") for i in range(switches * servers_per_switch)]
    nodes = [builder.switch(f"switch-{i}") for i in range(switches)]
    for i, server in enumerate(servers):
        builder.cable(server, nodes[i // servers_per_switch], bandwidth, latency)
    for one, other in edges:
        speed = bandwidth if network_bandwidth is None else network_bandwidth
        builder.cable(nodes[one], nodes[other], speed, latency)
    builder.warnings.append(f"random regular graph drawn with seed {seed}")
    return builder.build()


def _random_regular_edges(switches: int, degree: int, seed: int) -> tuple[list[tuple[int, int]], int]:
    """Sorted edges of a connected random regular graph, and the seed that gave it."""
    import networkx

    if degree >= switches:
        raise InputError(
            f"jellyfish: {_ports(degree)} on {switches} switches; a switch has at most "
            f"{switches - 1} others to link to, so give network_ports below switches"
        )
    if switches * degree % 2:
        raise InputError(
            f"jellyfish: {_ports(degree)} on {switches} switches; switches * network_ports "
            "must be even, because a cable has two ends"
        )
    for attempt in range(seed, seed + _MOST_DRAWS):
        # dense graphs are drawn as the complement of a sparse one: pairing ports at random rarely ends there
        dense = degree > (switches - 1) // 2
        drawn = switches - 1 - degree if dense else degree
        graph = networkx.random_regular_graph(drawn, switches, seed=attempt)
        if dense:
            graph = networkx.complement(graph)
        if networkx.is_connected(graph):
            return sorted((min(edge), max(edge)) for edge in graph.edges), attempt
    raise InputError(
        f"jellyfish: none of {_MOST_DRAWS} draws from seed {seed} is connected; give at least 3 network_ports"
    )


def _ports(degree: int) -> str:
    return f"{degree} network port{'' if degree == 1 else 's'}"


def fat_tree(
    k: int,
    bandwidth: float = DEFAULT_BANDWIDTH,
    latency: float = DEFAULT_LATENCY,
    edge_bandwidth: float | None = None,
    core_bandwidth: float | None = None,
) -> Topology:
    """The k-ary fat-tree of Al-Fares et al., SIGCOMM 2008, k even: k^3/4 servers, 5k^2/4 switches of k ports.

    ``bandwidth`` is that of the NICs, ``edge_bandwidth`` that between edge and aggregation switches,
    ``core_bandwidth`` that between aggregation and core switches (default: as the NICs).
    Ids: "server-<i>", "edge-<pod>-<i>", "aggregation-<pod>-<i>", "core-<i>".
    """
    at_least("fat_tree", 2, k=k)
    if k % 2:
        raise InputError(f"fat_tree: k is {k}; give an even number, half of the ports lead up and half down")
    half = k // 2
    not_too_many("fat_tree", k * half * half)
    builder = NetworkBuilder(f"fat_tree_{k}", "fat_tree")
    servers = [builder.server(f"server-{i}") for i in range(k * half * half)]
    edges = [[builder.switch(f"edge-{pod}-{i}") for i in range(half)] for pod in range(k)]
    aggregations = [[builder.switch(f"aggregation-{pod}-{i}") for i in range(half)] for pod in range(k)]
    cores = [builder.switch(f"core-{i}") for i in range(half * half)]
    for i, server in enumerate(servers):
        pod, place = divmod(i, half * half)
        builder.cable(server, edges[pod][place // half], bandwidth, latency)
    for pod in range(k):
        for edge in edges[pod]:
            for aggregation in aggregations[pod]:
                speed = bandwidth if edge_bandwidth is None else edge_bandwidth
                builder.cable(edge, aggregation, speed, latency)
        for i, aggregation in enumerate(aggregations[pod]):
            for core in cores[i * half : (i + 1) * half]:
                speed = bandwidth if core_bandwidth is None else core_bandwidth
                builder.cable(aggregation, core, speed, latency)
    return builder.build()


def dgx(
    nodes: int,
    gpus: int,
    nvswitch_bandwidth: float = 300e9,
    rail_bandwidth: float = 25e9,
    latency: float = DEFAULT_LATENCY,
) -> Topology:
    """``nodes`` machines of ``gpus`` GPUs: each on its machine's NVSwitch and, by its NIC, on a rail switch.

    Rail switch i joins GPU i of every machine. Bandwidths per GPU and direction, by default 2,400 and 200
    Gbit/s. Ids: "gpu-<node>-<i>" (servers), "nvswitch-<node>", "rail-<i>".
    """
    at_least("dgx", 1, nodes=nodes, gpus=gpus)
    not_too_many("dgx", nodes * gpus)
    builder = NetworkBuilder(f"dgx_{nodes}x{gpus}", "dgx")
    servers = [[builder.server(f"gpu-{node}-{i}") for i in range(gpus)] for node in range(nodes)]
    for node, members in enumerate(servers):
        nvswitch = builder.switch(f"nvswitch-{node}")
        for gpu in members:
            builder.cable(gpu, nvswitch, nvswitch_bandwidth, latency)
    for i in range(gpus):
        rail = builder.switch(f"rail-{i}")
        for members in servers:
            builder.cable(members[i], rail, rail_bandwidth, latency)
    return builder.build()


def leaf_spine(
    leaves: int,
    servers_per_leaf: int,
    spines: int = 1,
    oversubscription: float = 1.0,
    bandwidth: float = DEFAULT_BANDWIDTH,
    latency: float = DEFAULT_LATENCY,
    uplink_bandwidth: float | None = None,
) -> Topology:
    """Leaf switches with servers, each leaf linked to every spine switch.

    ``oversubscription`` is the servers' bandwidth of a leaf over that of its uplinks, 1 being non-blocking;
    ``uplink_bandwidth``, of one uplink, overrides it. ``bandwidth`` is that of the NICs.
    Ids: "server-<i>" on "leaf-<i // servers_per_leaf>", "spine-<i>".
    """
    at_least("leaf_spine", 1, leaves=leaves, servers_per_leaf=servers_per_leaf, spines=spines)
    not_too_many("leaf_spine", leaves * servers_per_leaf)
    if not oversubscription > 0:
        raise InputError(
            f"leaf_spine: oversubscription is {oversubscription}; give a positive number, 1 for none"
        )
    if uplink_bandwidth is None:
        uplink_bandwidth = servers_per_leaf * bandwidth / (spines * oversubscription)
    builder = NetworkBuilder(f"leaf_spine_{leaves}x{servers_per_leaf}", "leaf_spine")
    servers = [builder.server(f"server-{i}") for i in range(leaves * servers_per_leaf)]
    leaf_switches = [builder.switch(f"leaf-{i}") for i in range(leaves)]
    spine_switches = [builder.switch(f"spine-{i}") for i in range(spines)]
    for i, server in enumerate(servers):
        builder.cable(server, leaf_switches[i // servers_per_leaf], bandwidth, latency)
    for leaf in leaf_switches:
        for spine in spine_switches:
            builder.cable(leaf, spine, uplink_bandwidth, latency)
    return builder.build()


def star(bandwidths: Sequence[float], latency: float = DEFAULT_LATENCY) -> Topology:
    """One switch and a server per entry of ``bandwidths``, its NIC's. Ids: "server-<i>", "switch-0"."""
    if not len(bandwidths):
        raise InputError("star: no bandwidths; give one per server")
    builder = NetworkBuilder(f"star_{len(bandwidths)}", "star")
    servers = [builder.server(f"server-{i}") for i in range(len(bandwidths))]
    switch = builder.switch("switch-0")
    for server, bandwidth in zip(servers, bandwidths):
        builder.cable(server, switch, bandwidth, latency)
    return builder.build()


def dumbbell(
    servers_per_side: int,
    middle_bandwidth: float = DEFAULT_BANDWIDTH / 2,
    bandwidth: float = DEFAULT_BANDWIDTH,
    latency: float = DEFAULT_LATENCY,
) -> Topology:
    """Two switches with ``servers_per_side`` servers each and one link of ``middle_bandwidth`` between them.

    Ids: "server-<i>" (the first half on "switch-0", the second on "switch-1").
    """
    at_least("dumbbell", 1, servers_per_side=servers_per_side)
    not_too_many("dumbbell", 2 * servers_per_side)
    builder = NetworkBuilder(f"dumbbell_{servers_per_side}_{servers_per_side}", "dumbbell")
    servers = [builder.server(f"server-{i}") for i in range(2 * servers_per_side)]
    sides = [builder.switch(f"switch-{side}") for side in range(2)]
    for i, server in enumerate(servers):
        builder.cable(server, sides[i // servers_per_side], bandwidth, latency)
    builder.cable(sides[0], sides[1], middle_bandwidth, latency)
    return builder.build()
