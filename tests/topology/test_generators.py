import itertools
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators import (
    DEFAULT_BANDWIDTH,
    GENERATORS,
    bcube,
    dcell,
    dgx,
    dumbbell,
    fat_tree,
    hub,
    hypercube,
    jellyfish,
    leaf_spine,
    random_heterogeneous,
    star,
    torus,
)

SMALL = {
    "bcube": {"ports": 3, "levels": 1},
    "dcell": {"ports": 3, "levels": 1},
    "jellyfish": {"switches": 6, "network_ports": 3, "servers_per_switch": 2, "rng": 0},
    "fat_tree": {"k": 4},
    "hypercube": {"dim": 3},
    "dgx": {"nodes": 2, "gpus": 3},
    "leaf_spine": {"leaves": 3, "servers_per_leaf": 2, "spines": 2},
    "hub": {"leaves": 3},
    "dumbbell": {"servers_per_side": 3},
    "random_heterogeneous": {"rng": 0},
}


def switches_of(topology: Topology) -> int:
    return int(topology.is_switch.sum())


def degrees(topology: Topology) -> tuple[Counter, Counter]:
    """How many servers and how many switches have each number of outgoing links."""
    out = np.bincount(topology.link_source, minlength=topology.num_nodes)
    return Counter(out[~topology.is_switch].tolist()), Counter(out[topology.is_switch].tolist())


def cables(topology: Topology) -> set[frozenset]:
    ids = topology.node_ids
    return {frozenset((ids[s], ids[d])) for s, d in zip(topology.link_source, topology.link_target)}


def diameter(topology: Topology) -> int:
    return nx.diameter(nx.Graph(topology.to_networkx()))


@pytest.mark.parametrize(("n", "k"), [(2, 0), (2, 1), (3, 1), (4, 1), (2, 3), (3, 2)])
def test_bcube_counts_and_degrees(n: int, k: int) -> None:
    topology = bcube(n, k)
    assert len(topology.servers) == n ** (k + 1)
    assert switches_of(topology) == (k + 1) * n**k
    assert degrees(topology) == (Counter({k + 1: n ** (k + 1)}), Counter({n: (k + 1) * n**k}))
    assert diameter(topology) == 2 * (k + 1)  # the paper's diameter k+1 counts servers, not switches


def test_bcube_servers_share_a_level_l_switch_if_they_differ_in_digit_l_only() -> None:
    topology = bcube(3, 2)
    members: dict[str, list[int]] = {}
    for server, switch in (sorted(cable) for cable in cables(topology)):
        members.setdefault(switch, []).append(int(server.removeprefix("server-")))
    for switch, servers in members.items():
        level = int(switch.split("-")[1])
        addresses = {tuple(i // 3**digit % 3 for digit in range(3)) for i in servers}
        assert len(addresses) == 3
        assert len({address[:level] + address[level + 1 :] for address in addresses}) == 1


def test_bcube_level_bandwidths() -> None:
    topology = bcube(2, 1, level_bandwidths=(1.0, 7.0))
    graph = topology.to_networkx()
    assert {graph[s][d][0]["bandwidth"] for s, d in graph.edges() if "switch-1" in f"{s}{d}"} == {7.0}
    with pytest.raises(InputError, match="1 level_bandwidths for 2 levels"):
        bcube(2, 1, level_bandwidths=(1.0,))


@pytest.mark.parametrize(
    ("n", "k", "servers"), [(2, 0, 2), (2, 1, 6), (4, 1, 20), (6, 1, 42), (2, 2, 42), (3, 2, 156)]
)
def test_dcell_counts_and_degrees(n: int, k: int, servers: int) -> None:
    topology = dcell(n, k)
    assert len(topology.servers) == servers
    assert switches_of(topology) == servers // n
    assert degrees(topology) == (Counter({k + 1: servers}), Counter({n: servers // n}))


def build_dcells(prefix: tuple[int, ...], n: int, level: int) -> set[frozenset]:
    """The paper's recursive procedure, links between servers named by their full addresses."""
    if level == 0:
        return set()
    t = n
    for _ in range(level - 1):
        t *= t + 1
    links = set().union(*(build_dcells((*prefix, i), n, level - 1) for i in range(t + 1)))
    for i in range(t):
        for j in range(i + 1, t + 1):
            n1 = (*prefix, i, *address_of(j - 1, n, level - 1))
            n2 = (*prefix, j, *address_of(i, n, level - 1))
            links.add(frozenset((n1, n2)))
    return links


def address_of(uid: int, n: int, level: int) -> tuple[int, ...]:
    """[a_level, ..., a_0] of the uid-th server of a DCell_level: uid = a_0 + sum of a_j * t_(j-1)."""
    sizes = [n]
    for _ in range(level):
        sizes.append(sizes[-1] * (sizes[-1] + 1))
    digits = []
    for j in range(level, 0, -1):
        digit, uid = divmod(uid, sizes[j - 1])
        digits.append(digit)
    return (*digits, uid)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (4, 1), (2, 2), (3, 2)])
def test_dcell_links_follow_the_papers_procedure(n: int, k: int) -> None:
    between_servers = {
        frozenset(tuple(map(int, server.split("-")[1:])) for server in cable)
        for cable in cables(dcell(n, k))
        if all(node.startswith("server") for node in cable)
    }
    assert between_servers == build_dcells((), n, k)


def test_dcell_switches_join_the_servers_of_one_dcell_0() -> None:
    for cable in cables(dcell(2, 2)):
        server, switch = sorted(cable)
        if switch.startswith("switch"):
            assert server.split("-")[1:-1] == switch.split("-")[1:]


def test_dcell_server_bandwidth() -> None:
    topology = dcell(2, 1, bandwidth=1.0, server_bandwidth=3.0)
    direct = ~topology.is_switch[topology.link_source] & ~topology.is_switch[topology.link_target]
    assert set(topology.bandwidth[direct]) == {3.0}
    assert set(topology.bandwidth[~direct]) == {1.0}


@pytest.mark.parametrize(
    ("switches", "ports", "servers"),
    [(10, 3, 2), (12, 2, 1), (20, 4, 2), (6, 5, 1), (9, 6, 3), (1, 0, 4), (2, 1, 1)],
)
def test_jellyfish_is_a_connected_regular_graph(switches: int, ports: int, servers: int) -> None:
    topology = jellyfish(switches, ports, servers, 0)
    assert degrees(topology) == (Counter({1: switches * servers}), Counter({ports + servers: switches}))
    assert len(cables(topology)) * 2 == topology.num_links  # no parallel cables
    for i in range(switches * servers):
        assert frozenset((f"server-{i}", f"switch-{i // servers}")) in cables(topology)


def test_jellyfish_reports_the_seed_that_makes_it_again() -> None:
    # degree 2 on 12 switches: more than half of the draws fall apart, so seeds are skipped
    used = set()
    for seed in range(10):
        topology = jellyfish(12, 2, 1, np.random.default_rng(seed))
        reported = int(topology.warnings[0].rsplit(" ", 1)[1])
        assert jellyfish(12, 2, 1, reported).fingerprint == topology.fingerprint
        used.add(topology.fingerprint)
    assert len(used) == 10
    assert any(f"seed {seed}" not in jellyfish(12, 2, 1, seed).warnings[0] for seed in range(10))


def test_jellyfish_bandwidth_classes() -> None:
    topology = jellyfish(4, 3, 1, 0, bandwidth=1.0, network_bandwidth=5.0)
    inner = topology.is_switch[topology.link_source] & topology.is_switch[topology.link_target]
    assert set(topology.bandwidth[inner]) == {5.0}
    assert set(topology.bandwidth[~inner]) == {1.0}


@pytest.mark.parametrize("k", [2, 4, 6])
def test_fat_tree_counts_and_degrees(k: int) -> None:
    topology = fat_tree(k)
    assert len(topology.servers) == k**3 // 4
    assert switches_of(topology) == 5 * k**2 // 4
    assert degrees(topology) == (Counter({1: k**3 // 4}), Counter({k: 5 * k**2 // 4}))
    assert diameter(topology) == 6
    for core in (node for node in topology.node_ids if str(node).startswith("core")):
        pods = [node.split("-")[1] for node in topology.to_networkx().successors(core)]
        assert sorted(pods) == [str(pod) for pod in range(k)]


def test_fat_tree_bandwidth_classes() -> None:
    topology = fat_tree(4, bandwidth=1.0, edge_bandwidth=2.0, core_bandwidth=3.0)
    assert Counter(topology.bandwidth.tolist()) == {1.0: 32, 2.0: 32, 3.0: 32}


@pytest.mark.parametrize(
    ("dims", "per_server"),
    [((4, 4), 4), ((3, 5), 4), ((2, 2), 2), ((2, 4), 3), ((3, 3, 3), 6), ((5,), 2), ((1, 3), 2), ((2,), 1)],
)
def test_torus_degrees(dims: tuple[int, ...], per_server: int) -> None:
    topology = torus(*dims)
    servers = int(np.prod(dims))
    assert degrees(topology) == (Counter({per_server: servers}), Counter())
    assert len(cables(topology)) == topology.num_links // 2
    assert diameter(topology) == sum(size // 2 for size in dims)


def test_torus_is_networkx_grid_graph() -> None:
    ours = nx.Graph(torus(4, 5, 3).to_networkx())
    assert nx.is_isomorphic(ours, nx.grid_graph((3, 5, 4), periodic=True))


def test_one_server_torus() -> None:
    assert torus(1).num_links == 0


@pytest.mark.parametrize("dim", [0, 1, 3, 5])
def test_hypercube(dim: int) -> None:
    topology = hypercube(dim)
    assert len(topology.servers) == 2**dim
    assert topology.num_links == dim * 2**dim
    for source, target in zip(topology.link_source.tolist(), topology.link_target.tolist()):
        assert (source ^ target).bit_count() == 1


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 4), (2, 8), (4, 8)])
def test_dgx(nodes: int, gpus: int) -> None:
    topology = dgx(nodes, gpus)
    assert len(topology.servers) == nodes * gpus
    assert switches_of(topology) == nodes + gpus
    graph = topology.to_networkx()
    for node, gpu in itertools.product(range(nodes), range(gpus)):
        links = {peer: edges[0]["bandwidth"] for peer, edges in graph[f"gpu-{node}-{gpu}"].items()}
        assert links == {f"nvswitch-{node}": 300e9, f"rail-{gpu}": 25e9}


def test_leaf_spine_oversubscription() -> None:
    topology = leaf_spine(4, 8, 2, oversubscription=2)
    assert switches_of(topology) == 6
    assert set(topology.bandwidth) == {DEFAULT_BANDWIDTH, 8 * DEFAULT_BANDWIDTH / 2 / 2}
    assert leaf_spine(4, 4, uplink_bandwidth=1.0).bandwidth.min() == 1.0
    assert (
        leaf_spine(4, 4, oversubscription=4).fingerprint
        == leaf_spine(4, 4, uplink_bandwidth=12.5e9).fingerprint
    )


def test_star_hub_and_dumbbell() -> None:
    uneven = star([10.0, 10.0, 1.0])
    assert uneven.bandwidth.tolist() == [10.0, 10.0, 10.0, 10.0, 1.0, 1.0]
    assert degrees(hub(4)) == (Counter({1: 4, 4: 1}), Counter())
    both = dumbbell(8)
    assert degrees(both) == (Counter({1: 16}), Counter({9: 2}))
    assert sorted(Counter(both.bandwidth.tolist()).items()) == [(6.25e9, 2), (12.5e9, 32)]


@pytest.mark.parametrize("family", SMALL)
def test_every_generator_takes_latency_and_is_full_duplex(family: str) -> None:
    topology = GENERATORS[family](**SMALL[family], latency=0.25)
    assert set(topology.latency) <= {0.25, 0.5, 1.0}
    assert topology.opposite is not None
    assert topology.is_participant.tolist() == (~topology.is_switch).tolist()


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: bcube(1, 1), "bcube: ports is 1; give a whole number of at least 2"),
        (lambda: bcube(4, -1), "levels is -1"),
        (lambda: bcube(48, 9), "more than 1000000 servers"),
        (lambda: dcell(2, 1.5), "levels is 1.5"),
        (lambda: dcell(10, 40), "more than 1000000 servers"),
        (lambda: jellyfish(5, 3, 1, 0), r"5 switches; switches \* network_ports must be even"),
        (lambda: jellyfish(4, 4, 1, 0), "a switch has at most 3 others"),
        (lambda: jellyfish(4, 1, 1, 0), "none of 100 draws from seed 0 is connected; give at least 3"),
        (lambda: fat_tree(3), "k is 3; give an even number"),
        (lambda: torus(), "no dimensions"),
        (lambda: torus(4, 0), "dimension 1 is 0"),
        (lambda: hypercube(70), "more than 1000000 servers"),
        (lambda: star([]), "no bandwidths"),
        (
            lambda: star([1.0, float("nan")]),
            "star: link 'server-1' -> 'switch-0': bandwidth nan must be positive",
        ),
        (lambda: hub(3, bandwidth=0), "hub: link 'hub' -> 'leaf-0': bandwidth 0.0"),
        (lambda: dumbbell(2, latency=-1), "latency -1.0 must be finite and not negative"),
        (lambda: leaf_spine(2, 2, oversubscription=0), "oversubscription is 0; give a positive"),
        (lambda: random_heterogeneous(0, 5, 4), "max_servers 4 is below"),
    ],
)
def test_impossible_arguments_are_refused_with_the_rule(make, rule: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=rule):
        make()


@given(st.integers(0, 2**32))
def test_random_networks_are_what_is_asked_for(seed: int) -> None:
    topology = random_heterogeneous(seed, 2, 9, bandwidth=8.0, latency=1.0)
    assert 2 <= len(topology.servers) <= 9
    assert set(topology.bandwidth / 8) <= {0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 12.0}
    assert set(topology.latency) <= {1.0, 2.0, 4.0}
    assert not topology.warnings  # nothing unconnected
    assert (
        random_heterogeneous(np.random.default_rng(seed), 2, 9, 8.0, 1.0).fingerprint == topology.fingerprint
    )


def test_random_networks_are_mixed() -> None:
    rng = np.random.default_rng(0)
    drawn = [random_heterogeneous(rng) for _ in range(200)]
    kinds = Counter(topology.name.split("_")[1] for topology in drawn)
    assert set(kinds) == {"direct", "switched", "grouped"}
    assert min(kinds.values()) > 40
    assert {len(topology.servers) for topology in drawn} == set(range(3, 17))
    assert sum(len(set(topology.bandwidth)) > 1 for topology in drawn) > 100
    assert len({topology.fingerprint for topology in drawn}) > 190


@settings(max_examples=20)
@given(st.integers(3, 12), st.integers(1, 11), st.integers(0, 100))
def test_any_jellyfish_is_drawn_or_refused(switches: int, ports: int, seed: int) -> None:
    try:
        topology = jellyfish(switches, ports, 1, seed)
    except InputError:
        assert ports >= switches or switches * ports % 2 or ports <= 2
    else:
        assert degrees(topology)[1] == Counter({ports + 1: switches})
