"""Every scheduler under one protocol: a name, a network, a message, chunks per server, samples, a seed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.baselines import CLASSICAL, classical_schedule
from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding, Instance
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
from gnnsched.collective.mirror import allreduce_from_broadcast
from gnnsched.collective.schedule import Schedule, Transfers
from gnnsched.topology import InputError, Topology

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy

_DECODED: dict[str, tuple[Callable[[Instance], Scores], Decoding]] = {
    "greedy": (greedy_scores, GREEDY),
    "greedy_augmented": (greedy_scores, GREEDY_AUGMENTED),
    "trees_augmented": (tree_scores, TREES_AUGMENTED),
    "linear": (linear_scores, LINEAR),
    "random": (random_scores, RANDOM),
}
SCHEDULERS = ("policy", *CLASSICAL, *_DECODED)


@dataclass(frozen=True)
class Sampled:
    """The best schedule of a scheduler's samples, and the makespans of all of them in seconds."""

    schedule: Schedule
    makespans: NDArray[np.float64]


class PathCache:
    """Candidate paths of a network and of its reverse, found once for all chunk counts."""

    def __init__(self) -> None:
        self._paths: dict[int, tuple[Topology, Paths]] = {}

    def of(self, topology: Topology) -> Paths:
        """The candidate paths of ``topology``; the same object when asked again."""
        known = self._paths.get(id(topology))
        if known is None:
            known = self._paths[id(topology)] = (topology, candidate_paths(topology))
        return known[1]


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
) -> Sampled:
    """Plan with the scheduler ``name`` alone, at one chunk count, keeping the best of ``samples`` samples.

    Classical algorithms have one sample. ``policy`` is needed for "policy". No new sample is begun after
    ``deadline`` (time.monotonic seconds). Raises InputError for an unknown name and bad numbers.
    """
    if name not in SCHEDULERS:
        raise InputError(f"scheduler {name!r}: unknown; choose one of {', '.join(SCHEDULERS)}")
    if message_bytes <= 0:
        raise InputError(f"message size: {message_bytes} bytes is not positive; give a size such as 64MiB")
    if chunks_per_server < 1:
        raise InputError(f"chunks per server: {chunks_per_server} is below 1; ask for at least one")
    if samples < 1:
        raise InputError(f"samples: {samples} is below 1; ask for at least one")
    if name in CLASSICAL:
        schedule = classical_schedule(name, topology, message_bytes, chunks_per_server)
        return Sampled(schedule, np.array([schedule.makespan]))
    if len(topology.participants) == 1:
        schedule = classical_schedule("ring", topology, message_bytes, chunks_per_server)
        return Sampled(replace(schedule, planner={"name": name, "seed": seed}), np.zeros(1))
    paths = paths or PathCache()
    halves: list[NDArray[np.float64]] = []

    def half(network: Topology) -> Transfers:
        instance = Instance(network, message_bytes, chunks_per_server, seed, paths.of(network))
        if name == "policy":
            if policy is None:
                raise InputError("scheduler policy: no checkpoint given; load one first")
            scores, decoding = policy.scores(instance), Decoding()
        else:
            make, decoding = _DECODED[name]
            scores = make(instance)
        found: list[float] = []
        best = None
        for sample in range(samples):
            if best is not None and time.monotonic() > deadline:
                break
            # The first sample of a rule takes the best choice each time, the others break its ties at random.
            drawn = replace(decoding, sample=decoding.sample or sample > 0)
            episode = instance.decode(scores, drawn, np.random.default_rng([seed, sample]))
            found.append(episode.makespan)
            if best is None or episode.makespan < best.makespan:
                best = episode
        assert best is not None
        halves.append(np.array(found))
        return instance.transfers(best.state)

    members = np.repeat(topology.participants, chunks_per_server)
    schedule = allreduce_from_broadcast(
        topology,
        message_bytes,
        members,
        half,
        {"name": name, "seed": seed, "samples": samples, "chunks_per_server": chunks_per_server},
    )
    count = min(len(h) for h in halves)
    both = 2.0 * halves[0] if len(halves) == 1 else halves[0][:count] + halves[1][:count]
    return Sampled(schedule, both)
