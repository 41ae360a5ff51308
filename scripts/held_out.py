"""Skewed networks of families that no policy is trained on, drawn from a seed.

Racks in rings, uneven trees, mixed link speeds, nodes with fewer NICs than GPUs, dragonflies with slow global links:
8 to 32 servers each. ``held_out_networks(count, seed)`` takes the families in turn.
"""

import numpy as np

from gnnsched.topology import Topology
from gnnsched.topology.builder import NetworkBuilder

BANDWIDTH = 50e9
LATENCY = 500e-9


def _whole(rng: np.random.Generator, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``, both included."""
    return int(rng.integers(low, high + 1))


def rack_ring(rng: np.random.Generator, name: str) -> Topology:
    """Racks of servers behind a switch each, the switches in a ring that is slower than the racks together."""
    racks, servers = _whole(rng, 3, 6), _whole(rng, 2, 5)
    uplink = BANDWIDTH * float(rng.choice([0.5, 1.0, 2.0]))
    builder = NetworkBuilder(name, name)
    switches = [builder.switch(f"rack-{r}") for r in range(racks)]
    for r, switch in enumerate(switches):
        for i in range(servers):
            builder.cable(builder.server(f"server-{r}-{i}"), switch, BANDWIDTH, LATENCY)
    for r in range(racks):
        builder.cable(switches[r], switches[(r + 1) % racks], uplink, LATENCY)
    return builder.build()


def uneven_tree(rng: np.random.Generator, name: str) -> Topology:
    """A tree of switches whose leaves carry different numbers of servers over uplinks of different speeds."""
    leaves = _whole(rng, 3, 6)
    builder = NetworkBuilder(name, name)
    core = builder.switch("core")
    middles = [builder.switch(f"middle-{i}") for i in range(_whole(rng, 1, 2))]
    for middle in middles:
        builder.cable(middle, core, BANDWIDTH * float(rng.choice([1.0, 2.0, 4.0])), LATENCY)
    for leaf in range(leaves):
        switch = builder.switch(f"leaf-{leaf}")
        above = [core, *middles][leaf % (1 + len(middles))]
        builder.cable(switch, above, BANDWIDTH * float(rng.choice([0.5, 1.0, 2.0])), LATENCY)
        for i in range(_whole(rng, 1, 6)):
            builder.cable(builder.server(f"server-{leaf}-{i}"), switch, BANDWIDTH, LATENCY)
    return builder.build()


def mixed_speeds(rng: np.random.Generator, name: str) -> Topology:
    """A random graph of switches, half of whose links and NICs are slower than the others."""
    switches, servers = _whole(rng, 5, 10), _whole(rng, 2, 3)
    builder = NetworkBuilder(name, name)
    nodes = [builder.switch(f"switch-{i}") for i in range(switches)]
    for i in range(switches * servers):
        speed = float(rng.choice([0.5, 1.0]))
        builder.cable(builder.server(f"server-{i}"), nodes[i // servers], BANDWIDTH * speed, LATENCY)
    linked = {(i, (i + 1) % switches) for i in range(switches)}
    for _ in range(switches):
        one, other = sorted(rng.choice(switches, 2, replace=False).tolist())
        if (other, one) not in linked:
            linked.add((one, other))
    for one, other in sorted(linked):
        builder.cable(nodes[one], nodes[other], BANDWIDTH * float(rng.choice([0.25, 1.0, 2.0])), LATENCY)
    return builder.build()


def few_nics(rng: np.random.Generator, name: str) -> Topology:
    """Nodes of GPUs around an NVSwitch, where two or four GPUs share a NIC behind a PCIe switch."""
    nodes, nics, sharing = _whole(rng, 2, 4), _whole(rng, 1, 2), int(rng.choice([2, 4]))
    fast = BANDWIDTH * float(rng.choice([4.0, 8.0]))
    builder = NetworkBuilder(name, name)
    rails = [builder.switch(f"rail-{n}") for n in range(nics)]
    for node in range(nodes):
        inside = builder.switch(f"nvswitch-{node}")
        for n in range(nics):
            pcie = builder.switch(f"pcie-{node}-{n}")
            builder.cable(pcie, rails[n], BANDWIDTH, LATENCY)
            for g in range(sharing):
                gpu = builder.server(f"gpu-{node}-{n * sharing + g}")
                builder.cable(gpu, inside, fast, LATENCY)
                builder.cable(gpu, pcie, BANDWIDTH, LATENCY)
    if nics > 1:
        builder.cable(rails[0], rails[1], BANDWIDTH, LATENCY)
    return builder.build()


def dragonfly(rng: np.random.Generator, name: str) -> Topology:
    """Fully linked groups of routers, one slow global link between each two groups."""
    groups, routers, servers = _whole(rng, 3, 5), 2, _whole(rng, 1, 3)
    slow = BANDWIDTH * float(rng.choice([0.25, 0.5]))
    builder = NetworkBuilder(name, name)
    nodes = [[builder.switch(f"router-{g}-{r}") for r in range(routers)] for g in range(groups)]
    for g in range(groups):
        for r in range(routers):
            for i in range(servers):
                builder.cable(builder.server(f"server-{g}-{r}-{i}"), nodes[g][r], BANDWIDTH, LATENCY)
        builder.cable(nodes[g][0], nodes[g][1], BANDWIDTH, LATENCY)
        for other in range(g):
            builder.cable(nodes[g][other % routers], nodes[other][g % routers], slow, LATENCY)
    return builder.build()


FAMILIES = (rack_ring, uneven_tree, mixed_speeds, few_nics, dragonfly)


def held_out_networks(count: int, seed: int) -> list[Topology]:
    """``count`` networks, the families in turn; network i depends on (seed, i) alone."""
    result = []
    for i in range(count):
        family = FAMILIES[i % len(FAMILIES)]
        result.append(family(np.random.default_rng([seed, i]), f"{family.__name__}_{i}"))
    return result
