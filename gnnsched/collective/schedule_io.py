"""Schedules on disk: a JSON contract for other programs, and the same columns as npz for large schedules.

The JSON object (units are SI; links are directed; ``end_s`` is the arrival)::

    {"format": "gnnsched-schedule/1",
     "topology": {"name": str, "fingerprint": str},
     "message_bytes": number, "chunks": int, "participants": [id, ...], "roots": [id per chunk],
     "links": [[source id, target id, bytes/s, seconds], ...],
     "transfers": {"phase": ["reduce" | "broadcast", ...], "chunk": [int, ...], "source": [id, ...],
                   "target": [id, ...], "path": [[index into links, ...], ...], "rate_Bps": [number, ...],
                   "start_s": [number, ...], "end_s": [number, ...], "aborted": [bool, ...]},
     "in_flight": [{"path": [index into links, ...], "rate_Bps": number, "since_s": number, "until_s": number | null},
                   ...],
     "ready_s": [[id, number], ...],
     "planner": {"name": str, ...}}

``in_flight``: flows beside which the schedule runs (null: without end), ``ready_s``: servers whose own contribution is
there late only, ``lost``: ids of participants that failed under way; all may be left out. ``aborted``: transfers that
delivered nothing, as a failure cut them short at ``end_s`` or they went to a server that was lost; absent: none.

Loading checks that the file can be read as a schedule of the topology at hand. Whether the schedule is right
is for ``verify`` to say: a file with wrong times or missing transfers loads.
"""

import io
import os
import zipfile
import zlib
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.node_ids import id_index
from gnnsched.collective.schedule import PHASES, Schedule, Transfers
from gnnsched.collective.schedule_header import (
    FORMAT,
    Header,
    Index,
    check_range,
    header_of,
    indices,
    match_header,
    read_surroundings,
    with_its_participants,
)
from gnnsched.topology import InputError, Topology
from gnnsched.topology.files import read_bytes, write_atomically
from gnnsched.topology.network import portable_id

_JSON_DAMAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Kinds of numpy arrays that an npz file holds, by name.
_NPZ_KINDS = {"phase": "u", "chunk": "iu", "source": "iu", "target": "iu", "path_start": "iu"}
_NPZ_KINDS |= {"path_links": "iu", "header": "u", "nodes": "u", "rate": "f", "start": "f", "end": "f"}
_NPZ_DAMAGE = (ValueError, OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)

_Phase = Literal["reduce", "broadcast"]


class _Columns(msgspec.Struct, forbid_unknown_fields=True):
    phase: list[_Phase]
    chunk: list[Index]
    source: list[Any]
    target: list[Any]
    path: list[list[Index]]
    rate_Bps: list[float]
    start_s: list[float]
    end_s: list[float]
    aborted: list[bool] | None = None


class _File(Header, forbid_unknown_fields=True, kw_only=True):
    transfers: _Columns


def dump_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write ``schedule`` to ``path``, as JSON or npz by its suffix, never half. Floats keep every bit.

    Raises InputError for another suffix, for a place that cannot be written to and for node ids without a
    JSON form.
    """
    suffix = _suffix(Path(path))
    topology, transfers = schedule.topology, schedule.transfers
    ids = [portable_id(node) for node in topology.node_ids]
    header = header_of(schedule, ids)
    if suffix == ".json":
        flat, bounds = transfers.path_links.tolist(), transfers.path_start.tolist()
        header["transfers"] = {
            "phase": [PHASES[i] for i in transfers.phase.tolist()],
            "chunk": transfers.chunk.tolist(),
            "source": [ids[i] for i in transfers.source.tolist()],
            "target": [ids[i] for i in transfers.target.tolist()],
            "path": [flat[a:b] for a, b in pairwise(bounds)],
            "rate_Bps": transfers.rate.tolist(),
            "start_s": transfers.start.tolist(),
            "end_s": transfers.end.tolist(),
        }
        if transfers.aborted is not None:
            header["transfers"]["aborted"] = transfers.aborted.tolist()
        content = _encode(header, Path(path))
        write_atomically(path, lambda stream: stream.write(content))
        return
    columns = {
        "header": np.frombuffer(_encode(header, Path(path)), np.uint8),
        "nodes": np.frombuffer(msgspec.json.encode(ids), np.uint8),
        "phase": transfers.phase,
        "chunk": transfers.chunk,
        "source": transfers.source,
        "target": transfers.target,
        "path_start": transfers.path_start,
        "path_links": transfers.path_links,
        "rate": transfers.rate,
        "start": transfers.start,
        "end": transfers.end,
    }
    if transfers.aborted is not None:
        columns["aborted"] = transfers.aborted
    write_atomically(path, lambda stream: np.savez_compressed(stream, **columns))  # type: ignore[arg-type]


def load_schedule(path: str | os.PathLike[str], topology: Topology) -> Schedule:
    """Read the schedule in ``path`` (JSON or npz by its suffix) as a schedule of ``topology``.

    Nodes are matched by id and links by content (parallel cables in the order in which they appear), so the
    topology may list them in another order than the file; where other servers took part in it than the topology says,
    its own count. Raises InputError, one line that names the file
    and the element, for what is not a schedule file and for the schedule of another topology.
    """
    place = Path(path)
    read = _read_json if _suffix(place) == ".json" else _read_npz
    return read(place, read_bytes(place), topology)


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (".json", ".npz"):
        raise InputError(f"{path}: a schedule's name ends in .json or .npz; rename it")
    return suffix


def _encode(value: object, path: Path) -> bytes:
    def plain(part: object) -> object:
        if isinstance(part, np.generic):
            return part.item()
        if isinstance(part, np.ndarray):
            return part.tolist()
        raise InputError(
            f"{path}: planner: a {type(part).__name__} has no JSON form; use numbers and strings"
        )

    return msgspec.json.encode(value, enc_hook=plain)


def _read_json(path: Path, content: bytes, topology: Topology) -> Schedule:
    content = content.removeprefix(b"\xef\xbb\xbf")
    _check_format(path, content)
    try:
        file = msgspec.json.decode(content, type=_File)
    except _JSON_DAMAGE as error:
        raise InputError(f"{path}: not a schedule: {_one_line(error)}") from None
    topology = with_its_participants(path, file, topology)
    roots, link_map = match_header(path, file, topology)
    columns = file.transfers
    count = len(columns.phase)
    for name in _Columns.__struct_fields__:
        if getattr(columns, name) is not None and len(getattr(columns, name)) != count:
            raise InputError(
                f"{path}: transfers.{name} has {len(getattr(columns, name))} entries and transfers.phase "
                f"{count}; give one per transfer in every column"
            )
    index = id_index(topology)
    lengths = np.fromiter(map(len, columns.path), np.int64, count)
    path_start = np.concatenate(([0], np.cumsum(lengths)))
    transfers = Transfers(
        np.fromiter(map(PHASES.index, columns.phase), np.uint8, count),
        np.array(columns.chunk, np.int32),
        indices(path, "transfers.source", columns.source, index),
        indices(path, "transfers.target", columns.target, index),
        path_start,
        np.fromiter(chain.from_iterable(columns.path), np.int32, int(path_start[-1])),
        np.array(columns.rate_Bps, np.float64),
        np.array(columns.start_s, np.float64),
        np.array(columns.end_s, np.float64),
        None if columns.aborted is None else np.array(columns.aborted, bool),
    )
    return _finish(path, file, topology, roots, link_map, transfers)


def _read_npz(path: Path, content: bytes, topology: Topology) -> Schedule:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            missing = sorted(set(_NPZ_KINDS) - set(archive.files))
            if missing:
                raise InputError(f"{path}: not a schedule: array {missing[0]!r} is missing; write it again")
            columns = {name: archive[name] for name in _NPZ_KINDS}
            aborted = archive["aborted"] if "aborted" in archive.files else None
    except InputError:
        raise
    except _NPZ_DAMAGE:
        raise InputError(f"{path}: not an npz file, or a damaged one; write it again") from None
    for name, kind in _NPZ_KINDS.items():
        if columns[name].ndim != 1 or columns[name].dtype.kind not in kind:
            raise InputError(f"{path}: array {name!r} is no column of the right kind; write the file again")
    if aborted is not None and (aborted.dtype != bool or aborted.shape != columns["phase"].shape):
        raise InputError(f"{path}: array 'aborted' is no column of the right kind; write the file again")
    _check_format(path, columns["header"].tobytes())
    try:
        file = msgspec.json.decode(columns["header"].tobytes(), type=Header)
        nodes = msgspec.json.decode(columns["nodes"].tobytes(), type=list[Any])
    except _JSON_DAMAGE as error:
        raise InputError(f"{path}: not a schedule: {_one_line(error)}") from None
    topology = with_its_participants(path, file, topology)
    roots, link_map = match_header(path, file, topology)
    node_map = indices(path, "nodes", nodes, id_index(topology))
    count = len(columns["phase"])
    for name in ("chunk", "source", "target", "path_start", "rate", "start", "end"):
        wanted = count + (name == "path_start")
        if len(columns[name]) != wanted:
            raise InputError(f"{path}: array {name!r} has {len(columns[name])} entries, not {wanted}")
    check_range(path, "phase", columns["phase"], len(PHASES))
    for name in ("source", "target"):
        check_range(path, name, columns[name], len(nodes))
    path_start = columns["path_start"].astype(np.int64)
    if path_start[0] != 0 or (np.diff(path_start) < 0).any() or path_start[-1] != len(columns["path_links"]):
        raise InputError(f"{path}: array 'path_start' does not divide 'path_links'; write the file again")
    check_range(path, "path_links", columns["path_links"], len(file.links))
    check_range(path, "chunk", columns["chunk"], file.chunks)
    transfers = Transfers(
        columns["phase"].astype(np.uint8),
        columns["chunk"].astype(np.int32),
        node_map[columns["source"]],
        node_map[columns["target"]],
        path_start,
        columns["path_links"].astype(np.int32),
        columns["rate"].astype(np.float64),
        columns["start"].astype(np.float64),
        columns["end"].astype(np.float64),
        aborted,
    )
    return _finish(path, file, topology, roots, link_map, transfers)


def _finish(
    path: Path,
    file: Header,
    topology: Topology,
    roots: NDArray[np.int32],
    link_map: NDArray[np.int32],
    transfers: Transfers,
) -> Schedule:
    """Checks that both formats share, and the links' indices in the topology at hand."""
    check_range(path, "transfers.chunk", transfers.chunk, file.chunks)
    beyond = np.flatnonzero(transfers.path_links >= len(link_map))
    if len(beyond):
        transfer = int(np.searchsorted(transfers.path_start, beyond[0], side="right")) - 1
        raise InputError(
            f"{path}: transfers.path[{transfer}]: link {transfers.path_links[beyond[0]]} does not exist; "
            f"'links' has {len(link_map)} entries"
        )
    for name, column in (
        ("rate_Bps", transfers.rate),
        ("start_s", transfers.start),
        ("end_s", transfers.end),
    ):
        odd = np.flatnonzero(~np.isfinite(column))
        if len(odd):
            raise InputError(f"{path}: transfers.{name}[{odd[0]}] is {column[odd[0]]}; give a finite number")
    matched = link_map[transfers.path_links] if len(link_map) else transfers.path_links
    transfers = replace(transfers, path_links=matched)
    flows, ready = read_surroundings(path, file, topology, link_map)
    lost = tuple(sorted(indices(path, "lost", file.lost, id_index(topology)).tolist()))
    return Schedule(topology, file.message_bytes, roots, transfers, file.planner, flows, ready, lost)


def _check_format(path: Path, content: bytes) -> None:
    """Say what a foreign or newer file is before its structure is compared with ours."""

    class Tagged(msgspec.Struct):
        format: str = ""

    try:
        found = msgspec.json.decode(content, type=Tagged).format
    except _JSON_DAMAGE as error:
        raise InputError(f"{path}: not a schedule: {_one_line(error)}") from None
    if found != FORMAT:
        said = f"its format is {found!r}" if found else "it has no 'format'"
        raise InputError(f"{path}: not a schedule that this version reads: {said}, expected {FORMAT!r}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
