"""Defaults and argument checks that the generators share."""

from numbers import Integral

from gnnsched.topology.errors import InputError

DEFAULT_BANDWIDTH = 12.5e9  # bytes/s: 100 Gbit/s
DEFAULT_LATENCY = 500e-9  # seconds
_MOST_SERVERS = 1_000_000


def at_least(family: str, minimum: int, **arguments: int) -> None:
    """Refuse arguments that are not whole numbers of at least ``minimum``."""
    for name, value in arguments.items():
        if not isinstance(value, Integral) or value < minimum:
            raise InputError(f"{family}: {name} is {value}; give a whole number of at least {minimum}")


def not_too_many(family: str, servers: int) -> None:
    """Refuse sizes that would exhaust memory; some families grow doubly exponentially."""
    if servers > _MOST_SERVERS:
        raise InputError(f"{family}: this would be more than {_MOST_SERVERS} servers; give smaller arguments")
