"""Decides whether a schedule is a right AllReduce, whoever made it.

Contributions are followed symbolically. For each chunk every participant's contribution is in exactly one
place: held by a server, or on the way in a reduce transfer, which takes along everything that its source
holds when it starts. A reduce transfer that finds nothing to take (it comes too early, or the contribution
was sent before and would be counted twice) is a fault. The root has the final value once all N contributions
are there; from then on it, and every server that a broadcast has reached, may broadcast. A second
copy of a final value changes nothing and is allowed. Because contributions never overlap, their number per
server is all that the walk needs to keep. An aborted transfer leaves what it would have taken along where it is. A
participant that was lost under way need not contribute nor receive.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.ordering import group_by_key, occupancies, read_only, sort_groups
from gnnsched.collective.schedule import BROADCAST, PHASES, REDUCE, Schedule

# Reasons why the walk over one chunk stops.
_RIGHT, _EMPTY, _NOT_FINAL, _STRANDED, _MISSING = range(5)


@dataclass(frozen=True)
class Verdict:
    """``ok``, or the first ``fault`` and where it is, as one sentence."""

    ok: bool
    fault: str | None = None


def verify(schedule: Schedule, tolerance: float = 1e-9) -> Verdict:
    """Judge ``schedule``; a wrong one gives a verdict with its first fault, never an exception.

    Checked, in this order: columns and indices; each transfer by itself (a path of the topology from a server
    to another through switches, a rate that its links have, no time before 0, end = start + path latency +
    chunk bytes / rate); no link above its bandwidth at any moment; data (module docstring), and the final
    value of every chunk at every participant.

    ``tolerance`` is relative. Times agree within ``tolerance`` times the makespan, or half the shortest
    transfer where that is less, so that it can never turn the order of cause and effect around; rates within
    ``tolerance`` of the bandwidth; and all that a link carries too much may add up to its bandwidth during
    ``tolerance`` times the makespan, which rounding stays far below.
    """
    fault = _malformed(schedule)
    if fault is None:
        schedule = read_only(schedule)
        if len(schedule.transfers):
            fault = _odd_transfer(schedule, tolerance) or _overload(schedule, tolerance)
    if fault is None:
        fault = _wrong_data(schedule, tolerance)
    return Verdict(fault is None, fault)


def _name(schedule: Schedule, node: int) -> str:
    return repr(schedule.topology.node_ids[node])


def _describe(schedule: Schedule, i: int) -> str:
    """A transfer for a person: what, from where to where, when."""
    t = schedule.transfers
    phase = PHASES[t.phase[i]] if t.phase[i] < len(PHASES) else f"phase {t.phase[i]}"
    return (
        f"transfer {i} ({phase} of chunk {t.chunk[i]} from {_name(schedule, t.source[i])} to "
        f"{_name(schedule, t.target[i])}, {t.start[i]:.9g} s to {t.end[i]:.9g} s)"
    )


def _malformed(schedule: Schedule) -> str | None:
    """Columns of unequal length and indices that point nowhere, before anything follows them."""
    t, topology = schedule.transfers, schedule.topology
    count = len(t)
    columns: dict[str, NDArray[Any]] = {"phase": t.phase, "source": t.source, "target": t.target}
    columns |= {"rate": t.rate, "start": t.start, "end": t.end, "aborted": t.lost}
    for name, column in columns.items():
        if len(column) != count:
            return f"column {name!r} has {len(column)} entries for {count} transfers"
    starts = t.path_start
    if len(starts) != count + 1 or starts[0] != 0 or (np.diff(starts) < 0).any():
        return "path_start does not divide path_links among the transfers"
    if starts[-1] != len(t.path_links):
        return "path_start does not divide path_links among the transfers"
    if not np.isfinite(schedule.message_bytes) or schedule.message_bytes <= 0:
        return f"the message has {schedule.message_bytes} bytes"
    if not schedule.num_chunks:
        return "no chunk: nothing of the message is reduced"
    limits: dict[str, tuple[NDArray[Any], int]] = {
        "phase": (t.phase, len(PHASES)),
        "chunk": (t.chunk, schedule.num_chunks),
        "source": (t.source, topology.num_nodes),
        "target": (t.target, topology.num_nodes),
    }
    for name, (column, limit) in limits.items():
        odd = np.flatnonzero((column < 0) | (column >= limit))
        if len(odd):
            return f"transfer {odd[0]}: {name} {column[odd[0]]} does not exist"
    odd = np.flatnonzero((t.path_links < 0) | (t.path_links >= topology.num_links))
    if len(odd):
        i = int(np.searchsorted(starts, odd[0], side="right")) - 1
        return f"transfer {i}: its path is not in the topology: no link {t.path_links[odd[0]]}"
    fault = _malformed_surroundings(schedule)
    if fault is not None:
        return fault
    for chunk, root in enumerate(schedule.roots.tolist()):
        if not 0 <= root < topology.num_nodes:
            return f"chunk {chunk}: root {root} does not exist"
        if topology.is_switch[root]:
            return f"chunk {chunk}: its root {_name(schedule, root)} is a switch, which holds nothing"
    return None


def _malformed_surroundings(schedule: Schedule) -> str | None:
    """Flows and ready times that say nothing."""
    flows, ready, topology = schedule.flows, schedule.ready, schedule.topology
    if len({len(flows.rate), len(flows.since), len(flows.until), len(flows.start) - 1}) > 1:
        return "the columns of its in-flight flows are of unequal length"
    if flows.start[0] != 0 or (np.diff(flows.start) < 0).any() or flows.start[-1] != len(flows.links):
        return "the links of its in-flight flows are not divided among them"
    odd = np.flatnonzero((flows.links < 0) | (flows.links >= topology.num_links))
    if len(odd):
        return f"in-flight flow {flows.crossing[odd[0]]}: no link {flows.links[odd[0]]}"
    odd = np.flatnonzero(
        ~(np.isfinite(flows.rate) & (flows.rate > 0) & np.isfinite(flows.since) & (flows.until > flows.since))
    )
    if len(odd):
        return f"in-flight flow {odd[0]}: its rate or its times are no positive numbers"
    if ready is not None:
        if len(ready) != topology.num_nodes:
            return f"it has {len(ready)} ready times for {topology.num_nodes} nodes"
        odd = np.flatnonzero(~(np.isfinite(ready) & (ready >= 0)))
        if len(odd):
            return f"the ready time of {_name(schedule, odd[0])} is {ready[odd[0]]} s"
    return None


def _time_slack(schedule: Schedule, tolerance: float) -> float:
    t = schedule.transfers
    return min(tolerance * schedule.makespan, 0.5 * float((t.end - t.start).min())) if len(t) else 0.0


def _odd_transfer(schedule: Schedule, tolerance: float) -> str | None:
    """The first transfer that is wrong by itself, whatever the others do."""
    t, topology = schedule.transfers, schedule.topology
    faults: list[tuple[int, str]] = []

    def note(wrong: NDArray[np.bool_], why: str) -> None:
        if wrong.any():
            faults.append((int(np.argmax(wrong)), why))

    note(~(np.isfinite(t.start) & np.isfinite(t.end) & np.isfinite(t.rate)), "a time or rate is no number")
    note(t.rate <= 0, "its rate is not positive")
    note(t.end <= t.start, "it ends before it starts")
    note(topology.is_switch[t.source], "its source is a switch, which holds nothing")
    note(topology.is_switch[t.target], "its target is a switch, which holds nothing")
    note(t.source == t.target, "it sends a server its own data")
    note(np.diff(t.path_start) == 0, "its path has no links")
    if not faults:
        begins, ends = t.path_start[:-1], t.path_start[1:] - 1
        leaves, enters = topology.link_source[t.path_links], topology.link_target[t.path_links]
        note(leaves[begins] != t.source, "its path does not begin at its source")
        note(enters[ends] != t.target, "its path does not end at its target")
        owner = np.repeat(np.arange(len(t)), np.diff(t.path_start))
        inside = np.flatnonzero(owner[:-1] == owner[1:])
        note(_any_per(owner[inside], enters[inside] != leaves[inside + 1], len(t)), "its path has a gap")
        note(
            _any_per(owner[inside], ~topology.is_switch[enters[inside]], len(t)),
            "its path passes through a server; that takes two transfers",
        )
        narrowest = np.minimum.reduceat(topology.bandwidth[t.path_links], begins)
        note(t.rate > narrowest * (1 + tolerance), "its rate is above the bandwidth of a link on its path")
        slack = _time_slack(schedule, tolerance)
        note(t.start < -slack, "it starts before time 0")
        delay = np.add.reduceat(topology.latency[t.path_links], begins)
        with np.errstate(over="ignore"):
            due = t.start + delay + schedule.chunk_bytes / t.rate
        off = np.where(t.lost, t.end - due, np.abs(t.end - due))
        note(off > slack, "its end is not start + path latency + chunk bytes / rate")
    if not faults:
        return None
    transfer, why = min(faults, key=lambda fault: fault[0])
    return f"{_describe(schedule, transfer)}: {why}"


def _any_per(owner: NDArray[np.int64], wrong: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    return np.bincount(owner[wrong], minlength=count) > 0


def _overload(schedule: Schedule, tolerance: float) -> str | None:
    """The link that is above its bandwidth first, and the transfers on it then."""
    t, topology, flows = schedule.transfers, schedule.topology, schedule.flows
    order = np.argsort(t.start, kind="stable")
    owner, offset, first, grouped = occupancies(
        t.path_start, t.path_links, topology.latency, t.start, order, topology.num_links
    )
    begin = t.start[owner] + offset
    end = begin + schedule.chunk_bytes / t.rate[owner]
    cut = t.lost[owner]
    end[cut] = np.maximum(begin[cut], np.minimum(end[cut], t.end[owner][cut]))
    rate = t.rate[owner]
    if flows.num_flows:
        # An in-flight flow occupies each of its links like a transfer, one without a number.
        crossing = flows.crossing
        owner = np.concatenate((owner, -1 - crossing))
        begin, end = (
            np.concatenate((own, of_flow[crossing]))
            for own, of_flow in ((begin, flows.since), (end, flows.until))
        )
        rate = np.concatenate((rate, flows.rate[crossing]))
        links = np.concatenate((t.path_links, flows.links))
        first, grouped = group_by_key(links, np.argsort(begin, kind="stable"), topology.num_links)
    when, link = _first_overload(
        first,
        grouped,
        begin,
        end,
        rate,
        topology.bandwidth,
        tolerance,
        tolerance * schedule.makespan,
    )
    if link < 0:
        return None
    here = grouped[first[link] : first[link + 1]]
    here = here[(begin[here] <= when) & (end[here] > when)]
    total = float(rate[here].sum())
    on = [_describe(schedule, i) if i >= 0 else f"in-flight flow {-1 - i}" for i in owner[here[:4]].tolist()]
    more = f" and {len(here) - 4} more" if len(here) > 4 else ""
    ends_of_link = [_name(schedule, node[link]) for node in (topology.link_source, topology.link_target)]
    return (
        f"link {' -> '.join(ends_of_link)} "
        f"carries {total:.6g} bytes/s of its {topology.bandwidth[link]:.6g} from {when:.9g} s on: "
        f"{', '.join(on)}{more}"
    )


@njit(cache=True)
def _first_overload(
    first: NDArray,
    grouped: NDArray,
    begin: NDArray,
    end: NDArray,
    rate: NDArray,
    bandwidth: NDArray,
    tolerance: float,
    slack: float,
) -> tuple[float, int]:
    """(time, link) of the earliest overload, (inf, -1) without one."""
    found, found_at = -1, np.inf
    for link in range(len(first) - 1):
        begins = grouped[first[link] : first[link + 1]]
        if len(begins) < 2:
            continue
        ends = begins[np.argsort(end[begins], kind="mergesort")]
        limit = bandwidth[link] * (1 + tolerance)
        load, last, excess, active, j = 0.0, 0.0, 0.0, 0, 0
        since = np.inf
        for i in begins:
            while True:
                closing = j < len(ends) and end[ends[j]] <= begin[i]
                now = end[ends[j]] if closing else begin[i]
                if load > limit:
                    since = min(since, last)
                    excess += (load - bandwidth[link]) * (now - last)
                last = now
                if not closing:
                    break
                load -= rate[ends[j]]
                active -= 1
                if active == 0:
                    load = 0.0  # rounding must not add up over a long schedule
                j += 1
            load += rate[i]
            active += 1
        while j < len(ends) and load > limit:
            since = min(since, last)
            excess += (load - bandwidth[link]) * (end[ends[j]] - last)
            last = end[ends[j]]
            load -= rate[ends[j]]
            j += 1
        if excess > slack * bandwidth[link] and since < found_at:
            found, found_at = link, since
    return found_at, found


def _wrong_data(schedule: Schedule, tolerance: float) -> str | None:
    """The first transfer of data that is not there, or the first chunk that does not reach everyone."""
    t, topology = schedule.transfers, schedule.topology
    slack = _time_slack(schedule, tolerance)
    fault, chunk, where, count = _walk_chunks(
        t.phase,
        t.chunk,
        t.source,
        t.target,
        t.start,
        t.end,
        t.lost,
        np.argsort(t.start, kind="stable"),
        schedule.roots,
        topology.is_participant,
        np.isin(np.arange(topology.num_nodes), schedule.lost),
        np.zeros(topology.num_nodes) if schedule.ready is None else schedule.ready,
        slack,
    )
    total = len(topology.participants) - len(set(schedule.lost))
    if fault == _RIGHT:
        return None
    if fault == _EMPTY:
        return (
            f"{_describe(schedule, where)}: its source holds no contribution to chunk {chunk} at its start: "
            "it has not arrived, or was sent on before and would be counted twice"
        )
    if fault == _NOT_FINAL:
        if t.source[where] == schedule.roots[chunk]:
            return (
                f"{_describe(schedule, where)}: the root of chunk {chunk} has {count} of {total} "
                "contributions at its start"
            )
        return f"{_describe(schedule, where)}: the final value of chunk {chunk} has not reached its source"
    root = _name(schedule, schedule.roots[chunk])
    if fault == _STRANDED:
        return (
            f"chunk {chunk}: {count} of {total} contributions are still at {_name(schedule, where)} at the "
            f"end and never reach the root {root}"
        )
    there = _name(schedule, where)
    return f"chunk {chunk}: its final value never reaches participant {there} from the root {root}"


@njit(cache=True)
def _walk_chunks(
    phase: NDArray,
    chunk: NDArray,
    source: NDArray,
    target: NDArray,
    start: NDArray,
    end: NDArray,
    aborted: NDArray,
    order: NDArray,
    roots: NDArray,
    is_participant: NDArray,
    failed: NDArray,
    ready: NDArray,
    slack: float,
) -> tuple[int, int, int, int]:
    """Follow the contributions chunk by chunk: (reason, chunk, transfer or node, contributions there)."""
    first, starts = group_by_key(chunk, order, len(roots))
    ends = starts.copy()
    sort_groups(first, ends, end)
    nodes = len(is_participant)
    total = 0
    for v in range(nodes):
        total += is_participant[v] and not failed[v]
    # Participants in the order in which their contributions are there.
    late = np.argsort(ready, kind="mergesort")
    held = np.empty(
        nodes, np.int64
    )  # contributions that wait at each server, of those that must be in the sum
    other = np.empty(nodes, np.int64)  # ... and of failed servers, which may be in it
    final = np.empty(nodes, np.bool_)
    carried = np.zeros(len(chunk), np.int64)  # contributions that each reduce transfer takes along
    carried_other = np.zeros(len(chunk), np.int64)
    for c in range(len(roots)):
        root = roots[c]
        for v in range(nodes):
            held[v] = 0
            other[v] = 0
            final[v] = False
        i, j, k = first[c], first[c], 0
        while True:
            moment = np.inf if i == first[c + 1] else start[starts[i]] + slack
            while k < nodes and ready[late[k]] <= moment:
                if failed[late[k]]:
                    other[late[k]] += is_participant[late[k]]
                else:
                    held[late[k]] += is_participant[late[k]]
                k += 1
            if held[root] == total:
                final[root] = True
                other[root] = 0
                held[root] = 0  # reducing a final value once more would count it twice
            if j == first[c + 1]:
                break
            # Arrivals come before starts of the same time. All starts end before the last arrival.
            if i == first[c + 1] or end[ends[j]] <= start[starts[i]] + slack:
                transfer = ends[j]
                j += 1
                if aborted[transfer]:
                    continue
                if phase[transfer] == REDUCE:
                    held[target[transfer]] += carried[transfer]
                    other[target[transfer]] += carried_other[transfer]
                else:
                    final[target[transfer]] = True
                continue
            transfer = starts[i]
            i += 1
            s = source[transfer]
            if aborted[transfer]:
                continue  # what it takes along stays where it is, and a failed source takes its data with it
            if phase[transfer] == BROADCAST:
                if not final[s]:
                    return _NOT_FINAL, c, transfer, held[s]
            elif held[s] + other[s] == 0:
                return _EMPTY, c, transfer, 0
            else:
                carried[transfer], carried_other[transfer] = held[s], other[s]
                held[s], other[s] = 0, 0
        if not final[root]:
            for v in range(nodes):
                if held[v] > 0 and v != root:
                    return _STRANDED, c, v, held[v]
        for v in range(nodes):
            if is_participant[v] and not final[v] and not failed[v]:
                return _MISSING, c, v, 0
    return _RIGHT, -1, -1, 0
