"""Jobs that share a network, from a JSON file.

::

    {"jobs": [
       {"name": "vision", "participants": ["server-0", "server-1", "server-4"], "message_size": "1GiB"},
       {"name": "speech", "participants": ["server-2", "server-4"], "message_size": "64MiB", "ready": "3ms"}
    ]}

``name``: letters, digits, ``-`` and ``_``, each once. ``participants``: ids of at least two servers; jobs may share
servers. ``ready``: from when on the job's contributions are there, default 0. Unknown keys are refused.
"""

import os
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gnnsched.collective.node_ids import hashable, id_index
from gnnsched.planning.jobs import Job
from gnnsched.topology import InputError, Topology
from gnnsched.topology.files import read_bytes
from gnnsched.topology.units import parse_latency, parse_size


class _Job(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: str
    participants: list[Any]
    message_size: str | int
    ready: str | int | float | UnsetType = UNSET


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    jobs: list[_Job]


def load_jobs(path: str | os.PathLike[str], topology: Topology) -> list[Job]:
    """The jobs in the file ``path``. Raises InputError, one line that names the file and the element."""
    place = Path(path)
    try:
        file = msgspec.json.decode(read_bytes(place).removeprefix(b"\xef\xbb\xbf"), type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{place}: {' '.join(str(error).split())}; see gnnsched schedule --help") from None
    if not file.jobs:
        raise InputError(f"{place}: jobs: none given; name at least one")
    index = id_index(topology)
    jobs: list[Job] = []
    for i, job in enumerate(file.jobs):
        where = f"{place}: jobs[{i}]"
        if re.fullmatch(r"[\w-]{1,64}", job.name) is None or job.name in {other.name for other in jobs}:
            raise InputError(
                f"{where}.name: {job.name!r} is no name, or not the first of it; use letters, digits, - and _"
            )
        members = []
        for k, node in enumerate(job.participants):
            try:
                members.append(index[hashable(node)])
            except (KeyError, TypeError):
                raise InputError(
                    f"{where}.participants[{k}]: the topology has no node {node!r}; use its ids"
                ) from None
            if topology.is_switch[members[-1]]:
                raise InputError(f"{where}.participants[{k}]: {node!r} is a switch; name servers")
        if len(set(members)) != len(members) or len(members) < 2:
            raise InputError(f"{where}.participants: give at least two servers, each once")
        try:
            size = parse_size(job.message_size)
            ready = 0.0 if job.ready is UNSET else parse_latency(job.ready)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        jobs.append(Job(job.name, tuple(members), float(size), ready))
    return jobs
