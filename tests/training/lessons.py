"""Small networks to learn on, with a known optimum."""

from gnnsched.topology import Topology
from gnnsched.topology.builder import NetworkBuilder


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
