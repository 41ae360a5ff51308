"""A second, slow referee: executes a schedule on numbers, in plain Python, with nothing of the package's."""

from hand_schedules import to_rows

from gnnsched.collective.schedule import REDUCE, Schedule


def is_right(schedule: Schedule) -> bool:
    """Whether the schedule is an AllReduce that its network can carry out."""
    rows = to_rows(schedule)
    makespan = max((row[-1] for row in rows), default=0.0)
    slack = 1e-9 * makespan
    return (
        all(_possible(schedule, row, slack) for row in rows)
        and _fits(schedule, rows, slack)
        and _sums(schedule, rows, slack)
    )


def _possible(schedule: Schedule, row: tuple, slack: float) -> bool:
    topology = schedule.topology
    _, _, source, target, path, rate, start, end = row
    if not path or source == target or topology.is_switch[source] or topology.is_switch[target]:
        return False
    at, delay = source, 0.0
    for link in path:
        if topology.link_source[link] != at or (at != source and not topology.is_switch[at]):
            return False
        if not 0 < rate <= topology.bandwidth[link] * (1 + 1e-9):
            return False
        at = topology.link_target[link]
        delay += topology.latency[link]
    return (
        at == target
        and start >= -slack
        and abs(start + delay + schedule.message_bytes / len(schedule.roots) / rate - end) <= slack
    )


def _fits(schedule: Schedule, rows: list[tuple], slack: float) -> bool:
    topology = schedule.topology
    busy: dict[int, list[tuple[float, float, float]]] = {}
    for *_, path, rate, start, _ in rows:
        for link in path:
            duration = schedule.message_bytes / len(schedule.roots) / rate
            busy.setdefault(link, []).append((start, start + duration, rate))
            start += topology.latency[link]
    for link, taken in busy.items():
        for moment, *_ in taken:
            inside = moment + slack
            if sum(r for a, b, r in taken if a <= inside < b - slack) > topology.bandwidth[link] * (1 + 1e-9):
                return False
    return True


def _sums(schedule: Schedule, rows: list[tuple], slack: float) -> bool:
    """Participant k holds (N+1)^k, so that the digits of a sum count each contribution."""
    people = schedule.topology.participants.tolist()
    value = {s: (len(people) + 1) ** k for k, s in enumerate(people)}
    total = sum(value.values())
    for chunk, root in enumerate(schedule.roots.tolist()):
        mine = [i for i, row in enumerate(rows) if row[1] == chunk]
        partial = {s: value.get(s, 0) for s in range(schedule.topology.num_nodes)}
        result: dict[int, int] = {}
        payload: dict[int, int] = {}
        events = [(rows[i][6] + slack, 1, i) for i in mine] + [(rows[i][7], 0, i) for i in mine]
        for _, starts, i in [(0.0, -1, -1), *sorted(events)]:
            phase, _, source, target = rows[i][:4] if i >= 0 else (-1, 0, 0, 0)
            if starts == 1 and phase == REDUCE:
                payload[i], partial[source] = partial[source], 0
                if payload[i] == 0:
                    return False
            elif starts == 1:
                payload[i] = result.get(source, 0)
                if payload[i] != total:
                    return False
            elif starts == 0 and phase == REDUCE:
                partial[target] += payload[i]
            elif starts == 0:
                result[target] = payload[i]
            if partial[root] == total:
                result[root], partial[root] = total, 0
        if any(result.get(s) != total for s in people):
            return False
    return True
