"""Every scheduler by itself: right schedules on all kinds of networks, and samples that are what they say."""

import dataclasses
import os
import subprocess
import sys
import time

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import changed, digest, one_way_ring, small_networks, some_take_part, switched, untrained_policy

from gnnsched.collective.bounds import bounds
from gnnsched.collective.decode.decoder import Stopped
from gnnsched.collective.schedule import Schedule
from gnnsched.collective.simulator import simulate
from gnnsched.collective.verify import verify
from gnnsched.planning import SCHEDULERS, compare, halves, plan, schedule_with
from gnnsched.planning.halves import PathCache
from gnnsched.topology import InputError, Topology
from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.generators import dgx, dumbbell, random_heterogeneous

MESSAGE = 2.0**22
NETWORKS = small_networks()
POLICY = untrained_policy()


def assert_right(schedule: Schedule) -> None:
    """The referee accepts it, a replay gives the planned times, and no bound is broken."""
    verdict = verify(schedule)
    assert verdict.ok, verdict.fault
    replay = simulate(schedule)
    assert replay.truncated is None
    assert replay.makespan == pytest.approx(schedule.makespan, rel=1e-9)
    np.testing.assert_allclose(replay.end, schedule.transfers.end, rtol=1e-9, atol=1e-9 * schedule.makespan)
    assert schedule.makespan >= bounds(schedule.topology, schedule.message_bytes, 0.0).bound_s * (1 - 1e-9)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_scheduler_plans_every_network(name: str, network: str) -> None:
    made = schedule_with(name, NETWORKS[network], MESSAGE, 2, 2, policy=POLICY)
    assert_right(made.schedule)
    assert made.schedule.makespan == pytest.approx(made.makespans.min(), rel=1e-12)
    assert made.schedule.num_chunks == 2 * len(NETWORKS[network].participants)
    assert made.schedule.planner["name"] == name


def test_the_kinds_of_networks_are_what_they_should_be() -> None:
    assert NETWORKS["one-way ring"].opposite is None
    assert NETWORKS["slow uplinks"].opposite is None
    for name in ("relays", "some take part"):
        assert len(NETWORKS[name].participants) < len(NETWORKS[name].servers)


@given(st.integers(0, 2**32 - 1), st.sampled_from(SCHEDULERS), st.integers(1, 3), st.integers(0, 2))
@settings(max_examples=40)
def test_random_networks(seed: int, name: str, chunks_per_server: int, left_out: int) -> None:
    """Of any kind, with some servers left out, a few samples."""
    network = random_heterogeneous(seed, 3, 7)
    takes_part = network.is_participant.copy()
    takes_part[network.servers[: min(left_out, len(network.servers) - 2)]] = False
    network = changed(network, is_participant=takes_part)
    made = schedule_with(name, network, MESSAGE, chunks_per_server, 2, seed % 5, POLICY)
    assert_right(made.schedule)


# Numbers of servers


def direct(servers: int) -> Topology:
    """A chain of servers without any switch."""
    builder = NetworkBuilder(f"chain of {servers}", "test")
    for i in range(servers):
        builder.server(i)
    for i in range(servers - 1):
        builder.cable(i, i + 1, 1e9, 1e-6)
    return builder.build()


@pytest.mark.parametrize("servers", [1, 2, 3, 5, 6, 7, 10])
@pytest.mark.parametrize("kind", ["switched", "direct"])
def test_any_number_of_servers(servers: int, kind: str) -> None:
    network = direct(servers) if kind == "direct" else switched(servers, "10Gbps", "500ns")
    for name in SCHEDULERS:
        made = schedule_with(name, network, MESSAGE, 1, 1, policy=POLICY)
        assert_right(made.schedule)
        transfers = made.schedule.transfers
        if servers == 1:
            assert len(transfers) == 0
            assert made.schedule.makespan == 0.0
        # with two or more, each sends at least the message's share and receives it
        sent = np.bincount(transfers.source, minlength=network.num_nodes)[network.participants]
        received = np.bincount(transfers.target, minlength=network.num_nodes)[network.participants]
        assert (sent > 0).all() == (servers > 1)
        assert (received > 0).all() == (servers > 1)


# Units and scale


@pytest.mark.parametrize("name", SCHEDULERS)
def test_400_gigabits_are_50_gigabytes(name: str) -> None:
    one, other = (
        schedule_with(name, switched(4, b), MESSAGE, 2, 2, policy=POLICY) for b in ("400Gbps", "50GB/s")
    )
    assert one.schedule.makespan == other.schedule.makespan
    np.testing.assert_array_equal(one.makespans, other.makespans)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_twice_the_bandwidth_is_half_the_time(name: str) -> None:
    """Without latency; and the same transfers in the same order."""
    network = random_heterogeneous(8, 5, 5)
    slow = changed(network, latency=np.zeros(network.num_links))
    fast = changed(slow, bandwidth=2.0 * slow.bandwidth)
    one, other = (schedule_with(name, n, MESSAGE, 2, 3, policy=POLICY).schedule for n in (slow, fast))
    assert other.makespan == pytest.approx(one.makespan / 2, rel=1e-12)
    np.testing.assert_array_equal(one.transfers.path_links, other.transfers.path_links)


@pytest.mark.parametrize("message", [1.0, 3.7e3, 2.0**40])
def test_messages_from_a_byte_to_a_terabyte(message: float) -> None:
    for name in SCHEDULERS:
        assert_right(schedule_with(name, dgx(2, 2), message, 2, 1, policy=POLICY).schedule)


# Parallel cables


def cabled(*cables: tuple[str, str, int, str]) -> Topology:
    graph = nx.MultiGraph()
    for one, other, count, bandwidth in cables:
        for node in (one, other):
            graph.add_node(node, kind="switch" if node.startswith("w") else "server")
        for _ in range(count):
            graph.add_edge(one, other, bandwidth=bandwidth)
    return Topology.from_networkx(graph)


@pytest.mark.parametrize(
    "network",
    [
        cabled(("a", "b", 4, "100Gbps")),
        cabled(("a", "w1", 1, "400Gbps"), ("w1", "w2", 4, "100Gbps"), ("w2", "b", 1, "400Gbps")),
        cabled(("a", "w", 4, "100Gbps"), ("w", "b", 4, "100Gbps")),
    ],
    ids=["direct", "between switches", "to a switch"],
)
@pytest.mark.parametrize("name", ["greedy_augmented", "trees_augmented", "policy"])
def test_four_parallel_cables_have_four_times_the_capacity(network: Topology, name: str) -> None:
    """A chunk for each cable and direction: the time of one 400 Gbit/s cable, and near the bound."""
    made = schedule_with(name, network, MESSAGE, 4, 4, policy=POLICY).schedule
    assert_right(made)
    assert made.makespan == pytest.approx(MESSAGE / 50e9, rel=0.02)


# Names, seeds, samples


def test_names_do_not_matter() -> None:
    """The same network with other ids in the same order: the same schedules."""
    network = random_heterogeneous(4, 6, 6)
    renamed = dataclasses.replace(
        network, node_ids=tuple(f"node {(37 * i) % 101}" for i in range(network.num_nodes))
    )
    for name in SCHEDULERS:
        one, other = (
            schedule_with(name, n, MESSAGE, 1, 2, policy=POLICY).schedule for n in (network, renamed)
        )
        assert digest(one) == digest(other), name


DIGESTS = """
import sys
sys.path.insert(0, sys.argv[1])
from networks import changed, digest, one_way_ring, untrained_policy
from gnnsched.planning import SCHEDULERS, plan, schedule_with
from gnnsched.topology.generators import dgx
policy = untrained_policy()
for network in (dgx(2, 3), one_way_ring()):
    print(*(digest(schedule_with(name, network, 1e6, 2, 5, 3, policy).schedule) for name in SCHEDULERS))
    print(digest(plan(network, 1e6, 4, policy=policy, samples=3, time_limit=1e6).schedule))
"""


def test_one_seed_one_schedule_in_every_process() -> None:
    """Whatever the hash seed and the number of threads."""
    here = []
    for network in (dgx(2, 3), one_way_ring()):
        for name in SCHEDULERS:
            here.append(digest(schedule_with(name, network, 1e6, 2, 5, 3, POLICY).schedule))
        here.append(digest(plan(network, 1e6, 4, policy=POLICY, samples=3, time_limit=1e6).schedule))
    command = [sys.executable, "-c", DIGESTS, os.path.dirname(__file__)]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.split() == here


def test_seeds_and_samples_differ() -> None:
    """Another seed draws other plans; one seed's samples are not all the same."""
    network = random_heterogeneous(5, 8, 8)
    one, other = (schedule_with("random", network, MESSAGE, 2, 6, seed) for seed in (0, 1))
    assert len(one.makespans) == len(other.makespans) == 6
    assert len(set(one.makespans)) > 1
    assert set(one.makespans) != set(other.makespans)


def test_no_sample_is_begun_after_the_deadline() -> None:
    """But the first one, without which there is no plan."""
    for network in (dgx(2, 2), one_way_ring()):
        made = schedule_with("linear", network, MESSAGE, 1, 8, deadline=-np.inf)
        assert len(made.makespans) == 1
        assert_right(made.schedule)


@pytest.mark.parametrize("network", [dgx(2, 2), one_way_ring()], ids=lambda network: network.name)
def test_an_optional_plan_is_given_up_at_the_deadline(network: Topology) -> None:
    past = time.monotonic() - 1.0
    with pytest.raises(Stopped):
        schedule_with("linear", network, MESSAGE, 1, 8, deadline=past, optional=True)
    assert len(schedule_with("linear", network, MESSAGE, 1, 8, deadline=past).makespans) == 1
    in_time = schedule_with("linear", network, MESSAGE, 1, 8, deadline=past + 1e3, optional=True)
    assert len(in_time.makespans) == 8


def test_paths_are_searched_once_for_each_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """One-way networks plan each half on its own, and all chunk counts share both halves' paths."""
    searched = []
    original = halves.candidate_paths

    def counted(topology: Topology) -> object:
        searched.append(topology)
        return original(topology)

    monkeypatch.setattr(halves, "candidate_paths", counted)
    cache = PathCache()
    for network, expected in ((one_way_ring(), 2), (dgx(2, 2), 3)):
        for count in (1, 2, 4):
            schedule_with("greedy", network, MESSAGE, count, 1, paths=cache)
        assert len(searched) == expected
    # other speeds on the same links are another network
    slower = dataclasses.replace(dgx(2, 2), bandwidth=dgx(2, 2).bandwidth / 2)
    assert cache.of(slower).rate.max() == pytest.approx(cache.of(dgx(2, 2)).rate.max() / 2)


# Comparison


def test_comparison_is_at_the_same_chunks_and_samples() -> None:
    network = some_take_part()
    made = compare(network, MESSAGE, 2, samples=2, seed=1, policy=POLICY)
    assert tuple(made) == SCHEDULERS
    for name, makespan in made.items():
        assert makespan == schedule_with(name, network, MESSAGE, 2, 2, 1, POLICY).schedule.makespan
    without = compare(network, MESSAGE, 2, samples=1, names=("policy", "ring"))
    assert without["policy"] is None
    assert without["ring"] == made["ring"]


# Bad input


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"name": "nccl"}, "unknown"),
        ({"message_bytes": 0.0}, "message size"),
        ({"message_bytes": -1.0}, "message size"),
        ({"message_bytes": float("nan")}, "message size"),
        ({"message_bytes": float("inf")}, "message size"),
        ({"chunks_per_server": 0}, "chunks per server"),
        ({"samples": 0}, "samples"),
        ({"seed": -1}, "seed"),
        ({"name": "policy"}, "no checkpoint"),
    ],
)
def test_bad_numbers_are_refused_in_one_line(changes: dict[str, object], word: str) -> None:
    arguments: dict = {"name": "greedy", "message_bytes": 1e6, "chunks_per_server": 1} | changes
    with pytest.raises(InputError, match=word) as caught:
        schedule_with(topology=dgx(2, 2), **arguments)
    assert "\n" not in str(caught.value)


def test_no_sample_after_one_that_is_good_enough() -> None:
    """The samples up to the first within the target, whatever else ran beside them."""
    network = dumbbell(3)
    every = schedule_with("random", network, 2.0**26, 2, 12, seed=4)
    target = float(np.sort(every.makespans)[3])
    first = int(np.argmax(every.makespans <= target))
    stopped = schedule_with("random", network, 2.0**26, 2, 12, seed=4, target=target)
    np.testing.assert_array_equal(stopped.makespans, every.makespans[: first + 1])
    assert stopped.schedule.makespan == every.makespans[first]


@pytest.mark.parametrize("name", ["greedy_augmented", "trees_augmented", "linear"])
def test_all_chunks_from_one_root(name: str) -> None:
    """Also where the halves are planned apart, on links of one direction."""
    for network in (dumbbell(3), one_way_ring()):
        root = int(network.participants[1])
        made = schedule_with(name, network, 2.0**20, 3, 2, root=root).schedule
        assert made.roots.tolist() == [root] * 3
        assert verify(made).ok
