"""What the policy is trained on: seeded draws of small networks, chunk counts and in-flight flows.

The evaluation suite's networks stay out, small BCubes aside. The default mixture draws BCubes, DGX-like networks of
other sizes than the suite's, and random ones: direct links, switch trees, fast groups on a slow fabric. No DCell,
Jellyfish, fat-tree, torus, leaf-spine, dumbbell, star or hub is among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.decoder import Instance
from gnnsched.collective.decode.paths import Paths, candidate_paths
from gnnsched.collective.decode.problem import NO_FLOWS
from gnnsched.envs.flows import draw_flows
from gnnsched.models.features import GraphBatch, graph_of
from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators import bcube, dgx, random_heterogeneous

MESSAGE_BYTES = float(2**30)
CHUNKS_PER_SERVER = (1, 2, 4, 8)
# Small episodes: what is learnt on them carries over, and more of them fit in the time.
MOST_SERVERS = 10
MOST_CHUNKS = 40
MOST_FLOWS = 3
# Part of the lessons without flows whose message is small enough (1 to 256 MiB) for latency to count.
SMALL_SHARE = 0.2
MIXTURES = ("default", "bcube")
# No seed of a run, which is one number, gives the lessons of this one.
VALIDATION_SEED = (1, 1 << 20)


@dataclass(frozen=True)
class Lesson:
    """An instance to train on, with the all-gather bound (s) of its network free of flows."""

    instance: Instance
    bound: float

    @cached_property
    def graph(self) -> GraphBatch:
        return graph_of(self.instance)


def _default_network(rng: np.random.Generator) -> Topology:
    kind = rng.random()
    if kind < 0.15:
        ports, levels = ((2, 1), (3, 1), (4, 1), (2, 2), (4, 0), (6, 0))[rng.integers(6)]
        return bcube(ports, levels)
    if kind < 0.4:
        rail = float(rng.choice([12.5e9, 25e9, 50e9]))
        nodes, gpus = int(rng.integers(2, 4)), int(rng.integers(2, 5))
        return dgx(nodes, gpus, rail * float(rng.choice([2, 3, 6, 12, 18])), rail)
    return random_heterogeneous(rng, max_servers=MOST_SERVERS)


class Mixture:
    """An endless, seeded sequence of lessons; lesson i is the same in every run with the same seed.

    ``source``: "default", "bcube" (BCube(2,1), (3,1), (4,1) alone) or the user's topologies. Raises InputError for
    another name, no network, and networks of one participant. ``flow_share``: part of the lessons with in-flight flows.
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
        if self._source == "default":
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
        flows = NO_FLOWS
        if rng.random() < self._flow_share and paths.num_paths:
            flows = draw_flows(topology, paths, MOST_FLOWS, bound, rng)
        shrunk = 1.0
        if rng.random() < SMALL_SHARE and flows is NO_FLOWS:
            shrunk = 2.0 ** -float(rng.uniform(2.0, 10.0))
        packing_seed = int(rng.integers(2**31))
        message = MESSAGE_BYTES * shrunk
        instance = Instance(topology, message, chunks_per_server, packing_seed, paths, flows)
        lesson = Lesson(instance, bound * shrunk)
        self._cache[index] = lesson
        return lesson
