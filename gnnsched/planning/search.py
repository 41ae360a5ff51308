"""The front door's search: which planners at which chunk counts, until near the bound or out of time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from gnnsched.collective.baselines import CLASSICAL
from gnnsched.collective.decode.decoder import Stopped
from gnnsched.collective.decode.shapes import CHAIN, CHAIN_BY_ID, DIRECT, FARTHEST
from gnnsched.collective.flows import NO_FLOWS, Flows
from gnnsched.planning.halves import PathCache
from gnnsched.planning.schedulers import Sampled, schedule_with
from gnnsched.topology import Topology

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy

LADDER = (1, 2, 4, 8, 16, 32, 64, 128)
# Good enough: the search stops here.
NEAR_BOUND = 1.005
RULES = ("greedy_augmented", "trees_augmented")
PLANNERS = (*RULES, "policy")
# Samples on the ladder: rules gain little from many, and the policy's others come when the best rungs are known.
RULE_SAMPLES = 2
FIRST_SAMPLES = 5
# The ladder ends, unfinished, below this many transfers: a rung would take minutes.
MOST_TRANSFERS = 2_000_000
# The ladder ends after so many rungs in a row without gain; then the best rungs get more samples, until so many rounds
# of them end without gain.
IDLE_RUNGS, BEST_RUNGS, IDLE_ROUNDS = 4, 3, 4
GAIN = 0.9995
# A rule that is so far behind the best plan sits the next rungs out.
BEHIND = 1.03
# Where a path's latency is at least this part of the bound, latency counts: all chunks may be rooted at the network's
# centre, and the policy comes first, as it is the best by far at the few chunks that small messages go in.
LATENCY_SHARE = 0.01
CENTRE_CHUNKS = (1, 4, 16)
# Chunk counts at which trees of known shapes are tried, and up to how many transfers of a half.
SHAPE_CHUNKS = (1, 4)
MOST_SHAPED = {CHAIN: 70_000, CHAIN_BY_ID: 70_000, FARTHEST: 20_000, DIRECT: 5_000}


@dataclass(frozen=True)
class Rung:
    """One planner at one chunk count: what it reached (seconds) and how long planning took.

    ``root``: index of the server at which all chunks are rooted; None where each participant has
    ``chunks_per_server`` of them. ``shape``: that of the trees that it kept to, None for packed ones.
    """

    chunks_per_server: int
    scheduler: str
    makespan_s: float
    plan_s: float
    root: int | None = None
    shape: str | None = None


class Search:
    """The best schedule so far, and the clock.

    ``target``: makespan (s) that is good enough. ``best`` is the best planner's result, ``winner`` its rung;
    ``finished`` turns False when the time limit leaves something out.
    """

    def __init__(
        self,
        topology: Topology,
        message_bytes: float,
        policy: "Policy | None",
        samples: int,
        seed: int,
        time_limit: float,
        progress: Callable[[str], None] | None,
        flows: Flows = NO_FLOWS,
        ready: NDArray[np.float64] | None = None,
    ) -> None:
        self.topology = topology
        self.message_bytes = message_bytes
        self.policy = policy
        self.samples = samples
        self.seed = seed
        self.begin = time.monotonic()
        self.deadline = self.begin + time_limit
        self.target = 0.0
        self.progress = progress
        self.flows = flows
        self.ready = ready
        self.paths = PathCache()
        self.best: Sampled | None = None
        self.winner: Rung | None = None
        self.rungs: list[Rung] = []
        self.finished = True

    @property
    def disturbed(self) -> bool:
        """Whether flows are in flight, or servers late."""
        return self.flows.num_flows > 0 or (self.ready is not None and bool(self.ready.any()))

    @property
    def near_bound(self) -> bool:
        return self.winner is not None and self.winner.makespan_s <= self.target

    def offer(
        self,
        name: str,
        count: int,
        samples: int,
        seed: int,
        root: int | None = None,
        target: float = 0.0,
        shape: str | None = None,
    ) -> Rung | None:
        """Run a planner and keep its schedule if it is the best; returns its rung, None where time ran out."""
        begin = time.monotonic()
        try:
            sampled = schedule_with(
                name,
                self.topology,
                self.message_bytes,
                count,
                samples,
                seed,
                self.policy,
                self.paths,
                self.deadline,
                root,
                target,
                shape,
                self.winner is not None,
                self.flows,
                self.ready,
            )
        except Stopped:
            self.finished = False
            return None
        took = time.monotonic() - begin
        makespan = sampled.schedule.makespan
        if name not in CLASSICAL and len(sampled.makespans) < samples and makespan > target:
            self.finished = False
        rung = Rung(count, name, makespan, took, root, shape)
        self.rungs.append(rung)
        if self.winner is None or makespan < self.winner.makespan_s:
            self.best, self.winner = sampled, rung
        if self.progress is not None:
            where = f"{count} chunks per server" if root is None else f"{count} chunks rooted at one server"
            kept = "" if shape is None else f" in {shape} trees"
            self.progress(f"{name}, {where}{kept}: {makespan:.6g} s")
        return rung

    def one(self, names: Sequence[str], count: int) -> None:
        """All planners at one chunk count, every sample of each."""
        for name in names:
            if self.winner is not None and time.monotonic() > self.deadline:
                self.finished = False
                break
            self.offer(name, count, self.samples, self.seed)
            if self.near_bound:
                break

    def climb(self, name: str) -> None:
        """One planner on the ladder, every sample at each rung."""
        last = 0.0
        for count in self._ladder():
            if not self._in_time(2.0 * last):
                break
            rung = self.offer(name, count, self.samples, self.seed)
            if rung is None or self.near_bound:
                break
            last = rung.plan_s

    def all(self, latency_counts: bool) -> None:
        """The planners of ``PLANNERS`` on the ladder with few samples, then more samples for the best rungs.

        ``latency_counts``: whether it is ``LATENCY_SHARE`` of the bound.
        """
        if len(self.topology.participants) > 1:
            self._shapes([CHAIN, CHAIN_BY_ID])
            if latency_counts:
                self._centred()
            self._shapes([FARTHEST, DIRECT])
        if self.near_bound:
            return
        idle = 0
        last: dict[str, float] = {}
        running = ["policy", *RULES] if latency_counts else list(PLANNERS)
        for count in self._ladder():
            before = np.inf if self.winner is None else self.winner.makespan_s
            begun = False
            for name in tuple(running):
                # A rung takes about twice as long as the one before: do not begin what cannot end in time.
                if self._in_time(2.0 * last.get(name, 0.0)):
                    own = min(self.samples, FIRST_SAMPLES if name == "policy" else RULE_SAMPLES)
                    rung = self.offer(name, count, own, self.seed, None, self.target)
                    if rung is None:
                        break
                    last[name] = rung.plan_s
                    begun = True
                    assert self.winner is not None
                    if name in RULES and rung.makespan_s > BEHIND * self.winner.makespan_s:
                        running.remove(name)
                if self.near_bound:
                    return
            if not begun:
                break
            assert self.winner is not None
            idle = 0 if self.winner.makespan_s < GAIN * before else idle + 1
            if idle == IDLE_RUNGS:
                break
        self._refine()

    def _centred(self) -> None:
        """All chunks at the network's centre."""
        centre = _centre(self.topology, self.paths)
        for count in CENTRE_CHUNKS:
            for name, shape in (*((name, None) for name in RULES), ("trees_augmented", FARTHEST)):
                if self._in_time(0.0):
                    self.offer(name, count, 1, self.seed, centre, 0.0, shape)

    def _shapes(self, shapes: list[str]) -> None:
        """Trees of known ``shapes``, unless their load alone is more than the best plan; they may well be the best."""
        servers = len(self.topology.participants)
        for shape in shapes:
            for count in SHAPE_CHUNKS:
                if servers * servers * count > MOST_SHAPED[shape] or not self._in_time(0.0):
                    continue
                chunk_bytes = self.message_bytes / (servers * count)
                least = self.paths.shape(shape, self.topology, count).least_seconds(chunk_bytes)
                if self.topology.opposite is not None:
                    # The other half is this one mirrored.
                    least *= 2.0
                if self.winner is None or least < self.winner.makespan_s:
                    self.offer("trees_augmented", count, 1, self.seed, None, 0.0, shape)

    def _refine(self) -> None:
        """More samples of the policy at the best rungs that it was on."""
        best: dict[int, float] = {}
        took: dict[int, float] = {}
        for rung in self.rungs:
            count = rung.chunks_per_server
            if rung.root is None and rung.shape is None:
                best[count] = min(best.get(count, np.inf), rung.makespan_s)
                if rung.scheduler == "policy":
                    took[count] = rung.plan_s
        counts = sorted(took, key=lambda count: (best[count], count))[:BEST_RUNGS]
        idle, turn = 0, 0
        while counts and idle < IDLE_ROUNDS * len(counts):
            count = counts[turn % len(counts)]
            turn += 1
            if not self._in_time(took[count]):
                break
            assert self.winner is not None
            before = self.winner.makespan_s
            # Other packings and other draws than on the ladder.
            seed = self.seed + (1 + turn // len(counts)) * 1_000_003
            self.offer("policy", count, self.samples, seed, None, self.target)
            if self.near_bound:
                break
            idle = 0 if self.winner.makespan_s < GAIN * before else idle + 1

    def _in_time(self, expected: float) -> bool:
        """Whether what takes ``expected`` seconds would end in time; the first thing always may begin."""
        if self.winner is None or time.monotonic() + expected <= self.deadline:
            return True
        self.finished = False
        return False

    def _ladder(self) -> list[int]:
        """The chunk counts that are not too many for this network; the others are left out."""
        servers = len(self.topology.participants)
        fitting = [c for c in LADDER if c == 1 or 2 * servers * servers * c <= MOST_TRANSFERS]
        if len(fitting) < len(LADDER):
            self.finished = False
        return fitting


def _centre(topology: Topology, paths: PathCache) -> int:
    """The participant that the farthest one is nearest to by latency there and back, as a node index."""
    found = paths.of(topology)
    servers = found.num_servers
    # Paths without latency are still paths: an entry of zero would mean none.
    ways = np.full((servers, servers), np.inf)
    np.minimum.at(ways, (found.source, found.target), found.latency + 1e-15)
    latency = shortest_path(np.where(np.isfinite(ways), ways, 0.0))
    members = np.flatnonzero(topology.is_participant[found.nodes])
    among = latency[np.ix_(members, members)]
    farthest = among.max(0) + among.max(1)
    # Of those that are nearly as near, the one with the most bandwidth.
    out = np.bincount(topology.link_source, topology.bandwidth, topology.num_nodes)[found.nodes[members]]
    near = np.flatnonzero(farthest <= farthest.min() * (1.0 + 1e-9))
    return int(found.nodes[members[near[np.argmax(out[near])]]])
