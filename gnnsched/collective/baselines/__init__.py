"""The classical AllReduce algorithms as schedules: flow trees with an order, list scheduled, then mirrored."""

from collections.abc import Callable

from gnnsched.collective.baselines.ring import ring
from gnnsched.collective.schedule import Schedule
from gnnsched.topology import Topology

CLASSICAL: dict[str, Callable[[Topology, float, int], Schedule]] = {
    "ring": ring,
}


def classical_schedule(
    name: str, topology: Topology, message_bytes: float, chunks_per_server: int
) -> Schedule:
    """The schedule of the classical algorithm ``name`` (a key of ``CLASSICAL``) with N * chunks_per_server chunks.

    Raises InputError for a message or chunk count that is not positive and where some participant cannot be
    reached.
    """
    return CLASSICAL[name](topology, message_bytes, chunks_per_server)


__all__ = ["CLASSICAL", "classical_schedule"]
