import json
import os
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnsched.topology import Topology
from gnnsched.topology.formats import dump_topology, load_topology, topology_schema
from gnnsched.topology.formats.json_format import decode_topology, encode_topology
from gnnsched.topology.generators import fat_tree, hub, random_heterogeneous
from gnnsched.topology.suite import suite_files, suite_folder, suite_topologies

ROOT = Path(__file__).resolve().parents[2]
NODES = [{"id": "a", "kind": "server"}, {"id": "b", "kind": "server"}]
EDGE = {"source": "a", "target": "b", "bandwidth": "100Gbps", "latency": "500ns"}


def decoded(**keys: object) -> Topology:
    return decode_topology(json.dumps({"nodes": NODES, **keys}).encode(), "net.json", "net")


@given(st.integers(0, 10_000))
def test_what_is_written_reads_back(seed: int) -> None:
    topology = random_heterogeneous(seed)
    content = encode_topology(topology)
    again = decode_topology(content, "x.json", "x")
    assert again.fingerprint == topology.fingerprint
    assert again.node_ids == topology.node_ids
    assert again.name == topology.name
    assert again.warnings == ()
    assert encode_topology(again) == content


def test_one_way_and_uneven_links_read_back() -> None:
    graph = nx.MultiDiGraph()
    graph.add_node((1, "x"), participant=False)
    graph.add_edge((1, "x"), 1, bandwidth=1 / 3, latency=0.1)
    graph.add_edge(1, "1", bandwidth="1Gbps")
    graph.add_edge(1, "1", bandwidth="1Gbps")
    graph.add_edge("1", (1, "x"), bandwidth="7Mbps")
    topology = Topology.from_networkx(graph)
    content = encode_topology(topology)
    again = decode_topology(content, "x.json", "x")
    assert json.loads(content)["directed"] is True
    assert again.fingerprint == topology.fingerprint
    assert again.node_ids == ((1, "x"), 1, "1")
    assert again.is_participant.tolist() == [False, True, True]


def test_files_say_kind_and_units_everywhere() -> None:
    data = json.loads(encode_topology(fat_tree(4)))
    assert data["directed"] is False
    assert len(data["edges"]) == 48  # one per cable
    assert all(node["kind"] in ("server", "switch") for node in data["nodes"])
    assert {(edge["bandwidth"], edge["latency"]) for edge in data["edges"]} == {("100Gbps", "500ns")}


def test_networkx_reads_our_files() -> None:
    data = json.loads(encode_topology(hub(3)))
    graph = nx.node_link_graph(data, edges="edges")
    assert Topology.from_networkx(graph).fingerprint == hub(3).fingerprint


@pytest.mark.parametrize("spelling", ["edges", "links"])
@pytest.mark.parametrize("graph_type", [nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph])
def test_we_read_what_networkx_writes(graph_type: type, spelling: str) -> None:
    graph = graph_type(units={"bandwidth": "Gbps", "latency": "us"})
    graph.add_node((0, 1), kind="server")
    graph.add_node("s", kind="switch")
    graph.add_node(7, kind="server", participant=True)
    for node in ((0, 1), 7):
        graph.add_edge(node, "s", bandwidth=100, latency=0.5)
        graph.add_edge("s", node, bandwidth=100, latency=0.5)
    content = json.dumps(nx.node_link_data(graph, edges=spelling)).encode()
    topology = decode_topology(content, "net.json", "net")
    assert topology.fingerprint == Topology.from_networkx(graph).fingerprint
    assert topology.node_ids == ((0, 1), "s", 7)
    expected = 8 if graph_type is nx.MultiGraph else 4
    assert topology.num_links == expected


def test_to_networkx_as_json() -> None:
    topology = random_heterogeneous(3)
    content = json.dumps(nx.node_link_data(topology.to_networkx(), edges="edges")).encode()
    assert decode_topology(content, "x.json", "x").fingerprint == topology.fingerprint


def test_equal_speeds_in_bits_and_bytes_and_declared_units() -> None:
    written = [
        ("400Gbps", {}),
        ("50GB/s", {}),
        ("400 Gbit/s", {}),
        (400, {"bandwidth": "Gbps"}),
        (50.0, {"bandwidth": "GB/s"}),
    ]
    topologies = [
        decoded(edges=[{**EDGE, "bandwidth": value}], graph={"units": units}) for value, units in written
    ]
    assert {topology.fingerprint for topology in topologies} == {topologies[0].fingerprint}


def test_parallel_cables_count_each() -> None:
    assert decoded(edges=[EDGE] * 4).bandwidth.sum() == 2 * 400e9 / 8
    keyed = [{**EDGE, "key": key} for key in (0, 1, "backup")]
    assert decoded(edges=keyed).num_links == 6


def test_both_orientations_in_an_undirected_file_are_said() -> None:
    topology = decoded(edges=[EDGE, {**EDGE, "source": "b", "target": "a"}])
    assert topology.num_links == 4
    assert "1 edges of an undirected file are also listed the other way round" in topology.warnings[0]
    directed = decoded(edges=[EDGE, {**EDGE, "source": "b", "target": "a"}], directed=True, multigraph=False)
    assert (directed.num_links, directed.warnings) == (2, ())


def test_defaults_are_said_once() -> None:
    nodes = [{"id": "a"}, {"id": "b"}, {"id": "c", "kind": "server"}]
    edges = [
        {"source": "a", "target": "b", "bandwidth": "1Gbps"},
        {"source": "b", "target": "c", "bandwidth": "1Gbps", "latency": "1ns"},
    ]
    topology = decode_topology(json.dumps({"nodes": nodes, "edges": edges}).encode(), "x.json", "x")
    assert topology.warnings == (
        "2 nodes have no kind: taken as servers",
        "1 of 2 links have no latency: taken as 0",
    )
    assert topology.name == "x"


def test_declared_counts_that_match() -> None:
    assert decoded(edges=[EDGE], graph={"nodes": 2, "links": 1, "name": "pair"}).name == "pair"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_encodings_and_line_ends(encoding: str, tmp_path: Path) -> None:
    text = encode_topology(hub(2)).decode().replace("\n", "\r\n").replace("leaf-0", "blåd-0")
    path = tmp_path / "network.topology"  # any ending
    path.write_bytes(text.encode(encoding))
    topology = load_topology(path)
    assert topology.node_ids == ("hub", "blåd-0", "leaf-1")


def test_server_alone() -> None:
    content = b'{"nodes": [{"id": 0, "kind": "server"}], "edges": []}'
    topology = decode_topology(content, "x.json", "x")
    assert (topology.num_links, len(topology.participants)) == (0, 1)
    assert encode_topology(topology) == encode_topology(decode_topology(encode_topology(topology), "y", "y"))


def test_what_the_file_leaves_apart_stays_apart() -> None:
    # two fabrics under one relay that nobody linked to them
    nodes = [*NODES, {"id": "root", "kind": "switch"}]
    topology = decode_topology(json.dumps({"nodes": nodes, "edges": [EDGE]}).encode(), "x.json", "x")
    assert 2 not in topology.link_source
    assert "first 'root'" in topology.warnings[0]


def test_schema_describes_what_is_written() -> None:
    schema = topology_schema()
    definitions = schema["$defs"]
    assert definitions["NetworkFile"]["oneOf"] == [{"required": ["edges"]}, {"required": ["links"]}]
    data = json.loads(encode_topology(hub(1)))
    for entry, name in (
        (data, "NetworkFile"),
        (data["nodes"][0], "NodeEntry"),
        (data["edges"][0], "EdgeEntry"),
    ):
        assert set(entry) <= set(definitions[name]["properties"])
        assert set(definitions[name]["required"]) <= set(entry)
        assert definitions[name]["additionalProperties"] is False
    json.dumps(schema)


def test_suite_files_are_the_suite() -> None:
    assert [path.stem for path in suite_files()] == sorted(topology.name for topology in suite_topologies())
    for topology in suite_topologies():
        loaded = load_topology(suite_folder() / f"{topology.name}.json")
        assert (loaded.fingerprint, loaded.name, loaded.warnings) == (topology.fingerprint, topology.name, ())
    listed = (suite_folder() / "README.md").read_text()
    for path in suite_files():
        topology = load_topology(path)
        servers = len(topology.servers)
        row = f"| `{path.name}` | {servers} | {topology.num_nodes - servers} | {topology.num_links // 2} |"
        assert row in listed


def test_two_processes_write_the_shipped_files_byte_for_byte(tmp_path: Path) -> None:
    for hash_seed in ("1", "2"):
        folder = tmp_path / hash_seed
        subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "make_topologies.py"), str(folder)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            check=True,
        )
        assert len(list(folder.iterdir())) == 22
        for path in folder.iterdir():
            assert path.read_bytes() == (ROOT / "topologies" / path.name).read_bytes()


def test_same_seed_same_random_networks_in_two_processes() -> None:
    code = (
        "from gnnsched.topology.generators import jellyfish, random_heterogeneous as r;"
        "print([r(s).fingerprint for s in range(9)], jellyfish(12, 7, 2, 5).fingerprint)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_dump_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    dump_topology(hub(2), tmp_path / "hub.json")
    dump_topology(hub(3), tmp_path / "hub.json")
    assert [path.name for path in tmp_path.iterdir()] == ["hub.json"]
    assert len(load_topology(tmp_path / "hub.json").servers) == 4
