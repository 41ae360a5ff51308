"""Every scheduler under one protocol: a name, a network, a message, chunks per server, samples, a seed."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import TIMEOUT_MAX, Timer
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.baselines import CLASSICAL, classical_schedule
from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding, Episode, Instance, Stopped
from gnnsched.collective.decode.paths import Paths, candidate_paths
from gnnsched.collective.decode.presets import (
    GREEDY,
    GREEDY_AUGMENTED,
    LINEAR,
    RANDOM,
    TREES_AUGMENTED,
    greedy_scores,
    linear_scores,
    random_scores,
    tree_scores,
)
from gnnsched.collective.decode.shapes import Shape
from gnnsched.collective.mirror import allreduce_from_broadcast
from gnnsched.collective.schedule import Schedule, Transfers
from gnnsched.planning.samples import PACKINGS, Sampler
from gnnsched.topology import InputError, Topology

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy

_DECODED = {
    "greedy": Sampler(greedy_scores, GREEDY, packings=1),
    "greedy_augmented": Sampler(greedy_scores, GREEDY_AUGMENTED, packings=1),
    "trees_augmented": Sampler(tree_scores, TREES_AUGMENTED),
    "linear": Sampler(linear_scores, LINEAR, learned=True),
    "random": Sampler(random_scores, RANDOM, packings=1),
}
SCHEDULERS = ("policy", *CLASSICAL, *_DECODED)


@dataclass(frozen=True)
class Sampled:
    """The best schedule of a scheduler's samples, and the makespans of all of them in seconds.

    ``singles``: makespans of those drawn as the only one of a plan of one sample is. Where the halves are planned apart
    (links without opposites), the schedule joins the best of each and sample i stands for the i-th of both.
    """

    schedule: Schedule
    makespans: NDArray[np.float64]
    singles: NDArray[np.float64]


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

    def shape(self, name: str, topology: Topology, chunks_per_server: int, root: int | None = None) -> Shape:
        """The shape ``name`` on ``topology``; the same object when asked again."""
        key = name, id(topology), chunks_per_server, root
        if key not in self._shapes:
            self._shapes[key] = Shape(name, topology, chunks_per_server, root)
        return self._shapes[key]


def check_numbers(message_bytes: float, chunks_per_server: int, samples: int, seed: int) -> None:
    """Raises InputError for numbers that no scheduler can work with."""
    if not 0 < message_bytes < np.inf:
        raise InputError(
            f"message size: {message_bytes} bytes is not positive and finite; give a size such as 64MiB"
        )
    if chunks_per_server < 1:
        raise InputError(f"chunks per server: {chunks_per_server} is below 1; ask for at least one")
    if samples < 1:
        raise InputError(f"samples: {samples} is below 1; ask for at least one")
    if seed < 0:
        raise InputError(f"seed: {seed} is negative; give 0 or more")


def _one_sample(schedule: Schedule) -> Sampled:
    makespan = np.array([schedule.makespan])
    return Sampled(schedule, makespan, makespan)


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


def _sampler(name: str, policy: "Policy | None") -> Sampler:
    """How a decoded scheduler draws its samples."""
    if name != "policy":
        return _DECODED[name]
    if policy is None:
        raise InputError("scheduler policy: no checkpoint given; load one first")
    return Sampler(policy.scores, Decoding(), learned=True)


def schedule_with(
    name: str,
    topology: Topology,
    message_bytes: float,
    chunks_per_server: int,
    samples: int = 16,
    seed: int = 0,
    policy: "Policy | None" = None,
    paths: PathCache | None = None,
    deadline: float = np.inf,
    root: int | None = None,
    target: float = 0.0,
    shape: str | None = None,
    optional: bool = False,
) -> Sampled:
    """Plan with the scheduler ``name`` alone, at one chunk count, keeping the best of ``samples`` samples.

    Classical algorithms have one sample. ``policy`` is needed for "policy". No new sample is begun that would
    end after ``deadline`` (time.monotonic seconds), going by the longest so far, nor after a makespan (s) of at most
    ``target``; one that runs at the deadline is given up, the first one only where the plan is ``optional``: then
    Stopped is raised. ``root``: node index of the server at which all ``chunks_per_server`` chunks are rooted (not for
    classical algorithms); None: so many at each participant. ``shape``: name of a ``Shape`` whose trees are kept
    to instead of packed ones (for "trees_augmented"). Raises InputError for an unknown name and bad numbers.
    """
    if name not in SCHEDULERS:
        raise InputError(f"scheduler {name!r}: unknown; choose one of {', '.join(SCHEDULERS)}")
    check_numbers(message_bytes, chunks_per_server, samples, seed)
    if name in CLASSICAL:
        schedule = classical_schedule(name, topology, message_bytes, chunks_per_server)
        return _one_sample(schedule)
    if len(topology.participants) == 1:
        schedule = classical_schedule("ring", topology, message_bytes, chunks_per_server)
        return _one_sample(replace(schedule, planner={"name": name, "seed": seed}))
    paths = paths or PathCache()
    sampler = replace(_sampler(name, policy), shape=shape)
    halves: list[NDArray[np.float64]] = []
    stop = np.zeros(1, np.bool_)

    def half(network: Topology) -> Transfers:
        own_paths = None if shape is not None else paths.of(network)
        packings = sampler.packings

        # Instance and scores per tree packing or shape, made by the first sample that needs them.
        made: dict[int | str, tuple[Instance, Scores]] = {}
        longest = [0.0]
        done = [False]
        # A half that is mirrored takes half of the whole; halves planned apart are not stopped early.
        enough = target / 2.0 if topology.opposite is not None else 0.0

        def drawn(sample: int) -> tuple[Instance, Episode] | None:
            trees = sampler.trees(sample)
            begin = time.monotonic()
            # A sample that takes as long as the longest so far must end in time.
            late = begin + longest[0] > deadline or (sample >= packings and trees not in made)
            if done[0] or (sample > 0 and late):
                return None
            if trees not in made:
                instance = Instance(
                    network,
                    message_bytes,
                    chunks_per_server,
                    seed * PACKINGS + sample % packings,
                    own_paths,
                    root=root,
                    shape=paths.shape(trees, network, chunks_per_server, root)
                    if isinstance(trees, str)
                    else None,
                )
                made[trees] = instance, sampler.scores(instance, sample)
            instance, scores = made[trees]
            try:
                episode = sampler.decode(
                    instance, scores, sample, seed, stop if optional or sample > 0 else None
                )
            except Stopped:
                return None
            longest[0] = max(longest[0], time.monotonic() - begin)
            return instance, episode

        best: tuple[Instance, Episode] | None = None
        found: list[float] = []
        # The event loop releases the interpreter lock, so that samples run side by side.
        with _set_at(deadline, stop), ThreadPoolExecutor(min(samples, _processors())) as pool:
            # The first round makes the packings that the others use.
            for samples_of_round in (range(min(packings, samples)), range(packings, samples)):
                for result in pool.map(drawn, samples_of_round):
                    # In the order of the samples: what runs beside the one that is good enough does not count.
                    if result is not None and not done[0]:
                        found.append(result[1].makespan)
                        if best is None or result[1].makespan < best[1].makespan:
                            best = result
                        done[0] = best[1].makespan <= enough
        if best is None:
            raise Stopped
        halves.append(np.array(found))
        return best[0].transfers(best[1].state)

    members = np.repeat(topology.participants if root is None else root, chunks_per_server)
    schedule = allreduce_from_broadcast(
        topology,
        message_bytes,
        members,
        half,
        {"name": name, "seed": seed, "samples": samples, "chunks_per_server": chunks_per_server},
    )
    count = min(len(h) for h in halves)
    both = 2.0 * halves[0] if len(halves) == 1 else halves[0][:count] + halves[1][:count]
    return Sampled(schedule, both, sampler.singles(both))
