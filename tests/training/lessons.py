"""Small networks to learn on, with a known optimum, and lessons on given networks."""

import numpy as np

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Instance
from gnnsched.collective.decode.linear import PRIOR_CHUNK, PRIOR_PATH
from gnnsched.collective.decode.presets import constant_scores
from gnnsched.collective.decode.problem import CHUNK_FEATURES
from gnnsched.topology import Topology
from gnnsched.topology.builder import NetworkBuilder
from gnnsched.training.mixture import MESSAGE_BYTES, Lesson


def triangle() -> Topology:
    """Two fast cables and one ten times slower.

    With one chunk per server the best is to leave the slow cable idle: both others' chunks reach servers 1 and 2 over
    a fast cable in two steps. The bound is 2 chunks over 11 units of capacity, so the best ratio is 1.1; a
    chunk over the slow cable makes it 5.5.
    """
    builder = NetworkBuilder("triangle", "test")
    for i in range(3):
        builder.server(i)
    for one, other, bandwidth in ((0, 1, 10e9), (0, 2, 10e9), (1, 2, 1e9)):
        builder.cable(one, other, bandwidth, 0.0)
    return builder.build()


def two_servers() -> Topology:
    """One cable: an episode of one event."""
    builder = NetworkBuilder("two", "test")
    builder.cable(builder.server("a"), builder.server("b"), 1e9, 0.0)
    return builder.build()


def lesson_of(topology: Topology, chunks_per_server: int = 2) -> Lesson:
    """A lesson without flows."""
    instance = Instance(topology, MESSAGE_BYTES, chunks_per_server)
    return Lesson(instance, all_gather_bound(topology, MESSAGE_BYTES))


def prior_scores(instance: Instance) -> Scores:
    """The prior, not the tuned weights: its samples differ from one another whatever the tuning."""
    split = len(CHUNK_FEATURES)
    path, chunk = np.array(PRIOR_PATH), np.array(PRIOR_CHUNK)
    return constant_scores(instance, path, chunk[:split], chunk[split:])
