"""Types of options that several subcommands share, and the reading of their values."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from gnnsched.topology import Topology

NetworkFile = Positional[Annotated[Path, arg(metavar="TOPOLOGY")]]
NetworkFiles = Positional[Annotated[tuple[Path, ...], arg(metavar="TOPOLOGY")]]
ScheduleFile = Positional[Annotated[Path, arg(metavar="SCHEDULE")]]
Folder = Annotated[Path, arg(metavar="DIR")]
Checkpoint = Annotated[Path | None, arg(metavar="DIR")]
STDOUT = Path("-")


def message_bytes(text: str) -> int:
    """Bytes of ``--message-size``."""
    from gnnsched.topology import InputError
    from gnnsched.topology.units import parse_size

    try:
        return parse_size(text)
    except InputError as error:
        raise InputError(f"--message-size: {error}") from None


def taking_part(topology: "Topology", names: str | None) -> "Topology":
    """The topology with the participants of ``--participants``: ids, separated by commas."""
    from gnnsched.topology import InputError

    if names is None:
        return topology
    # Ids that are no strings are named as they are written.
    index = {str(node): i for i, node in enumerate(topology.node_ids)}
    chosen = []
    for name in names.split(","):
        if name.strip() not in index:
            raise InputError(f"--participants: the topology has no node {name.strip()!r}; use its ids")
        chosen.append(index[name.strip()])
    return topology.with_participants(chosen)


def check_output(path: Path, suffixes: Sequence[str]) -> None:
    """Refuse, before any work, a file that could not be written in the end."""
    from gnnsched.topology import InputError

    if path.suffix.lower() not in suffixes:
        raise InputError(f"{path}: the name must end in {' or '.join(suffixes)}; rename it")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{path}: no folder {path.parent}; make it first")


def at_least_one(name: str, files: Sequence[object]) -> None:
    """Refuse an empty list of what the command is about."""
    from gnnsched.topology import InputError

    if not files:
        raise InputError(f"{name}: none given; name at least one")


def check_seed(seed: int) -> None:
    """Refuse seeds that no random generator takes."""
    from gnnsched.topology import InputError

    if not 0 <= seed < 2**63:
        raise InputError(f"--seed: {seed} is not in 0 ... 2^63 - 1; give a number such as 0")


def check_device(name: str) -> None:
    """Refuse a device that torch does not have here."""
    import torch

    from gnnsched.topology import InputError

    try:
        if name != "cpu" and re.fullmatch(r"cuda(:\d{1,3})?", name) is None:
            raise RuntimeError
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError):
        raise InputError(f"--device: {name!r} is not available here; use cpu") from None


def check_folder(path: Path) -> None:
    """Refuse, before any work, an output folder that a file is in the way of."""
    from gnnsched.topology import InputError

    for place in (path, *path.parents):
        if os.path.exists(place):
            if not place.is_dir():
                raise InputError(f"{path}: cannot be made ({place} is a file); choose another folder")
            return


def make_folder(path: Path) -> None:
    """Make an output folder."""
    from gnnsched.topology import InputError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made ({error.strerror}); choose another folder") from None


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path | None) -> bool:
    """Write rows as a JSON list to the file ``path``, if any; "-" is the standard output, and returns True."""
    from gnnsched.topology.files import write_atomically

    text = json.dumps(rows, indent=1) + "\n"
    if path == STDOUT:
        print(text, end="")
        return True
    if path is not None:
        write_atomically(path, lambda stream: stream.write(text.encode()))
    return False


def check_rows_file(path: Path | None) -> None:
    """Refuse, before any work, a file that ``write_rows`` could not write."""
    if path is not None and path != STDOUT:
        check_output(path, (".json",))
