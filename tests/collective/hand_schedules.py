"""Small networks and plain schedules for the referee's tests, made without any of the package's planners."""

from collections.abc import Sequence

import numpy as np

from gnnsched.collective.schedule import BROADCAST, REDUCE, Schedule, Transfers
from gnnsched.topology import Topology


def network(
    servers: int,
    switches: int,
    cables: Sequence[tuple],
    name: str = "hand",
    relays: Sequence[int] = (),
) -> Topology:
    """Full-duplex ``cables`` (node, node, bandwidth[, latency]); nodes count servers first, then switches."""
    source, target, bandwidth, latency = [], [], [], []
    for a, b, speed, *delay in cables:
        for s, d in ((a, b), (b, a)):
            source.append(s)
            target.append(d)
            bandwidth.append(speed)
            latency.append(delay[0] if delay else 0.0)
    ids = [f"s{i}" for i in range(servers)] + [f"w{i}" for i in range(switches)]
    kinds = [False] * servers + [True] * switches
    takes_part = [i < servers and i not in relays for i in range(servers + switches)]
    return Topology.from_arrays(name, ids, kinds, source, target, bandwidth, latency, takes_part)


def direct_ring(n: int, bandwidth: float = 1.0, latency: float = 0.0) -> Topology:
    return network(n, 0, [(i, (i + 1) % n, bandwidth, latency) for i in range(n)], f"ring{n}")


def star(bandwidths: Sequence[float], latency: float = 0.0) -> Topology:
    n = len(bandwidths)
    return network(n, 1, [(i, n, b, latency) for i, b in enumerate(bandwidths)], f"star{n}")


def random_network(rng: np.random.Generator) -> Topology:
    """Connected, 2 to 5 servers, 0 to 2 switches, some cables in parallel, several speeds, maybe latency."""
    servers, switches = int(rng.integers(2, 6)), int(rng.integers(0, 3))
    nodes = servers + switches
    order = rng.permutation(nodes)
    pairs = [(int(order[i]), int(order[rng.integers(i)])) for i in range(1, nodes)]
    for _ in range(int(rng.integers(0, nodes))):
        a, b = rng.choice(nodes, 2, replace=False)
        pairs.append((int(a), int(b)))
    slow = float(rng.choice([0.0, 0.1, 3.0]))
    cables = [(a, b, float(rng.choice([1.0, 2.0, 5.0])), slow * float(rng.random())) for a, b in pairs]
    relays = [0] if servers > 2 and rng.random() < 0.3 else []
    return network(servers, switches, cables, "random", relays)


def hops(topology: Topology, source: int) -> dict[int, list[int]]:
    """For every server that ``source`` reaches through switches alone, the links of a shortest path."""
    found: dict[int, list[int]] = {source: []}
    queue = [source]
    for node in queue:
        if node != source and not topology.is_switch[node]:
            continue
        for link in np.flatnonzero(topology.link_source == node):
            other = int(topology.link_target[link])
            if other not in found:
                found[other] = [*found[node], int(link)]
                queue.append(other)
    return {node: path for node, path in found.items() if node != source and not topology.is_switch[node]}


class Planner:
    """Books transfers one by one, each at the earliest time at which its links are free from end to end."""

    def __init__(self, topology: Topology, message_bytes: float, roots: Sequence[int]) -> None:
        self.topology, self.message_bytes, self.roots = topology, message_bytes, list(roots)
        self.rows: list[tuple] = []
        self.booked: dict[int, list[tuple[float, float]]] = {}

    def book(self, phase: int, chunk: int, source: int, path: list[int], ready: float) -> float:
        """Book and return the arrival."""
        topology = self.topology
        rate = min(topology.bandwidth[e] for e in path)
        duration = self.message_bytes / len(self.roots) / rate
        offsets = np.concatenate(([0.0], np.cumsum(topology.latency[path])))
        start = ready
        moved = True
        while moved:
            moved = False
            for link, offset in zip(path, offsets):
                for a, b in self.booked.get(link, []):
                    if start + offset < b - 1e-12 and a + 1e-12 < start + offset + duration:
                        start, moved = b - offset, True
        for link, offset in zip(path, offsets):
            self.booked.setdefault(link, []).append((start + offset, start + offset + duration))
        end = start + offsets[-1] + duration
        target = int(topology.link_target[path[-1]])
        self.rows.append((phase, chunk, source, target, path, rate, start, end))
        return float(end)

    def schedule(self) -> Schedule:
        return from_rows(self.topology, self.message_bytes, self.roots, self.rows)


def from_rows(
    topology: Topology, message_bytes: float, roots: Sequence[int], rows: Sequence[tuple]
) -> Schedule:
    """A schedule of rows (phase, chunk, source, target, path, rate, start, end)."""
    columns = list(zip(*rows)) if rows else [()] * 8
    paths = columns[4]
    transfers = Transfers(
        np.array(columns[0], np.uint8),
        np.array(columns[1], np.int32),
        np.array(columns[2], np.int32),
        np.array(columns[3], np.int32),
        np.concatenate(([0], np.cumsum([len(p) for p in paths]))).astype(np.int64),
        np.array([e for p in paths for e in p], np.int32),
        np.array(columns[5], np.float64),
        np.array(columns[6], np.float64),
        np.array(columns[7], np.float64),
    )
    return Schedule(topology, message_bytes, np.array(roots, np.int32), transfers, {"name": "hand"})


def to_rows(schedule: Schedule) -> list[tuple]:
    t = schedule.transfers
    return [
        (
            int(t.phase[i]),
            int(t.chunk[i]),
            int(t.source[i]),
            int(t.target[i]),
            t.path_links[t.path_start[i] : t.path_start[i + 1]].tolist(),
            float(t.rate[i]),
            float(t.start[i]),
            float(t.end[i]),
        )
        for i in range(len(t))
    ]


def tree_schedule(
    topology: Topology, rng: np.random.Generator, per_server: int = 1, message_bytes: float = 12.0
) -> Schedule:
    """A right AllReduce along a random tree per chunk; both phases of different chunks overlap in time."""
    roots = np.repeat(topology.participants, per_server).tolist()
    planner = Planner(topology, message_bytes, roots)
    reach = {int(s): hops(topology, int(s)) for s in topology.servers}
    for chunk, root in enumerate(roots):
        parent: dict[int, int] = {}
        inside = [root]
        while len(inside) < len(topology.servers):
            s = int(rng.choice(inside))
            outside = [d for d in reach[s] if d not in inside]
            if outside:
                d = int(rng.choice(outside))
                parent[d] = s
                inside.append(d)
        ready = dict.fromkeys(inside, 0.0)
        holds = {s: bool(topology.is_participant[s]) for s in inside}
        for s in reversed(inside[1:]):
            if holds[s]:
                arrival = planner.book(REDUCE, chunk, s, reach[s][parent[s]], ready[s])
                ready[parent[s]] = max(ready[parent[s]], arrival)
                holds[parent[s]] = True
        there = {root: ready[root]}
        for s in inside[1:]:
            there[s] = planner.book(BROADCAST, chunk, parent[s], reach[parent[s]][s], there[parent[s]])
    return planner.schedule()
