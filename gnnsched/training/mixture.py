"""What the policy is trained on: seeded draws of small networks, message sizes, chunk counts and in-flight flows.

The evaluation suite's networks stay out, small BCubes aside. The default mixture draws from some of its families
in other sizes (DCell(3,1), small random regular, DGX-like, leaf-spine and dumbbell networks) and random networks:
direct links, switch trees, fast groups on a slow fabric. No fat-tree, torus, star or hub is among them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.decoder import GUIDE, Decoding, Instance
from gnnsched.collective.decode.paths import Paths, candidate_paths
from gnnsched.collective.flows import NO_FLOWS
from gnnsched.envs.flows import draw_flows, draw_traffic
from gnnsched.models.features import GraphBatch, graph_of
from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators import (
    DEFAULT_BANDWIDTH,
    bcube,
    dcell,
    dgx,
    dumbbell,
    jellyfish,
    leaf_spine,
    random_heterogeneous,
)
from gnnsched.training.credit import Cuts, find_cuts

MESSAGE_BYTES = float(2**30)
CHUNKS_PER_SERVER = (1, 2, 4, 8)
MOST_SERVERS = 12
MOST_CHUNKS = 48
MOST_FLOWS = 4
# Part of the lessons whose message is so small (16 KiB to 64 MiB) that latency counts.
SMALL_SHARE = 0.35
# Part of the lessons that are decoded near the packed trees, as part of a plan's samples are.
GUIDED_SHARE = 0.4
# Part of the lessons in which no path may be left idle, likewise.
BUSY_SHARE = 0.1
# Shares of the default mixture: BCube, DCell, random regular, DGX-like, leaf-spine, dumbbell, heterogeneous.
_SHARES = (0.12, 0.04, 0.14, 0.2, 0.1, 0.08, 0.32)
# Of the mixture for traffic: part of the lessons with flows, and of those with background traffic on many links.
TRAFFIC_SHARE, BACKGROUND_SHARE = 0.75, 0.7
MIXTURES = ("default", "bcube", "traffic")
# No seed of a run, which is one number, gives the lessons of this one.
VALIDATION_SEED = (1, 1 << 20)


@dataclass(frozen=True)
class Lesson:
    """An instance to train on, with the all-gather bound (s) of its network free of flows, and how to decode it."""

    instance: Instance
    bound: float
    decoding: Decoding = field(default_factory=Decoding)

    @property
    def family(self) -> str:
        """Name of the network's family: its name up to the first number."""
        return re.split(r"_?\d", self.instance.topology.name)[0]

    @property
    def case(self) -> str:
        """What is special of the lesson: "flows", "small" for a small message, or "plain"."""
        if self.instance.flows.num_flows:
            return "flows"
        return (
            "small" if self.instance.chunk_bytes * len(self.instance.roots) < MESSAGE_BYTES / 8 else "plain"
        )

    @cached_property
    def cuts(self) -> Cuts:
        return find_cuts(self.instance.topology, self.instance.paths)

    @cached_property
    def graph(self) -> GraphBatch:
        return graph_of(self.instance)


def _speed(rng: np.random.Generator, factors: Sequence[float]) -> float:
    """One of the factors times the generators' usual bandwidth (bytes/s)."""
    return DEFAULT_BANDWIDTH * float(rng.choice(factors))


def _default_network(rng: np.random.Generator) -> Topology:
    """A small network: none of them, small BCubes aside, is in the evaluation suite."""
    kind = rng.choice(len(_SHARES), p=_SHARES)
    if kind == 0:
        return bcube(*((2, 1), (3, 1), (4, 1), (2, 2), (4, 0), (6, 0))[rng.integers(6)])
    if kind == 1:
        return dcell(3, 1)
    if kind == 2:
        switches, servers = int(rng.integers(4, 8)), int(rng.integers(1, 3))
        ports = 2 if switches % 2 else int(rng.integers(2, 4))
        return jellyfish(switches, ports, servers, rng, network_bandwidth=_speed(rng, (0.5, 1.0, 1.0, 2.0)))
    if kind == 3:
        rail = float(rng.choice([12.5e9, 25e9, 50e9]))
        nodes, gpus = ((2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (3, 4), (4, 2), (2, 5), (2, 6))[
            rng.integers(9)
        ]
        return dgx(nodes, gpus, rail * float(rng.choice([2, 3, 6, 12, 18])), rail)
    if kind == 4:
        leaves, servers = int(rng.integers(2, 5)), int(rng.integers(2, 4))
        spines = int(rng.integers(1, 3))
        return leaf_spine(leaves, servers, spines, uplink_bandwidth=_speed(rng, (0.25, 0.5, 1.0, 2.0)))
    if kind == 5:
        return dumbbell(int(rng.integers(2, 7)), _speed(rng, (0.5, 1.0, 2.0, 4.0)))
    return random_heterogeneous(rng, max_servers=MOST_SERVERS)


class Mixture:
    """An endless, seeded sequence of lessons; lesson i is the same in every run with the same seed.

    ``source``: "default", "bcube" (BCube(2,1), (3,1), (4,1) alone), "traffic" (the default's networks, most of them
    beside background traffic) or the user's topologies. Raises InputError for another name, no network, and networks
    of one participant. ``flow_share``: part of the lessons with in-flight flows, of "traffic" ``TRAFFIC_SHARE``.
    """

    def __init__(
        self, source: str | Sequence[Topology], seed: int | tuple[int, ...], flow_share: float = 0.3
    ) -> None:
        if isinstance(source, str):
            if source not in MIXTURES:
                raise InputError(f"mixture {source!r}: unknown; choose one of {', '.join(MIXTURES)}")
        elif not source:
            raise InputError("training: no networks given; name at least one")
        else:
            for topology in source:
                if len(topology.participants) < 2:
                    raise InputError(
                        f"topology {topology.name}: has one participant, so nothing to learn; leave it out"
                    )
        self._source = source
        self._seed = (seed,) if isinstance(seed, int) else seed
        self._flow_share = flow_share
        self._paths: dict[tuple[Any, ...], Paths] = {}
        self._bounds: dict[tuple[Any, ...], float] = {}
        self._cache: dict[int, Lesson] = {}

    def _network(self, rng: np.random.Generator) -> Topology:
        if self._source in ("default", "traffic"):
            return _default_network(rng)
        if self._source == "bcube":
            return bcube(int(rng.choice([2, 3, 4])), 1)
        assert not isinstance(self._source, str)
        return self._source[int(rng.integers(len(self._source)))]

    def held_out(self) -> "Mixture":
        """Lessons of the same kind for validation, the same ones whatever this mixture's seed."""
        return Mixture(self._source, VALIDATION_SEED, self._flow_share)

    def lesson(self, index: int) -> Lesson:
        """Lesson number ``index``."""
        if index in self._cache:
            return self._cache[index]
        rng = np.random.default_rng([*self._seed, index])
        topology = self._network(rng)
        # The fingerprint is the same for another order of nodes and links, the paths are not.
        order = (topology.link_source, topology.link_target, topology.bandwidth, topology.latency)
        key = (topology.fingerprint, topology.node_ids, *(column.tobytes() for column in order))
        if key not in self._paths:
            self._paths[key] = candidate_paths(topology)
            self._bounds[key] = all_gather_bound(topology, MESSAGE_BYTES)
        paths, bound = self._paths[key], self._bounds[key]
        fitting = [q for q in CHUNKS_PER_SERVER if q * len(topology.participants) <= MOST_CHUNKS] or [1]
        chunks_per_server = int(rng.choice(fitting))
        message = MESSAGE_BYTES
        if rng.random() < SMALL_SHARE:
            message = 2.0 ** float(rng.uniform(14.0, 26.0))
        bound *= message / MESSAGE_BYTES
        flows = NO_FLOWS
        traffic = self._source == "traffic"
        if rng.random() < (TRAFFIC_SHARE if traffic else self._flow_share) and paths.num_paths:
            if traffic and rng.random() < BACKGROUND_SHARE:
                flows = draw_traffic(topology, paths, bound, rng)
            else:
                flows = draw_flows(topology, paths, MOST_FLOWS, bound, rng)
        packing_seed = int(rng.integers(2**31))
        instance = Instance(topology, message, chunks_per_server, packing_seed, paths, flows)
        decoding = Decoding(guide=GUIDE) if rng.random() < GUIDED_SHARE else Decoding()
        if rng.random() < BUSY_SHARE:
            decoding = replace(decoding, allow_none=False)
        lesson = Lesson(instance, bound, decoding)
        self._cache[index] = lesson
        return lesson
