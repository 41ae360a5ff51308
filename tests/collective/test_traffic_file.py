"""Files of in-flight flows and ready times: what they mean, and one line for each thing that is wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnsched.collective.flows import NO_FLOWS
from gnnsched.collective.schedule_io import dump_schedule, load_schedule
from gnnsched.collective.traffic_file import load_flows, load_ready
from gnnsched.collective.verify import verify
from gnnsched.planning import schedule_with
from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators import bcube, hub, star

NETWORK = star([1e9, 2e9, 4e9], latency=0.0)


def written(folder: Path, content: Any) -> Path:
    file = folder / "live.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def ends_of(network: Topology, links: np.ndarray) -> list[str]:
    nodes = [network.link_source[links[0]], *network.link_target[links]]
    return [str(network.node_ids[node]) for node in nodes]


def test_paths_ends_rates_and_times(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {
            "flows": [
                {"path": ["server-2", "switch-0"], "rate": "8Gbps", "bytes_left": "2GB"},
                {"source": "server-1", "target": "server-0", "bytes_left": 10**9, "start": "500ms"},
            ]
        },
    )
    flows = load_flows(file, NETWORK)
    assert flows.num_flows == 2
    assert ends_of(NETWORK, flows.links[:1]) == ["server-2", "switch-0"]
    assert ends_of(NETWORK, flows.links[1:]) == ["server-1", "switch-0", "server-0"]
    # the second one takes all that its narrowest link has
    np.testing.assert_allclose(flows.rate, [1e9, 1e9])
    np.testing.assert_allclose(flows.since, [0.0, 0.5])
    np.testing.assert_allclose(flows.until, [2.0, 1.5])


def test_without_a_rate_a_flow_takes_what_those_before_it_leave(tmp_path: Path) -> None:
    entry = {"source": "server-1", "target": "server-2", "bytes_left": "1GB"}
    file = written(tmp_path, {"flows": [{**entry, "rate": "0.5GB/s"}, entry]})
    np.testing.assert_allclose(load_flows(file, NETWORK).rate, [0.5e9, 1.5e9])


def test_through_servers_only_where_there_is_no_other_way(tmp_path: Path) -> None:
    leaves = hub(2, 1e9)
    names = [str(leaves.node_ids[i]) for i in leaves.servers]
    file = written(tmp_path, {"flows": [{"source": names[1], "target": names[2], "bytes_left": "1GB"}]})
    assert ends_of(leaves, load_flows(file, leaves).links) == [names[1], names[0], names[2]]


GOOD = {"source": "server-0", "target": "server-1", "bytes_left": "1GB"}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "live.json"),
        ({"flow": []}, "flow"),
        ({"flows": [{**GOOD, "speed": 1}]}, "speed"),
        ({"flows": [{"source": "server-0", "target": "server-1"}]}, "bytes_left"),
        ({"flows": [{"source": "server-0", "bytes_left": 1}]}, "flows[0]: give a path"),
        ({"flows": [{**GOOD, "path": ["server-0", "switch-0"]}]}, "flows[0]: give a path"),
        ({"flows": [{**GOOD, "source": "server-9"}]}, "flows[0].source"),
        ({"flows": [{**GOOD, "target": "server-0"}]}, "goes nowhere"),
        ({"flows": [{"path": ["server-0", "server-1"], "bytes_left": 1}]}, "no link"),
        ({"flows": [GOOD, {**GOOD, "rate": "fast"}]}, "flows[1]"),
        ({"flows": [{**GOOD, "rate": 5}]}, "no unit"),
        ({"flows": [{**GOOD, "bytes_left": 0}]}, "bytes"),
        ({"flows": [{**GOOD, "start": "-1ms"}]}, "negative"),
        ({"flows": [{**GOOD, "rate": "9GB/s"}]}, "more than its bandwidth"),
        ({"flows": [GOOD, GOOD]}, "leave nothing"),
    ],
)
def test_bad_flows_are_refused_in_one_line(tmp_path: Path, content: Any, word: str) -> None:
    with pytest.raises(InputError) as caught:
        load_flows(written(tmp_path, content), NETWORK)
    assert word in str(caught.value)
    assert "live.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ready_times(tmp_path: Path) -> None:
    ready = load_ready(written(tmp_path, {"ready": [{"server": "server-1", "at": "2ms"}]}), NETWORK)
    assert ready[NETWORK.servers].tolist() == [0.0, 2e-3, 0.0]


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([{"server": "switch-0", "at": "1ms"}], "takes part"),
        ([{"server": "server-1", "at": "1ms"}] * 2, "twice"),
        ([{"server": "server-1", "at": 1}], "no unit"),
        ([{"server": "nobody", "at": "1ms"}], "ready[0].server"),
        ([{"server": "server-1"}], "at"),
    ],
)
def test_bad_ready_times_are_refused_in_one_line(tmp_path: Path, entries: Any, word: str) -> None:
    with pytest.raises(InputError) as caught:
        load_ready(written(tmp_path, {"ready": entries}), NETWORK)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_schedule_file_keeps_flows_ready_times_and_participants(tmp_path: Path, suffix: str) -> None:
    whole = bcube(2, 1)
    network = whole.with_participants(whole.servers[:3])
    names = [str(whole.node_ids[i]) for i in whole.servers]
    flows = load_flows(
        written(tmp_path, {"flows": [{"source": names[0], "target": names[1], "bytes_left": "1MB"}]}), network
    )
    ready = np.zeros(whole.num_nodes)
    ready[network.servers[1]] = 1e-4
    schedule = schedule_with("greedy_augmented", network, 1e7, 2, 1, flows=flows, ready=ready).schedule
    file = tmp_path / f"schedule{suffix}"
    dump_schedule(schedule, file)
    # read with the network as its own file says it, where all servers take part
    again = load_schedule(file, whole)
    assert again.topology.participants.tolist() == network.participants.tolist()
    for mine, right in zip(again.flows, flows):
        np.testing.assert_array_equal(mine, right)
    assert again.ready is not None
    np.testing.assert_array_equal(again.ready, ready)
    assert verify(again).ok
    endless = flows._replace(until=np.array([np.inf]), rate=flows.rate / 2)
    lasting = schedule_with("greedy_augmented", network, 1e7, 2, 1, flows=endless).schedule
    dump_schedule(lasting, file)
    assert load_schedule(file, whole).flows.until[0] == np.inf
    assert schedule_with("greedy", network, 1e7, 2, 1).schedule.flows is NO_FLOWS


def test_other_participants_by_node(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no participants"):
        NETWORK.with_participants([])
    with pytest.raises(InputError, match="switch"):
        NETWORK.with_participants(np.flatnonzero(NETWORK.is_switch))
    assert NETWORK.with_participants(NETWORK.servers) is NETWORK
