import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators import random_heterogeneous
from gnnsched.topology.validate import component_labels, validated

SPEED = {"bandwidth": "100Gbps", "latency": "500ns"}


def links_of(topology: Topology) -> list[tuple[object, object, float, float]]:
    ids = topology.node_ids
    return sorted(
        (
            (ids[s], ids[d], float(b), float(x))
            for s, d, b, x in zip(
                topology.link_source, topology.link_target, topology.bandwidth, topology.latency
            )
        ),
        key=repr,
    )


def test_an_undirected_edge_is_two_links() -> None:
    graph = nx.Graph()
    graph.add_edge("a", "b", **SPEED)
    topology = Topology.from_networkx(graph, "pair")
    assert links_of(topology) == [("a", "b", 12.5e9, 500e-9), ("b", "a", 12.5e9, 500e-9)]
    assert topology.name == "pair"
    assert topology.warnings == ()


def test_parallel_cables_stay_apart_in_both_multigraphs() -> None:
    graph = nx.MultiGraph()
    for speed in ("100Gbps", "100Gbps", "100Gbps", "40Gbps"):
        graph.add_edge("a", "b", bandwidth=speed, latency="1us")
    topology = Topology.from_networkx(graph)
    assert topology.num_links == 8
    assert topology.bandwidth[topology.link_source == 0].sum() == 3 * 12.5e9 + 5e9
    assert links_of(Topology.from_networkx(graph.to_directed())) == links_of(topology)


def test_directed_edges_keep_their_own_attributes() -> None:
    graph = nx.DiGraph()
    graph.add_edge("a", "b", bandwidth="100Gbps", latency="1us")
    graph.add_edge("b", "a", bandwidth="40Gbps", latency="2us")
    topology = Topology.from_networkx(graph)
    assert links_of(topology) == [("a", "b", 12.5e9, 1e-6), ("b", "a", 5e9, 2e-6)]
    assert topology.opposite is None


def test_bare_numbers_are_si_or_in_the_declared_units() -> None:
    graph = nx.Graph()
    graph.add_edge("a", "b", bandwidth=12.5e9, latency=np.float32(0.5))
    assert Topology.from_networkx(graph).latency[0] == 0.5
    graph = nx.Graph(units={"bandwidth": "Gbps", "latency": "us"})
    graph.add_edge("a", "b", bandwidth=np.int64(100), latency=0.5)
    assert links_of(Topology.from_networkx(graph))[0] == ("a", "b", 12.5e9, 500e-9)


def test_bits_and_bytes_of_equal_speed_are_the_same_network() -> None:
    fingerprints = set()
    for speed in ("400Gbps", "50GB/s", "400 Gbit/s", 50e9):
        graph = nx.Graph()
        graph.add_edge("a", "b", bandwidth=speed, latency="1us")
        fingerprints.add(Topology.from_networkx(graph).fingerprint)
    assert len(fingerprints) == 1


def test_ids_of_all_types_stay_in_input_order() -> None:
    ids = ["gpu-10", "gpu-2", 7, 3, (1, 2), (1, ("x", 2.5))]
    graph = nx.Graph()
    graph.add_nodes_from(ids)
    for node in ids[1:]:
        graph.add_edge(node, ids[0], **SPEED)
    topology = Topology.from_networkx(graph)
    assert topology.node_ids == tuple(ids)
    assert topology.index_of[3] == 3
    assert Topology.from_networkx(topology.to_networkx()).node_ids == tuple(ids)


def test_kinds_and_participants() -> None:
    graph = nx.Graph()
    graph.add_node("relay", participant=False)
    graph.add_node("switch", kind="switch", participant=False)
    graph.add_node("a", kind="server", participant=np.bool_(True))
    for node in ("relay", "a", "b"):
        graph.add_edge(node, "switch", **SPEED)
    topology = Topology.from_networkx(graph)
    assert topology.is_switch.tolist() == [False, True, False, False]
    assert topology.is_participant.tolist() == [False, False, True, True]
    again = Topology.from_networkx(topology.to_networkx())
    assert again.is_participant.tolist() == topology.is_participant.tolist()


def test_other_attributes_are_left_alone_and_misspellings_refused() -> None:
    graph = nx.Graph()
    graph.add_edge("a", "b", **SPEED, color="red", weight=3)
    nx.set_node_attributes(graph, {"a": (0, 1), "b": (1, 1)}, "pos")
    assert Topology.from_networkx(graph).num_links == 2
    graph.edges["a", "b"]["latncy"] = "1us"
    with pytest.raises(
        InputError, match=r"link 'a' -> 'b': unknown key 'latncy'; did you mean \"latency\"\?"
    ):
        Topology.from_networkx(graph)
    graph = nx.Graph()
    graph.add_node("a", knd="switch")
    with pytest.raises(InputError, match="unknown key 'knd'"):
        Topology.from_networkx(graph)


def test_missing_latency_is_zero_and_said_once() -> None:
    graph = nx.path_graph(4)
    nx.set_edge_attributes(graph, "1Gbps", "bandwidth")
    topology = Topology.from_networkx(graph)
    assert topology.warnings == ("no link has latency: taken as 0",)
    assert not topology.latency.any()
    graph.edges[0, 1]["latency"] = "1ns"
    assert Topology.from_networkx(graph).warnings == ("2 of 3 links have no latency: taken as 0",)


@pytest.mark.parametrize("loops", [1, 2])
def test_self_loops_are_dropped_with_a_count(loops: int) -> None:
    graph = nx.MultiDiGraph()
    graph.add_edges_from([("a", "b", SPEED), ("b", "a", SPEED)])
    graph.add_edges_from([("a", "a", SPEED)] * loops)
    topology = Topology.from_networkx(graph)
    assert topology.num_links == 2
    assert topology.warnings[0].startswith(f"{loops} link")
    assert "'a'" in topology.warnings[0]


@pytest.mark.parametrize("servers", [1, 2, 3, 5, 6, 7, 10])
def test_any_number_of_servers(servers: int) -> None:
    graph = nx.complete_graph(servers)
    nx.set_edge_attributes(graph, "1Gbps", "bandwidth")
    topology = Topology.from_networkx(graph)
    assert len(topology.participants) == servers
    assert topology.num_links == servers * (servers - 1)


def test_parts_without_participants_stay_and_are_named() -> None:
    graph = nx.Graph()
    graph.add_edge("a", "b", **SPEED)
    graph.add_node("lonely", kind="switch")
    graph.add_node("relay", participant=False)
    graph.add_node("far", kind="switch")
    graph.add_edge("relay", "far", **SPEED)
    topology = Topology.from_networkx(graph)
    assert topology.num_nodes == 5
    assert topology.warnings == (
        "3 nodes are not connected to any participant and stay unused (first 'lonely')",
    )
    assert len(set(component_labels(topology).tolist())) == 3


def test_two_islands_are_named_with_one_node_of_each() -> None:
    graph = nx.Graph()
    for one, other in (("a", "b"), ("b", "c"), ("x", "y")):
        graph.add_edge(one, other, **SPEED)
    with pytest.raises(InputError, match=r"2 components .*3 nodes with 'a', 2 nodes with 'x'"):
        Topology.from_networkx(graph)


def test_the_missing_direction_is_named() -> None:
    graph = nx.DiGraph()
    graph.add_edges_from([("a", "b"), ("b", "a"), ("b", "c")], **SPEED)
    with pytest.raises(InputError, match="no path leads from 'c' to 'a', though one leads from 'a' to 'c'"):
        Topology.from_networkx(graph)
    with pytest.raises(InputError, match="no path leads from 'a' to 'c', though one leads from 'c' to 'a'"):
        Topology.from_networkx(graph.reverse())
    graph = nx.DiGraph()
    graph.add_edges_from([("a", "b"), ("c", "b")], **SPEED)
    with pytest.raises(InputError, match=r"no path leads from 'a' to 'c'; add"):
        Topology.from_networkx(graph)


def test_one_way_ring_is_connected() -> None:
    graph = nx.DiGraph()
    graph.add_edges_from([(0, 1), (1, 2), (2, 0)], **SPEED)
    assert Topology.from_networkx(graph).num_links == 3


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("bandwidth", v) for v in (0.0, -1.0, np.nan, np.inf)]
    + [("latency", v) for v in (-1.0, np.nan, np.inf)],
)
def test_arrays_are_checked_too(attribute: str, value: float) -> None:
    values = {"bandwidth": [1.0, 1.0], "latency": [0.0, 0.0], attribute: [0.5, value]}
    topology = Topology.from_arrays(
        "t", ["a", "b"], [False, False], [0, 1], [1, 0], values["bandwidth"], values["latency"]
    )
    with pytest.raises(InputError, match=rf"t\.json: link 'b' -> 'a': {attribute}"):
        validated(topology, "t.json")


def test_ids_without_json_form_are_refused_with_the_place() -> None:
    for node in (frozenset({1}), float("nan"), "\ud800", (1, float("inf"))):
        topology = Topology.from_arrays("t", [node], [False], [], [], [], [])
        with pytest.raises(InputError, match=r"^net: node"):
            validated(topology, "net")


@given(st.integers(0, 10_000))
def test_networkx_round_trip(seed: int) -> None:
    topology = random_heterogeneous(seed)
    again = Topology.from_networkx(topology.to_networkx())
    assert again.fingerprint == topology.fingerprint
    assert again.node_ids == topology.node_ids
    assert again.name == topology.name
    assert not again.warnings


@given(st.integers(0, 10_000), st.randoms())
def test_fingerprint_ignores_order_and_sees_everything_else(seed: int, random: object) -> None:
    topology = random_heterogeneous(seed)
    graph = topology.to_networkx()
    shuffled = nx.MultiDiGraph()
    nodes, edges = list(graph.nodes(data=True)), list(graph.edges(data=True))
    random.shuffle(nodes)  # type: ignore[attr-defined]
    random.shuffle(edges)  # type: ignore[attr-defined]
    shuffled.add_nodes_from(nodes)
    shuffled.add_edges_from(edges)
    assert Topology.from_networkx(shuffled).fingerprint == topology.fingerprint
    edges[0][2]["bandwidth"] *= 1 + 1e-12
    assert Topology.from_networkx(_multi(nodes, edges)).fingerprint != topology.fingerprint


def _multi(nodes: list, edges: list) -> nx.MultiDiGraph:
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    return graph


@given(st.integers(0, 10_000))
def test_opposite_pairs_the_directions_of_a_cable(seed: int) -> None:
    topology = random_heterogeneous(seed)
    opposite = topology.opposite
    assert opposite is not None
    assert (opposite[opposite] == np.arange(topology.num_links)).all()
    assert (topology.link_source[opposite] == topology.link_target).all()
    assert (topology.bandwidth[opposite] == topology.bandwidth).all()
    assert (topology.reversed().link_source == topology.link_target).all()


def test_arrays_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        random_heterogeneous(1).bandwidth[0] = 1


def test_import_loads_no_graph_library() -> None:
    code = (
        "import sys, gnnsched.topology.generators, gnnsched.topology.formats;"
        "print([name for name in ('networkx', 'scipy', 'torch') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
