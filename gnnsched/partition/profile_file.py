"""PipeDream's text profiles: reading with every line checked, and writing.

A node line is ``node<ID> -- <op> -- forward_compute_time=.., backward_compute_time=.., activation_size=..,
parameter_size=..``, where a bracketed activation list is summed; an edge line is a tab and ``node<U> -- node<V>``.
Times are milliseconds, sizes bytes (Narayanan et al., SOSP 2019, whose profiler writes these files).
"""

import os
import re
from pathlib import Path

import numpy as np

from gnnsched.partition.job_graph import JobProfile
from gnnsched.topology.errors import InputError, shown, unknown_key
from gnnsched.topology.files import read_bytes, write_atomically

# Seconds of one unit of time in a file. ddls takes the same numbers for seconds (see ``units``).
MILLISECONDS = 1e-3
FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
# No time or size is longer: what is beyond is a mistake, and would not be finite in sums.
MOST = 1e18
# Written by PipeDream's partitioner into some files; nothing here depends on it.
_IGNORED = ("stage_id",)
_NODE = re.compile(r"node([0-9]{1,9})")
_SEPARATOR = " -- "


def read_profile(path: str | os.PathLike[str], time_unit: float = MILLISECONDS) -> JobProfile:
    """The job in a PipeDream profile, ``time_unit`` seconds to its unit of time.

    Raises InputError, naming line and field, for anything that is no such profile: an unknown or missing field, a
    time or size that is negative or no number, ids with gaps or twice, an edge to a node that is not there, a cycle.
    """
    source = Path(path)
    try:
        text = read_bytes(source).decode()
    except UnicodeDecodeError:
        raise InputError(f"{source}: not UTF-8 text; write the profile again") from None
    names: dict[int, str] = {}
    values: dict[int, list[float]] = {}
    line_of: dict[int, int] = {}
    edges: dict[tuple[int, int], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{source}: line {number}"
        if line[0] in "\t ":
            edge = _edge(line, where)
            if edge in edges:
                raise InputError(
                    f"{where}: edge node{edge[0]} -- node{edge[1]} is already on line {edges[edge]}; remove one"
                )
            edges[edge] = number
            continue
        node, name, numbers = _node(line, where)
        if node in names:
            raise InputError(f"{where}: node{node} is already on line {line_of[node]}; give each its own id")
        names[node], values[node], line_of[node] = name, numbers, number
    count = len(names)
    if not count:
        raise InputError(f"{source}: no node line; expected node1 -- <op> -- {FIELDS[0]}=..., and so on")
    for node, number in line_of.items():
        if not 1 <= node <= count:
            missing = next(i for i in range(1, count + 1) if i not in names)
            raise InputError(
                f"{source}: line {number}: node{node}: ids have a gap, node{missing} is missing; "
                f"number the {count} nodes 1 to {count}"
            )
    for (tail, head), number in edges.items():
        for end in (tail, head):
            if end not in names:
                raise InputError(
                    f"{source}: line {number}: edge node{tail} -- node{head}: there is no node{end}; "
                    "add its line or remove the edge"
                )
    order = range(1, count + 1)
    columns = np.array([values[i] for i in order], float).T
    profile = JobProfile(
        name=source.stem,
        op_names=tuple(names[i] for i in order),
        forward_time=columns[0] * time_unit,
        backward_time=columns[1] * time_unit,
        activation_bytes=columns[2],
        parameter_bytes=columns[3],
        edges=np.array(sorted(edges), np.int64).reshape(-1, 2) - 1,
        lines=tuple(line_of[i] for i in order),
        file=str(source),
    )
    cycle = profile.find_cycle()
    if cycle:
        tail, head = cycle[0] + 1, cycle[1] + 1
        raise InputError(
            f"{source}: line {edges[tail, head]}: edge node{tail} -- node{head} closes a cycle; remove it"
        )
    if not profile.forward_time.sum() + profile.backward_time.sum() > 0:
        raise InputError(
            f"{source}: line {line_of[1]}: {FIELDS[0]}: no op takes any time; profile the model again"
        )
    return profile


def _edge(line: str, where: str) -> tuple[int, int]:
    ends = [_NODE.fullmatch(part.strip()) for part in line.strip().split(_SEPARATOR)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        raise InputError(f"{where}: {shown(line.strip())} is no edge; write a tab and node<U> -- node<V>")
    return int(ends[0][1]), int(ends[1][1])


def _node(line: str, where: str) -> tuple[int, str, list[float]]:
    parts = line.strip().split(_SEPARATOR)
    match = _NODE.fullmatch(parts[0])
    if match is None or len(parts) < 3:
        raise InputError(
            f"{where}: {shown(line.strip())} is no node; write node<ID> -- <op> -- {FIELDS[0]}=..., and so on"
        )
    found: dict[str, float] = {}
    for field in parts[2].split(", "):
        key, equals, value = field.partition("=")
        key = key.strip()
        if not equals or key not in FIELDS:
            raise InputError(f"{where}: {parts[0]}: {unknown_key(key, FIELDS)}")
        if key in found:
            raise InputError(f"{where}: {parts[0]}: {key} is given twice; remove one")
        found[key] = _number(value.strip(), key, f"{where}: {parts[0]}: {key}")
    for extra in parts[3:]:
        key = extra.partition("=")[0].strip()
        if key not in _IGNORED:
            raise InputError(f"{where}: {parts[0]}: {unknown_key(key, (*FIELDS, *_IGNORED))}")
    for key in FIELDS:
        if key not in found:
            raise InputError(f"{where}: {parts[0]}: {key} is missing; add {key}=<number>")
    return int(match[1]), parts[1], [found[key] for key in FIELDS]


def _number(text: str, key: str, where: str) -> float:
    if key == "activation_size" and text.startswith("[") and text.endswith("]"):
        parts = text[1:-1].split(";")
    else:
        parts = [text]
    total = 0.0
    for part in parts:
        try:
            value = float(part)
        except ValueError:
            raise InputError(f"{where}: {shown(part.strip())} is no number; give one of at least 0") from None
        if not 0.0 <= value <= MOST:
            raise InputError(
                f"{where}: {part.strip()} is negative, not finite or too large; give a number from 0 to {MOST:g}"
            )
        total += value
    return total


def write_profile(profile: JobProfile, path: str | os.PathLike[str]) -> None:
    """Write ``profile`` as PipeDream does, times in milliseconds with a nanosecond's digits, sizes in bytes."""
    lines = [
        f"node{i + 1}{_SEPARATOR}{profile.op_names[i]}{_SEPARATOR}"
        f"forward_compute_time={profile.forward_time[i] / MILLISECONDS:.6f}, "
        f"backward_compute_time={profile.backward_time[i] / MILLISECONDS:.6f}, "
        f"activation_size={profile.activation_bytes[i]:.3f}, parameter_size={profile.parameter_bytes[i]:.3f}\n"
        for i in range(profile.num_ops)
    ]
    lines += [f"\tnode{tail + 1}{_SEPARATOR}node{head + 1}\n" for tail, head in profile.edges]
    write_atomically(path, lambda stream: stream.write("".join(lines).encode()))
