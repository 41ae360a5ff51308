"""Samples of one half of an AllReduce: all-gathers of a decoded scheduler, drawn side by side; the best one stays."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Timer
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Episode, Instance, Stopped
from gnnsched.collective.decode.demand import Demand
from gnnsched.collective.decode.paths import Paths, candidate_paths
from gnnsched.collective.decode.shapes import Shape
from gnnsched.collective.flows import NO_FLOWS, Flows
from gnnsched.collective.schedule import Transfers
from gnnsched.planning.samples import PACKINGS, Sampler
from gnnsched.topology import Topology

Judged = TypeVar("Judged")


class PathCache:
    """Candidate paths and shapes of a network and of its reverse, found once for all chunk counts."""

    def __init__(self) -> None:
        self._paths: dict[int, tuple[Topology, Paths]] = {}
        self._shapes: dict[tuple[str, int, int, int | None], Shape] = {}

    def of(self, topology: Topology) -> Paths:
        """The candidate paths of ``topology``; the same object when asked again."""
        known = self._paths.get(id(topology))
        if known is None:
            known = self._paths[id(topology)] = (topology, candidate_paths(topology))
        return known[1]

    def put(self, topology: Topology, paths: Paths) -> None:
        """Have ``paths`` stand for the candidate paths of ``topology``."""
        self._paths[id(topology)] = (topology, paths)

    def shape(self, name: str, topology: Topology, chunks_per_server: int, root: int | None = None) -> Shape:
        """The shape ``name`` on ``topology``; the same object when asked again."""
        key = name, id(topology), chunks_per_server, root
        if key not in self._shapes:
            self._shapes[key] = Shape(name, topology, chunks_per_server, root)
        return self._shapes[key]


def _processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _set_at(deadline: float, stop: NDArray[np.bool_]) -> Iterator[None]:
    """Set ``stop`` (1,) at the ``deadline`` (time.monotonic seconds), should the block last until then."""
    left = deadline - time.monotonic()
    stop[0] = left <= 0.0
    if stop[0] or left == np.inf:
        yield
        return
    timer = Timer(min(left, TIMEOUT_MAX), stop.fill, [True])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True)
class Half(Generic[Judged]):
    """The best of some samples: its value in seconds, what ``judge`` made of it, and the values of all."""

    value: float
    best: Judged
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Halves:
    """How the halves of one AllReduce are sampled; see ``schedule_with`` for the arguments.

    ``packing_rounds``: as of ``Instance``.
    """

    sampler: Sampler
    message_bytes: float
    chunks_per_server: int
    samples: int
    seed: int
    paths: PathCache
    deadline: float = np.inf
    root: int | None = None
    shape: str | None = None
    optional: bool = False
    packing_rounds: int | None = None

    def draw(
        self,
        network: Topology,
        judge: Callable[[Instance, Episode], tuple[float, Judged]],
        enough: float,
        flows: Flows = NO_FLOWS,
        demand: Demand | None = None,
    ) -> Half[Judged]:
        """The sample of an all-gather on ``network`` beside ``flows`` that ``judge`` gives the least value (s).

        Sampling ends at a value of at most ``enough``. ``demand``: instead of a whole all-gather, of chunks of
        ``message_bytes`` each. Raises Stopped where an optional plan ran out of time.
        """
        own_paths = None if self.shape is not None else self.paths.of(network)
        packings = self.sampler.packings
        stop = np.zeros(1, np.bool_)
        # Instance and scores per tree packing or shape, made by the first sample that needs them.
        made: dict[int | str, tuple[Instance, Scores]] = {}
        longest = [0.0]
        done = [False]

        def drawn(sample: int) -> tuple[float, Judged] | None:
            trees = self.sampler.trees(sample)
            begin = time.monotonic()
            # A sample that takes as long as the longest so far must end in time.
            late = begin + longest[0] > self.deadline or (sample >= packings and trees not in made)
            if done[0] or (sample > 0 and late):
                return None
            if trees not in made:
                instance = Instance(
                    network,
                    self.message_bytes * (1 if demand is None else demand.since.shape[1]),
                    self.chunks_per_server,
                    self.seed * PACKINGS + sample % packings,
                    own_paths,
                    flows,
                    root=self.root,
                    shape=self.paths.shape(trees, network, self.chunks_per_server, self.root)
                    if isinstance(trees, str)
                    else None,
                    blind=self.sampler.blind,
                    demand=demand,
                    packing_rounds=self.packing_rounds,
                )
                made[trees] = instance, self.sampler.scores(instance, sample)
            instance, scores = made[trees]
            try:
                episode = self.sampler.decode(
                    instance, scores, sample, self.seed, stop if self.optional or sample > 0 else None
                )
            except Stopped:
                return None
            longest[0] = max(longest[0], time.monotonic() - begin)
            return judge(instance, episode)

        best: tuple[float, Judged] | None = None
        found: list[float] = []
        # The event loop releases the interpreter lock, so that samples run side by side.
        with (
            _set_at(self.deadline, stop),
            ThreadPoolExecutor(min(self.samples, _processors())) as pool,
        ):
            # The first round makes the packings that the others use.
            for round_of in (range(min(packings, self.samples)), range(packings, self.samples)):
                for result in pool.map(drawn, round_of):
                    # In the order of the samples: what runs beside the one that is good enough does not count.
                    if result is not None and not done[0]:
                        found.append(result[0])
                        if best is None or result[0] < best[0]:
                            best = result
                        done[0] = best[0] <= enough
        if best is None:
            raise Stopped
        return Half(*best, np.array(found))


def as_planned(instance: Instance, episode: Episode) -> tuple[float, tuple[Instance, Episode]]:
    """Judge a sample by its own makespan (s)."""
    return episode.makespan, (instance, episode)


def transfers_of(half: Half[tuple[Instance, Episode]]) -> Transfers:
    """The transfers of the best of samples judged ``as_planned``."""
    instance, episode = half.best
    return instance.transfers(episode.state)
