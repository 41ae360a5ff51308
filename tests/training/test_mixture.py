"""Lessons: the same everywhere, none of the evaluation suite's networks, flows within the bandwidth."""

import dataclasses
import hashlib
import os
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from lessons import triangle
from networkx.algorithms.isomorphism import numerical_multiedge_match

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.decoder import Decoding
from gnnsched.collective.decode.paths import candidate_paths
from gnnsched.collective.decode.presets import linear_scores
from gnnsched.envs.flows import draw_flows
from gnnsched.topology import InputError, Topology
from gnnsched.topology.builder import NetworkBuilder
from gnnsched.topology.formats import load_topology
from gnnsched.topology.generators import bcube, jellyfish, leaf_spine, random_heterogeneous, star
from gnnsched.topology.suite import suite_files
from gnnsched.training.mixture import (
    CHUNKS_PER_SERVER,
    MESSAGE_BYTES,
    MIXTURES,
    MOST_CHUNKS,
    MOST_FLOWS,
    SMALL_SHARE,
    Lesson,
    Mixture,
)

LESSONS = 200


@pytest.fixture(scope="module")
def default_lessons() -> list[Lesson]:
    mixture = Mixture("default", 0)
    return [mixture.lesson(i) for i in range(LESSONS)]


def digest(lesson: Lesson) -> str:
    """Of all that a lesson consists of."""
    parts = [lesson.instance.topology.fingerprint.encode(), repr(lesson.bound).encode()]
    parts += [np.ascontiguousarray(part).tobytes() for part in lesson.instance.problem]
    graph = lesson.graph
    parts += [getattr(graph, field.name).numpy().tobytes() for field in dataclasses.fields(graph)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


# Determinism

DIGESTS = """
import sys
sys.path.insert(0, sys.argv[1])
from test_mixture import Mixture, digest
mixture = Mixture("default", 7)
print(*(digest(mixture.lesson(i)) for i in (5, 0, 11, 3)))
"""


def test_lessons_are_the_same_in_every_process() -> None:
    """Whatever the hash seed, and in whatever order they are asked for."""
    mixture = Mixture("default", 7)
    here = {i: digest(mixture.lesson(i)) for i in (0, 3, 5, 11)}
    command = [sys.executable, "-c", DIGESTS, os.path.dirname(__file__)]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.split() == [here[i] for i in (5, 0, 11, 3)]
    assert mixture.lesson(3) is mixture.lesson(3)


def test_seeds_and_numbers_make_different_lessons() -> None:
    one, other = Mixture("default", 0), Mixture("default", 1)
    seen = {digest(mixture.lesson(i)) for mixture in (one, other) for i in range(12)}
    assert len(seen) == 24


# What is in it


def simple(topology: Topology) -> nx.MultiDiGraph:
    """Kinds of nodes and relative bandwidths only."""
    graph = nx.MultiDiGraph()
    for i in range(topology.num_nodes):
        graph.add_node(i, kind=(bool(topology.is_switch[i]), bool(topology.is_participant[i])))
    for s, d, b in zip(
        topology.link_source, topology.link_target, topology.bandwidth / topology.bandwidth.max()
    ):
        graph.add_edge(int(s), int(d), bandwidth=float(b))
    return graph


def alike(one: Topology, other: Topology) -> bool:
    """The same network up to names, order, latency and unit of bandwidth."""
    if (one.num_nodes, one.num_links) != (other.num_nodes, other.num_links):
        return False
    return nx.is_isomorphic(
        simple(one),
        simple(other),
        node_match=lambda a, b: a["kind"] == b["kind"],
        edge_match=numerical_multiedge_match("bandwidth", 1.0),
    )


def test_default_mixture_has_no_network_of_the_suite(default_lessons: list[Lesson]) -> None:
    """Small BCube aside; neither by content nor by structure under other names."""
    files = suite_files()
    assert len(files) > 15
    suite = [
        load_topology(path) for path in files if path.stem not in ("bcube_2_1", "bcube_3_1", "bcube_4_1")
    ]
    prints = {topology.fingerprint for topology in suite}
    seen: dict[str, Topology] = {}
    for lesson in default_lessons:
        seen.setdefault(lesson.instance.topology.fingerprint, lesson.instance.topology)
    assert not prints & seen.keys()
    for topology in seen.values():
        for other in suite:
            assert not alike(topology, other), (topology.name, other.name)


def test_default_mixture_draws_many_kinds(default_lessons: list[Lesson]) -> None:
    """Some families of the suite are not among them at all, and none is rare."""
    families = [lesson.family for lesson in default_lessons]
    assert not {"fat_tree", "torus", "hypercube", "star", "hub"} & set(families)
    shares = {family: families.count(family) / LESSONS for family in families}
    assert set(shares) == {
        "bcube",
        "dcell",
        "jellyfish",
        "dgx",
        "leaf_spine",
        "dumbbell",
        "random_direct",
        "random_switched",
        "random_grouped",
    }
    assert min(shares.values()) >= 0.01
    assert max(shares.values()) <= 0.35
    sizes = {len(lesson.instance.topology.participants) for lesson in default_lessons}
    assert min(sizes) <= 4
    assert max(sizes) >= 12


@pytest.mark.parametrize(
    ("network", "family"),
    [
        (bcube(2, 1), "bcube"),
        (leaf_spine(3, 2, 1), "leaf_spine"),
        (jellyfish(6, 3, 1, 0), "jellyfish"),
        (random_heterogeneous(0), None),
        (triangle(), "triangle"),
    ],
)
def test_family_is_the_name_without_its_numbers(network: Topology, family: str | None) -> None:
    found = Mixture([network], 0).lesson(0).family
    assert found == family if family else found in ("random_direct", "random_switched", "random_grouped")


def test_cases_are_flows_small_messages_and_the_others(default_lessons: list[Lesson]) -> None:
    seen, count = set(), 0
    for lesson in default_lessons:
        message = lesson.instance.chunk_bytes * len(lesson.instance.roots)
        flows = lesson.instance.flows.num_flows > 0
        small = message <= 2.0**26 * (1 + 1e-12)
        assert small or message == pytest.approx(MESSAGE_BYTES)
        assert lesson.case == ("flows" if flows else "small" if small else "plain")
        seen.add((lesson.case, small))
        count += small
    assert seen == {("flows", True), ("flows", False), ("small", True), ("plain", False)}
    assert abs(count / LESSONS - SMALL_SHARE) < 0.12


def test_bcube_mixture_has_the_three_small_ones_alone() -> None:
    mixture = Mixture("bcube", 0)
    allowed = {bcube(n, 1).fingerprint for n in (2, 3, 4)}
    assert {mixture.lesson(i).instance.topology.fingerprint for i in range(60)} == allowed


def test_lessons_of_given_networks_are_on_those_alone() -> None:
    given = [triangle(), star([1e9, 2e9])]
    mixture = Mixture(given, 0)
    assert {id(mixture.lesson(i).instance.topology) for i in range(40)} == {
        id(topology) for topology in given
    }


def test_chunk_counts(default_lessons: list[Lesson]) -> None:
    for lesson in default_lessons:
        instance = lesson.instance
        assert instance.chunks_per_server in CHUNKS_PER_SERVER
        assert len(instance.roots) <= max(MOST_CHUNKS, len(instance.topology.participants))
    assert {lesson.instance.chunks_per_server for lesson in default_lessons} == set(CHUNKS_PER_SERVER)


def test_bounds_are_those_of_the_message(default_lessons: list[Lesson]) -> None:
    """And no plan without flows is below them."""
    for lesson in default_lessons[:40]:
        instance = lesson.instance
        message = instance.chunk_bytes * len(instance.roots)
        assert message <= MESSAGE_BYTES * (1 + 1e-12)
        assert lesson.bound == pytest.approx(all_gather_bound(instance.topology, message), rel=1e-9)
        episode = instance.decode(linear_scores(instance), Decoding(), np.random.default_rng(0))
        assert episode.makespan >= lesson.bound * (1 - 1e-9)


def test_one_network_in_two_orders_keeps_its_own_paths() -> None:
    """Their fingerprints are equal, their link numbers are not."""
    network = star([1e9, 2e9, 3e9])
    nodes, links = np.arange(network.num_nodes)[::-1], np.arange(network.num_links)[::-1]
    turned = Topology.from_arrays(
        network.name,
        [network.node_ids[i] for i in nodes],
        network.is_switch[nodes],
        (network.num_nodes - 1 - network.link_source)[links],
        (network.num_nodes - 1 - network.link_target)[links],
        network.bandwidth[links],
        network.latency[links],
        network.is_participant[nodes],
    )
    assert turned.fingerprint == network.fingerprint
    mixture = Mixture([network, turned], 0)
    seen = set()
    for i in range(20):
        instance = mixture.lesson(i).instance
        seen.add(id(instance.topology))
        for mine, right in zip(instance.paths, candidate_paths(instance.topology)):
            np.testing.assert_array_equal(mine, right)
    assert len(seen) == 2


# Flows


def test_flows_stay_within_the_bandwidth(default_lessons: list[Lesson]) -> None:
    """Together on each link, for a time within the lesson; and a good part of the lessons has some."""
    some = 0
    for lesson in default_lessons:
        flows, topology = lesson.instance.flows, lesson.instance.topology
        some += flows.num_flows > 0
        assert flows.num_flows <= MOST_FLOWS
        taken = np.zeros(topology.num_links)
        for f in range(flows.num_flows):
            own = flows.links[flows.start[f] : flows.start[f + 1]]
            assert len(own) >= 1
            # a path: each link begins where the one before ends, at a switch
            np.testing.assert_array_equal(topology.link_target[own[:-1]], topology.link_source[own[1:]])
            assert topology.is_switch[topology.link_target[own[:-1]]].all()
            assert flows.rate[f] > 0.0
            assert 0.0 <= flows.since[f] < lesson.bound
            assert 0.0 < flows.until[f] - flows.since[f] < lesson.bound
            taken[own] += flows.rate[f]
        assert (taken <= topology.bandwidth * (1 + 1e-12)).all()
    assert 0.2 < some / LESSONS < 0.4


def test_flows_on_one_path_share_it() -> None:
    """All drawn flows on one link: what is left for the later ones is less, or they are not there at all."""
    network = star([1e9, 1e9])
    paths = candidate_paths(network)
    rng = np.random.default_rng(0)
    for _ in range(200):
        flows = draw_flows(network, paths, 3, 1.0, rng)
        crossed = np.repeat(np.arange(len(flows.rate)), np.diff(flows.start))
        taken = np.bincount(flows.links, flows.rate[crossed], network.num_links)
        assert (taken <= network.bandwidth * (1 + 1e-12)).all()
        assert 1 <= len(flows.rate) <= 3
        assert (flows.rate > 0).all()
        assert ((flows.since <= 1.0) & (flows.until - flows.since <= 1.0)).all()


def test_flow_share_is_kept() -> None:
    without, always = (Mixture("bcube", 0, flow_share=share) for share in (0.0, 1.0))
    assert not any(len(without.lesson(i).instance.flows.rate) for i in range(20))
    assert all(len(always.lesson(i).instance.flows.rate) for i in range(20))


# Bad input


def one_server() -> Topology:
    builder = NetworkBuilder("lonely", "test")
    builder.server("a")
    return builder.build()


@pytest.mark.parametrize(
    ("source", "word"),
    [("defaults", "default, bcube"), ([], "no networks given"), ([triangle(), one_server()], "lonely")],
)
def test_bad_sources_are_refused_in_one_line(source: str | list[Topology], word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        Mixture(source, 0)
    assert "\n" not in str(caught.value)


def test_named_mixtures_exist() -> None:
    for name in MIXTURES:
        assert Mixture(name, 0).lesson(0).instance.topology.num_nodes > 0
