import json
from pathlib import Path

import networkx as nx
import pytest
from bad_inputs import BAD_FILES, network
from hypothesis import given
from hypothesis import strategies as st

from gnnsched.topology import InputError, Topology
from gnnsched.topology.formats import dump_topology, load_topology
from gnnsched.topology.formats.json_format import decode_topology, encode_topology
from gnnsched.topology.generators import hub


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    content, named = BAD_FILES[case]
    path = tmp_path / "net.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_topology(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()  # no line ends either
    assert len(message) < 400
    for part in named:
        assert part in message


def test_the_file_that_they_are_made_from_is_right(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_bytes(network())
    assert load_topology(tmp_path / "net.json").num_links == 6


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; name a file in it"):
        load_topology(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        load_topology(tmp_path / "absent.json")
    with pytest.raises(InputError, match="is a folder"):
        dump_topology(hub(1), tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        dump_topology(hub(1), tmp_path / "absent" / "net.json")


def graph_with(**attributes: object) -> nx.Graph:
    graph = nx.Graph(name="net")
    graph.add_edge("a", "b", bandwidth="1Gbps", latency="1ns")
    graph.add_edge("b", "c", **{"bandwidth": "1Gbps", **attributes})
    return graph


@pytest.mark.parametrize(
    ("graph", "named"),
    [
        (graph_with(bandwidth=None), "link 'b' -> 'c': bandwidth None"),
        (graph_with(bandwidth=float("nan")), "link 'b' -> 'c': bandwidth nan is not finite"),
        (graph_with(bandwidth=0), "link 'b' -> 'c': bandwidth 0 is not positive"),
        (graph_with(bandwidth="Unknown"), "link 'b' -> 'c': bandwidth 'Unknown'"),
        (graph_with(latency=-1), "link 'b' -> 'c': latency -1 is negative"),
        (nx.path_graph(2), "graph graph: link 0 -> 1: has no bandwidth"),
        (nx.Graph(), "graph graph: has no nodes"),
        (nx.Graph(units="Gbps"), "units 'Gbps' is not a mapping"),
        (nx.Graph(units={"bandwith": "Gbps"}), "units: unknown key 'bandwith'; did you mean \"bandwidth\"?"),
        (nx.Graph(units={"latency": "min"}), "units: 'min' is not a unit of latency"),
        ([("a", "b")], "list is not a networkx graph"),
    ],
)
def test_bad_graphs_are_refused_in_one_line(graph: nx.Graph, named: str) -> None:
    with pytest.raises(InputError) as caught:
        Topology.from_networkx(graph)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"kind": "router"}, "node 'x': kind 'router' is unknown"),
        ({"kind": ["switch"]}, "node 'x': kind ['switch'] is unknown"),
        ({"participant": "false"}, "node 'x': participant 'false' is not a boolean"),
        ({"kind": "switch", "participant": True}, "node 'x': a switch is marked"),
        ({}, "server 'x' has no link"),
    ],
)
def test_bad_nodes_are_refused_in_one_line(attributes: dict, named: str) -> None:
    graph = graph_with()
    graph.add_node("x", **attributes)
    with pytest.raises(InputError, match="graph net: ") as caught:
        Topology.from_networkx(graph)
    assert named in str(caught.value)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["a", "switch"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.data())
def test_any_value_in_any_place_is_read_or_refused_in_one_line(data: st.DataObject) -> None:
    tree = json.loads(network(graph={"name": "n", "units": {"bandwidth": "Gbps"}, "nodes": 3}, directed=True))
    place, key = tree, data.draw(st.sampled_from(sorted(tree)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    place[key] = data.draw(JSON_VALUES)
    _read_or_refused(json.dumps(tree).encode())


@given(st.integers(0, len(network()) - 1), st.binary(max_size=3), st.integers(0, 3))
def test_any_damage_to_the_bytes_is_read_or_refused_in_one_line(at: int, new: bytes, gone: int) -> None:
    content = network()
    _read_or_refused(content[:at] + new + content[at + gone :])


def _read_or_refused(content: bytes) -> None:
    message = "net.json: "
    try:
        topology = decode_topology(content, "net.json", "net")
    except InputError as error:
        message = str(error)
    else:
        again = decode_topology(encode_topology(topology), "net.json", "net")
        assert again.fingerprint == topology.fingerprint
    assert message.startswith("net.json: ")
    assert "\n" not in message
