"""The simulator's definition in plain Python, without its data structures: repeat until nothing moves."""

from hand_schedules import to_rows

from gnnsched.collective.schedule import REDUCE, Schedule
from gnnsched.topology import Topology


def replay(schedule: Schedule, network: Topology) -> list[float]:
    """Starts of all transfers."""
    rows = to_rows(schedule)
    size = schedule.message_bytes / max(1, len(schedule.roots))
    slack = 1e-9 * schedule.makespan

    def offsets(topology: Topology, path: list[int]) -> list[float]:
        return [sum(topology.latency[path[:k]]) for k in range(len(path) + 1)]

    rates = [min(row[5], *(network.bandwidth[e] for e in row[4])) for row in rows]
    planned = [dict(zip(row[4], (row[6] + x for x in offsets(schedule.topology, row[4])))) for row in rows]
    delays = [offsets(network, row[4]) for row in rows]
    starts = [row[6] for row in rows]
    waits = [_feeders(rows, i, schedule, slack) for i in range(len(rows))]

    def begin(i: int, link: int) -> float:
        return starts[i] + delays[i][rows[i][4].index(link)]

    moved = True
    while moved:
        moved = False
        for i, row in enumerate(rows):
            t = starts[i]
            for j in waits[i]:
                t = max(t, starts[j] + delays[j][-1] + size / rates[j])
            for link, offset in zip(row[4], delays[i]):
                before = [
                    j
                    for j in range(len(rows))
                    if j != i and link in rows[j][4] and (planned[j][link], j) < (planned[i][link], i)
                ]
                at = max([t + offset] + [begin(j, link) for j in before])
                ends = sorted(begin(j, link) + size / rates[j] for j in before)
                for moment in [at, *(end for end in ends if end > at)]:
                    at = moment
                    busy = sum(rates[j] for j in before if begin(j, link) + size / rates[j] > at + 1e-12)
                    if busy + rates[i] <= network.bandwidth[link] * (1 + 1e-9):
                        break
                t = max(t, at - offset)
            if t > starts[i] + 1e-12:
                starts[i], moved = t, True
    return starts


def _feeders(rows: list[tuple], i: int, schedule: Schedule, slack: float) -> list[int]:
    """Transfers whose arrival transfer ``i`` waits for."""
    phase, chunk, source, *_, start, _ = rows[i]
    arrived = [
        j for j, row in enumerate(rows) if row[1] == chunk and row[3] == source and row[7] <= start + slack
    ]
    if phase == REDUCE or source == schedule.roots[chunk]:
        sent = [
            row[6]
            for j, row in enumerate(rows)
            if row[0] == REDUCE and row[1] == chunk and row[2] == source and row[6] < start
        ]
        taken = max(sent, default=-1.0)
        return [j for j in arrived if rows[j][0] == REDUCE and rows[j][7] > taken + slack]
    copies = [j for j in arrived if rows[j][0] != REDUCE]
    return [min(copies, key=lambda j: rows[j][7])]
