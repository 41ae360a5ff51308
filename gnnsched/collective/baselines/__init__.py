"""The classical AllReduce algorithms as schedules: flow trees with an order, list scheduled and mirrored."""

from collections.abc import Callable

from gnnsched.collective.baselines.double_tree import double_tree
from gnnsched.collective.baselines.halving_doubling import halving_doubling
from gnnsched.collective.baselines.parameter_server import parameter_server, sharded_parameter_server
from gnnsched.collective.baselines.ring import ring
from gnnsched.collective.schedule import Schedule
from gnnsched.topology import Topology

CLASSICAL: dict[str, Callable[[Topology, float, int], Schedule]] = {
    "ring": ring,
    "parameter_server": parameter_server,
    "sharded_parameter_server": sharded_parameter_server,
    "double_tree": double_tree,
    "halving_doubling": halving_doubling,
}


def classical_schedule(
    name: str, topology: Topology, message_bytes: float, chunks_per_server: int
) -> Schedule:
    """The schedule of the algorithm ``name`` (a key of ``CLASSICAL``) with N * ``chunks_per_server`` chunks.

    Every one is defined for any number of participants; one alone needs no transfers. Raises InputError for a
    message or chunk count that is not positive and where some participant cannot be reached.
    """
    return CLASSICAL[name](topology, message_bytes, chunks_per_server)


__all__ = ["CLASSICAL", "classical_schedule"]
