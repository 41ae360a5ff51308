"""Plain references of what the partitioning computes in compiled code: a training step, an episode, a decision."""

from collections.abc import Callable
from fractions import Fraction
from math import ceil, inf, log1p, log2

import numpy as np

from gnnsched.partition.features import SHOWN_ARRIVALS, SHOWN_DEGREES
from gnnsched.partition.placement import QUANTUM, degrees_of_ops, place
from gnnsched.partition.step_simulation import StepProblem
from gnnsched.partition.workload import Arrivals
from gnnsched.partition.world import World

# A training step


def step(problem: StepProblem) -> tuple[float, float, float]:
    """Seconds of the step, of computing and of communicating, event by event in exact numbers.

    All parts that run and all messages on their way lose the least time that any of them has left, over and over.
    """
    parts = len(problem.worker)
    left = [Fraction(float(seconds)) for seconds in problem.duration]
    out: list[list[tuple[int, Fraction]]] = [[] for _ in range(parts)]
    waiting = [0] * parts
    for edge, (tail, head) in enumerate(zip(problem.tail.tolist(), problem.head.tolist())):
        sources = range(problem.first[tail], problem.first[tail + 1])
        targets = range(problem.first[head], problem.first[head + 1])
        for k, source in enumerate(sources):
            for i, target in enumerate(targets):
                place = problem.delay_start[edge] + k * len(targets) + i
                out[source].append((target, Fraction(float(problem.delay[place]))))
                waiting[target] += 1
    unfinished = set(range(parts))
    # Messages on their way: seconds left, and the part that they go to (-1: a weight synchronisation).
    flying: list[tuple[Fraction, int]] = []
    time, computing, communicating = Fraction(0), Fraction(0), Fraction(0)
    while unfinished or flying:
        running: dict[int, int] = {}
        # The shortest run time first, by number where several are as short.
        for part in sorted(unfinished, key=lambda p: (problem.duration[p], p)):
            if waiting[part] == 0:
                running.setdefault(int(problem.worker[part]), part)
        lapse = min([left[part] for part in running.values()] + [seconds for seconds, _ in flying])
        time += lapse
        computing += lapse if running else 0
        communicating += lapse if flying else 0
        flying = [(seconds - lapse, target) for seconds, target in flying]
        for seconds, target in flying:
            if seconds == 0 and target >= 0:
                waiting[target] -= 1
        flying = [message for message in flying if message[0] > 0]
        for part in running.values():
            left[part] -= lapse
            if left[part] == 0:
                unfinished.remove(part)
                flying += [(seconds, target) for target, seconds in out[part]]
                flying.append((Fraction(float(problem.sync[part])), -1))
    return float(time), float(computing), float(communicating)


# A decision


class Plan:
    """What becomes of a job at one degree: workers held and completion time (s)."""

    def __init__(self, held: set[int], time: float) -> None:
        self.held, self.time = held, time


def plan(world: World, release: np.ndarray, now: float, m: int, j: int) -> Plan | None:
    """Where a job goes at degree number ``j``; None where there is no room."""
    tables, cluster = world.tables, world.cluster
    known = tables.degree.tolist()
    largest = int(tables.largest[m, j])
    blocks = cluster.blocks(known[largest])
    free = release <= now
    row = next((i for i, block in enumerate(blocks.workers) if free[block].all()), None)
    if row is None:
        return None
    held = set(blocks.workers[row].tolist())
    if world.holding == "faithful":
        graph = world.models[m]
        split = degrees_of_ops(graph, known[j], QUANTUM * world.time_unit, known)
        found = place(graph, split, cluster, free)
        if found is None:
            return None
        held = set(found.held.tolist())
    return Plan(held, float(tables.jct[m, j, blocks.kind[row]]))


def fits(world: World, found: Plan | None, m: int, beta: float) -> bool:
    """Whether a job meets its limit."""
    return found is not None and found.time <= beta * world.models[m].sequential_time * (1 + 1e-9)


Decide = Callable[[np.ndarray, float, int, float, float], int | None]


def episode(
    world: World, arrivals: Arrivals, decide: Decide, chance: np.ndarray
) -> list[tuple[int, float, int]]:
    """Per arrival degree, completion time (0: blocked) and workers held; ``decide`` returns a degree's number."""
    release = np.zeros(world.cluster.num_workers)
    rows = []
    for i in range(len(arrivals)):
        now, m, beta = i * arrivals.interarrival, int(arrivals.model[i]), float(arrivals.beta[i])
        j = decide(release, now, m, beta, float(chance[i]))
        if j is None:
            rows.append((0, 0.0, 0))
            continue
        found = plan(world, release, now, m, j)
        degree = int(world.tables.degree[j])
        if found is None or not fits(world, found, m, beta):
            rows.append((degree, 0.0, 0))
            continue
        release[list(found.held)] = now + found.time
        rows.append((degree, found.time, len(found.held)))
    return rows


# What is seen of a decision


def choice_rows(
    world: World,
    release: np.ndarray,
    now: float,
    m: int,
    beta: float,
    betas: list[float],
    sequentials: list[float],
    interarrival: float,
    horizon: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Features and mask of a decision, one by one; ``betas`` and ``sequentials`` of all arrivals up to this one."""
    tables = world.tables
    known = tables.degree.tolist()
    sequential = world.models[m].sequential_time
    limit = beta * sequential
    aligned = {d: _filling(world, d) for d in SHOWN_DEGREES}
    rows, mask = [], []
    for j in range(-1, len(known)):
        found = Plan(set(), 0.0) if j < 0 else plan(world, release, now, m, j)
        legal = j < 0 or (fits(world, found, m, beta) if tables.told else found is not None)
        mask.append(legal)
        if not legal or found is None:
            rows.append(np.zeros(2 * len(SHOWN_ARRIVALS) * len(SHOWN_DEGREES) + 14))
            continue
        time = found.time if tables.told or j < 0 else limit
        after = release.copy()
        after[list(found.held)] = now + time
        ahead = [now + (t + 1e-9) * interarrival for t in SHOWN_ARRIVALS]
        row = []
        for moment in ahead:
            for d in SHOWN_DEGREES:
                own = [bool((after[block] <= moment).all()) for block in aligned[d]]
                row.append(sum(own) / len(own) if own else 0.0)
        for moment in ahead:
            for d in SHOWN_DEGREES:
                blocks = world.cluster.blocks(d).workers if d in known else []
                row.append(float(any((after[block] <= moment).all() for block in blocks)))
        workers = world.cluster.num_workers
        row += (
            [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
            if j < 0
            else [
                0.0,
                log2(known[j]) / 4,
                time / limit,
                log2(1 + time / interarrival) / 4,
                len(found.held) / workers,
                len(found.held) * time / (workers * interarrival),
            ]
        )
        # Four arrivals of mean 0.5 and spread 0.2 are taken for granted.
        count = len(betas) + 4
        mean = (sum(betas) + 4 * 0.5) / count
        square = (sum(b * b for b in betas) + 4 * (0.5**2 + 0.2**2)) / count
        row += [
            beta,
            log2(1 + sequential / interarrival) / 5,
            sequential / (sum(sequentials) / len(sequentials)),
            mean,
            max(square - mean**2, 0.0) ** 0.5,
            log1p(len(betas)) / 7,
            min(1.0, (horizon - now) / (16 * interarrival)),
            float(world.holding == "faithful"),
        ]
        rows.append(np.array(row))
    return np.array(rows), np.array(mask)


def _filling(world: World, degree: int) -> list[np.ndarray]:
    """The blocks of a degree that fill an empty cluster one after the other."""
    taken: set[int] = set()
    chosen = []
    for block in world.cluster.blocks(degree).workers if degree in world.tables.degree else []:
        if not taken & set(block.tolist()):
            taken |= set(block.tolist())
            chosen.append(block)
    return chosen


# Baselines


def baseline(world: World, name: str, rule: np.ndarray | None = None) -> Decide:
    """The decisions of a baseline as its description has them."""
    known = world.tables.degree.tolist()
    models = len(world.models)

    def decide(release: np.ndarray, now: float, m: int, beta: float, chance: float) -> int | None:
        free = int((release <= now).sum())
        legal = [j for j, d in enumerate(known) if d <= free]
        if not legal:
            return None
        if name == "max":
            return legal[-1]
        if name == "random":
            return legal[int(chance * len(legal))]
        if name == "acceptable":
            enough = [j for j in legal if known[j] >= ceil(1 / beta - 1e-9)]
            return enough[0] if enough else legal[-1]
        if name in ("none", "sip_ml") or name.startswith("constant_"):
            cap = {"none": 1, "sip_ml": 8}.get(name) or int(name.split("_")[1])
            below = [j for j in legal if known[j] <= cap]
            return below[-1]
        begin, turn, reserve = 0, "upwards", -inf
        if rule is not None:
            begin = int(rule[m])
            turn = ("nowhere", "upwards", "anywhere")[int(rule[models + m])]
            reserve = float(rule[2 * models + m])
        order = [begin]
        if turn != "nowhere":
            order += range(begin + 1, len(known))
        if turn == "anywhere":
            order += range(begin - 1, -1, -1)
        for j in order:
            found = plan(world, release, now, m, j)
            if found is not None and fits(world, found, m, beta) and free - len(found.held) >= reserve:
                return j
        return None

    return decide
