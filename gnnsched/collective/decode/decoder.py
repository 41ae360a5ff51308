"""The event loop from Python: an instance to plan, one decoded episode, and its transfers as columns."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.decode.augmentation import AUGMENTATION_DEPTH, EVICTIONS_PER_SERVER
from gnnsched.collective.decode.choice import ACT, RECORD, REPLAY, Rules, Scores
from gnnsched.collective.decode.demand import Demand, all_gather_demand
from gnnsched.collective.decode.kernel import STOPPED, STUCK, run
from gnnsched.collective.decode.learn import Tape, empty_tape
from gnnsched.collective.decode.packing import MOST_ROUNDS, Trees, pack_trees
from gnnsched.collective.decode.paths import Paths, candidate_paths
from gnnsched.collective.decode.problem import PATH_FEATURES, Problem, make_problem
from gnnsched.collective.decode.relays import worth_keeping
from gnnsched.collective.decode.shapes import Shape
from gnnsched.collective.decode.state import CHOICE, COMMITTED, PICK, STRAYED, State, new_state
from gnnsched.collective.flows import NO_FLOWS, Flows
from gnnsched.collective.flows_bound import entry_bound_under
from gnnsched.collective.schedule import BROADCAST, Transfers
from gnnsched.topology import InputError, Topology

# A transfer may start at what is left on its path from this share of the ordinary rate on.
LEFTOVER_FLOOR = 0.05
# The decision window is at most this part of a chunk's usual transfer: a longer one, where latency is most of a
# plan, gives paths away before the chunks that should take them are there.
WINDOW_SHARE = 0.02
# No augmentation of few chunks where the longest path's latency is more than so many usual transfers of one: ports are
# then idle because nothing useful has arrived yet, and rearranging takes longer than all else, for worse plans. Many
# chunks keep ports busy whatever the latency, and so does a shape whose roots send to everybody.
MOST_LATENCY, FEW_CHUNKS = 4.0, 8

# A usual guide: chunks keep to paths priced within 30 % of their packed tree's (log ratio).
GUIDE = float(np.log(1.3))


@dataclass(frozen=True)
class Decoding:
    """How an episode is decoded.

    ``augment``: augmentation after the pass at each event, unless latency leaves ports idle (``MOST_LATENCY``);
    ``floor``: least share of its ordinary rate at which a transfer may start (above 1: no leftover rates); ``guide``:
    log price ratio up to which a chunk may leave its packed tree (0 strict, inf free choice); ``allow_none``: paths may
    be left idle by choice; ``sample``: draw instead of taking the best; ``window``: decision window in longest path
    latencies, cut to ``WINDOW_SHARE``; ``sharpness``: factor on the scores, so that above 1 the better choices are
    drawn more often.
    """

    augment: bool = True
    floor: float = LEFTOVER_FLOOR
    guide: float = np.inf
    allow_none: bool = True
    sample: bool = True
    window: float = 3.0
    sharpness: float = 1.0


class Stopped(Exception):
    """An episode was given up because its ``stop`` was set."""


@dataclass(frozen=True)
class Episode:
    """One decoded all-gather: the kernel's final state and, where recorded, the tape of choices."""

    makespan: float
    state: State
    tape: Tape
    events: int


class Instance:
    """One all-gather to plan: a topology, its candidate paths, C = N * chunks_per_server chunks and packed trees.

    ``seed`` fixes the packing and the chunks' random priorities of an instance; ``flows`` are in-flight flows.
    ``root``: node index of the server that all chunks come from, C = ``chunks_per_server`` then. ``shape``: made for as
    many chunks, whose trees and paths are taken instead of packing some. ``blind``: the flows are there for the event
    loop alone, and neither trees nor scores know of them. ``demand``: of C chunks, for other than a whole all-gather;
    the message is then what these make up. ``packing_rounds``: how often trees are improved at most, None for as often
    as is worth it.
    """

    def __init__(
        self,
        topology: Topology,
        message_bytes: float,
        chunks_per_server: int,
        seed: int = 0,
        paths: Paths | None = None,
        flows: Flows = NO_FLOWS,
        root: int | None = None,
        shape: Shape | None = None,
        blind: bool = False,
        demand: Demand | None = None,
        packing_rounds: int | None = None,
    ) -> None:
        if chunks_per_server < 1:
            raise InputError(f"chunks per server: {chunks_per_server} is below 1; ask for at least one")
        self.topology = topology
        if shape is not None:
            paths = shape.paths
        self.paths = candidate_paths(topology) if paths is None else paths
        nodes = self.paths.nodes
        self.participants = topology.is_participant[nodes]
        if demand is None:
            members = topology.participants if root is None else [root]
            # Chunk c is rooted at participant c // q.
            demand = all_gather_demand(topology, np.repeat(members, chunks_per_server))
        self.needed, self.since = demand.needed[nodes], demand.since[nodes]
        # Where a chunk is first; the least of the servers where it is from the beginning.
        self.roots = np.argmin(self.since, axis=0).astype(np.int32)
        self.chunk_bytes = message_bytes / max(1, len(self.roots))
        self.chunks_per_server = chunks_per_server
        self._shaped = shape is not None
        self.flows = NO_FLOWS if blind else flows
        trees = self._pack(seed, packing_rounds) if shape is None else shape.trees(self.chunk_bytes)
        self.packed_load = trees.load
        self.problem: Problem = make_problem(
            topology, self.paths, self.chunk_bytes, self.needed, self.since, trees, flows
        )

    def _pack(self, seed: int, rounds: int | None) -> Trees:
        return pack_trees(
            self.paths,
            self.topology.bandwidth,
            self.chunk_bytes,
            self.needed,
            np.isfinite(self.since),
            self.taken_seconds,
            np.random.default_rng([seed, 1]),
            MOST_ROUNDS if rounds is None else rounds,
        )

    @cached_property
    def least_end(self) -> float:
        """Seconds that the plan takes at least, as chunks must enter the participants beside the flows."""
        entering = np.zeros(self.topology.num_nodes)
        entering[self.paths.nodes] = self.needed.sum(1) * self.chunk_bytes
        return entry_bound_under(self.topology, entering, self.flows)

    @cached_property
    def taken_seconds(self) -> NDArray[np.float64]:
        """Seconds of work (m,) that flows give each link while the plan runs; what they do later is in nobody's way."""
        links = self.topology.num_links
        if not self.flows.num_flows:
            return np.zeros(links)
        flows, end = self.flows, self.least_end
        if not np.isfinite(end):
            raise InputError(
                f"topology {self.topology.name}: flows leave some server nothing of its links for ever; end them"
            )
        seconds = np.minimum(flows.until, end) - np.minimum(flows.since, end)
        work = np.bincount(flows.links, (flows.rate * seconds)[flows.crossing], links)
        return work / self.topology.bandwidth

    @cached_property
    def root_nodes(self) -> NDArray[np.int32]:
        """Node index of each chunk's root, (C,)."""
        return self.paths.nodes[self.roots]

    @cached_property
    def time_scale(self) -> float:
        """Seconds of work on the busiest link of the packed trees: what moments are compared with."""
        return max(float(self.packed_load.max()) if len(self.packed_load) else 0.0, 1e-12)

    @cached_property
    def longest_latency(self) -> float:
        """Seconds of latency of the longest candidate path."""
        return float(self.paths.latency.max(initial=0.0))

    @cached_property
    def usual_transfer(self) -> float:
        """Seconds that a chunk takes on the median candidate path at its ordinary rate, without latency."""
        return float(np.median(self.chunk_bytes / self.paths.rate)) if self.paths.num_paths else 0.0

    def decision_window(self, latencies: float) -> float:
        """Seconds of the decision window that ``latencies`` of the longest path make, as far as allowed."""
        return min(latencies * self.longest_latency, WINDOW_SHARE * self.usual_transfer)

    def augments(self, decoding: Decoding) -> bool:
        """Whether episodes are augmented: if asked for, and ports are not idle for latency alone."""
        busy = self._shaped or self.chunks_per_server > FEW_CHUNKS
        return decoding.augment and (busy or self.longest_latency <= MOST_LATENCY * self.usual_transfer)

    def uniform_attention(self) -> NDArray[np.float64]:
        """Nearness weights (H, S, S) without a network: the nearer by transfer time the more, near and nearest."""
        duration = np.exp(self.problem.log_duration)
        finite = np.isfinite(duration)
        closeness = np.where(finite, 1.0 / np.where(finite, duration, 1.0), 0.0)
        heads = np.stack([closeness, closeness**3])
        return heads / np.maximum(heads.sum(1, keepdims=True), 1e-300)

    def decode(
        self,
        scores: Scores,
        decoding: Decoding,
        rng: np.random.Generator,
        record: bool = False,
        stop: NDArray[np.bool_] | None = None,
    ) -> Episode:
        """Grow all flow trees once. Raises InputError where the plan cannot be finished.

        ``record``: keep the choices on a tape for ``replay``; ``state.random`` is the other thing it needs. ``stop``
        (1,): when another thread sets it, the episode is given up and Stopped raised (not while recording).
        """
        random = rng.uniform(-1.0, 1.0, len(self.roots))
        if not record:
            return self._run(scores, decoding, rng, ACT, empty_tape(self.problem, 0), random, stop)
        room = 8 * len(self.participants) * len(self.roots) + 1024
        while True:
            before = rng.bit_generator.state
            episode = self._run(scores, decoding, rng, RECORD, empty_tape(self.problem, room), random)
            picks, choices = int(episode.state.counter[PICK]), int(episode.state.counter[CHOICE])
            if max(picks, choices, episode.events) <= room:
                break
            # Longer than the tape: the same episode again, with room for it.
            rng.bit_generator.state = before
            room = max(picks, choices, episode.events)
        tape = episode.tape
        tape = tape._replace(
            picks=tape.picks[:picks].copy(),
            old_pick=np.zeros(picks),
            new_pick=np.zeros(picks),
            choices=tape.choices[:choices].copy(),
            old_choice=tape.new_choice[:choices].copy(),
            new_choice=np.zeros(choices),
            event_time=tape.event_time[: episode.events].copy(),
            event_picks=tape.event_picks[: episode.events].copy(),
        )
        return Episode(episode.makespan, episode.state, tape, episode.events)

    def replay(self, scores: Scores, decoding: Decoding, tape: Tape, random: NDArray[np.float64]) -> Episode:
        """Follow a recorded episode's tape under (new) scores, accumulating gradients in the tape.

        ``random`` is the recorded episode's ``state.random``. Raises ValueError where the tape is not of this
        instance and decoding, and for a sharpness other than 1: the gradient would be that of the sharpened scores.
        """
        if decoding.sharpness != 1.0:
            raise ValueError(
                f"sharpness {decoding.sharpness}: only choices drawn at sharpness 1 can be replayed"
            )
        episode = self._run(scores, decoding, np.random.default_rng(0), REPLAY, tape, random)
        if episode.state.counter[STRAYED]:
            raise ValueError("the tape was recorded on another instance, decoding or random priorities")
        return episode

    def _run(
        self,
        scores: Scores,
        decoding: Decoding,
        rng: np.random.Generator,
        mode: int,
        tape: Tape,
        random: NDArray[np.float64],
        stop: NDArray[np.bool_] | None = None,
    ) -> Episode:
        problem = self.problem
        if decoding.sharpness != 1.0:
            scores = scores.sharpened(decoding.sharpness)
        servers, paths = len(problem.needed), len(problem.source)
        budget = EVICTIONS_PER_SERVER * servers
        window = self.decision_window(decoding.window)
        state = new_state(problem, window, decoding.floor, self.time_scale, random, budget)
        rules = Rules(mode, decoding.sample, decoding.allow_none, self.augments(decoding), decoding.guide)
        events = run(
            tuple(problem),
            tuple(scores),
            tuple(state),
            tuple(tape),
            tuple(rules),
            np.zeros(paths, np.int64),
            np.zeros((paths, len(PATH_FEATURES))),
            np.zeros((AUGMENTATION_DEPTH + 2, 5), np.int64),
            np.full(paths, -1, np.int64),
            rng,
            np.zeros(1, np.bool_) if stop is None else stop,
        )
        if events == STOPPED:
            raise Stopped
        if events == STUCK:
            raise InputError(
                f"topology {self.topology.name}: some chunk cannot reach some participant; add the missing links"
            )
        done = np.flatnonzero(state.slot_state == COMMITTED)
        # A relay's arrival matters only by what it sends on, which arrives later.
        done = done[self.needed[self.paths.target[state.slot_path[done]], state.slot_chunk[done]]]
        makespan = float(state.slot_end[done].max(initial=0.0))
        return Episode(makespan, state, tape, events)

    def transfers(self, state: State) -> Transfers:
        """The episode's transfers as broadcast columns, in order of their start, idle relays left out."""
        slots = np.flatnonzero(state.slot_state == COMMITTED)
        path = state.slot_path[slots]
        kept = worth_keeping(
            state.slot_chunk[slots], self.paths.source[path], self.paths.target[path], self.needed
        )
        slots = slots[kept]
        slots = slots[np.lexsort((slots, state.slot_start[slots]))]
        path = state.slot_path[slots]
        lengths = np.diff(self.paths.start)[path]
        path_start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        position = np.arange(path_start[-1]) - np.repeat(path_start[:-1] - self.paths.start[path], lengths)
        return Transfers(
            np.full(len(slots), BROADCAST, np.uint8),
            state.slot_chunk[slots],
            self.paths.nodes[self.paths.source[path]],
            self.paths.nodes[self.paths.target[path]],
            path_start,
            self.paths.links[position],
            state.slot_rate[slots],
            state.slot_start[slots],
            state.slot_end[slots],
        )
