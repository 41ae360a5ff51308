"""Compiled orderings that verifier and simulator share: transfers per chunk and occupancies per link."""

from dataclasses import replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.schedule import REDUCE, Schedule, Transfers

# The types of a schedule's columns, as its class documents them.
_TYPES: dict[str, type[np.generic]] = {"phase": np.uint8, "chunk": np.int32, "source": np.int32}
_TYPES |= {"target": np.int32, "path_start": np.int64, "path_links": np.int32}
_TYPES |= {"rate": np.float64, "start": np.float64, "end": np.float64}


def read_only(schedule: Schedule) -> Schedule:
    """``schedule`` with read-only columns of the documented types, without a copy where they have them.

    numba compiles every kernel once per combination of types and writeability: with this there is one.
    """

    def frozen(column: NDArray[Any], kind: type[np.generic]) -> NDArray[Any]:
        view = np.ascontiguousarray(column, kind).view()
        view.setflags(write=False)
        return view

    columns = {name: frozen(getattr(schedule.transfers, name), kind) for name, kind in _TYPES.items()}
    aborted = schedule.transfers.aborted
    if aborted is not None:
        columns["aborted"] = frozen(aborted, np.bool_)
    return replace(schedule, roots=frozen(schedule.roots, np.int32), transfers=Transfers(**columns))


@njit(cache=True)
def group_by_key(keys: NDArray, order: NDArray, groups: int) -> tuple[NDArray, NDArray]:
    """Indices ``order`` sorted by ``keys`` in 0..groups-1, stable: (first position of each, indices)."""
    first = np.zeros(groups + 1, np.int64)
    for i in order:
        first[keys[i] + 1] += 1
    for g in range(groups):
        first[g + 1] += first[g]
    cursor = first[:-1].copy()
    grouped = np.empty(len(order), np.int64)
    for i in order:
        grouped[cursor[keys[i]]] = i
        cursor[keys[i]] += 1
    return first, grouped


@njit(cache=True)
def sort_groups(first: NDArray, grouped: NDArray, times: NDArray) -> None:
    """Sort every group of ``grouped`` by ``times``, in place and stable; sorted groups stay as they are."""
    for g in range(len(first) - 1):
        a, b = first[g], first[g + 1]
        ordered = True
        for k in range(a + 1, b):
            if times[grouped[k]] < times[grouped[k - 1]]:
                ordered = False
                break
        if not ordered:
            part = grouped[a:b].copy()
            grouped[a:b] = part[np.argsort(times[part], kind="mergesort")]


@njit(cache=True)
def occupancies(
    path_start: NDArray,
    path_links: NDArray,
    latency: NDArray,
    start: NDArray,
    order: NDArray,
    num_links: int,
) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Every (transfer, hop) as an occupancy of a link, each link's by the time at which they begin.

    ``order`` lists the transfers by start; ties keep its order. Returns (owner: transfer of each occupancy,
    offset: latency of the links before it, first: per link, grouped: occupancies by link and time). An
    occupancy's index is that of its link in ``path_links``.
    """
    hops = len(path_links)
    owner = np.empty(hops, np.int64)
    offset = np.empty(hops)
    begins = np.empty(hops)
    in_order = np.empty(hops, np.int64)
    position = 0
    for i in order:
        passed = 0.0
        for k in range(path_start[i], path_start[i + 1]):
            owner[k] = i
            offset[k] = passed
            begins[k] = start[i] + passed
            passed += latency[path_links[k]]
            in_order[position] = k
            position += 1
    first, grouped = group_by_key(path_links, in_order, num_links)
    sort_groups(first, grouped, begins)
    return owner, offset, first, grouped


@njit(cache=True)
def data_groups(
    phase: NDArray,
    chunk: NDArray,
    source: NDArray,
    target: NDArray,
    start: NDArray,
    end: NDArray,
    aborted: NDArray,
    order: NDArray,
    roots: NDArray,
    nodes: int,
    slack: float,
) -> tuple[NDArray, NDArray, int]:
    """What every transfer waits for, as planned: (group that it feeds, that it needs, number of groups).

    A group is data at one server: the partial sum that the next reduce transfer takes along, the final value
    at a root, or the first copy of a final value elsewhere. It is there when all transfers that feed it have
    arrived. -1: feeds or needs nothing; an ``aborted`` one neither.
    Arrivals within ``slack`` after a start count as in time.
    """
    first, starts = group_by_key(chunk, order, len(roots))
    ends = starts.copy()
    sort_groups(first, ends, end)
    feeds = np.full(len(chunk), -1, np.int64)
    needs = np.full(len(chunk), -1, np.int64)
    partial = np.empty(nodes, np.int64)
    copy = np.empty(nodes, np.int64)
    groups = 0
    for c in range(len(roots)):
        partial[:] = -1
        copy[:] = -1
        i = first[c]
        for j in range(first[c], first[c + 1]):
            arriving = ends[j]
            while i < first[c + 1] and start[starts[i]] + slack < end[arriving]:
                sent = starts[i]
                i += 1
                s = source[sent]
                if aborted[sent]:
                    continue
                if phase[sent] == REDUCE:
                    needs[sent] = partial[s]
                    partial[s] = -1
                else:
                    needs[sent] = partial[s] if s == roots[c] else copy[s]
            if aborted[arriving]:
                continue
            held = partial if phase[arriving] == REDUCE else copy
            if held[target[arriving]] < 0:
                held[target[arriving]] = groups
                groups += 1
            elif phase[arriving] != REDUCE:
                continue  # a later copy of what is there already holds nobody up
            feeds[arriving] = held[target[arriving]]
    return feeds, needs, groups
