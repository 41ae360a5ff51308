"""Every scheduler under one protocol: a name, a network, a message, chunks per server, samples, a seed."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.baselines import CLASSICAL, classical_schedule
from gnnsched.collective.decode.decoder import Decoding
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
from gnnsched.collective.flows import NO_FLOWS, Flows
from gnnsched.collective.mirror import allreduce_from_broadcast
from gnnsched.collective.schedule import Schedule, Transfers
from gnnsched.planning.beside import plan_beside, retimed
from gnnsched.planning.halves import Halves, PathCache, as_planned, transfers_of
from gnnsched.planning.samples import Sampler
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


def sampler_of(name: str, policy: "Policy | None") -> Sampler:
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
    flows: Flows = NO_FLOWS,
    ready: NDArray[np.float64] | None = None,
) -> Sampled:
    """Plan with the scheduler ``name`` alone, at one chunk count, keeping the best of ``samples`` samples.

    Classical algorithms have one sample. ``policy`` is needed for "policy". No new sample is begun that would
    end after ``deadline`` (time.monotonic seconds), going by the longest so far, nor after a makespan (s) of at most
    ``target``; one that runs at the deadline is given up, the first one only where the plan is ``optional``: then
    Stopped is raised. ``root``: node index of the server at which all ``chunks_per_server`` chunks are rooted (not for
    classical algorithms); None: so many at each participant. ``shape``: name of a ``Shape`` whose trees are kept
    to instead of packed ones (for "trees_augmented"). ``flows``: in-flight flows, which the plan keeps clear of, and
    ``ready`` (num_nodes,): seconds from when on each server's own contribution is there; classical algorithms know of
    neither and wait where they must. Raises InputError for an unknown name and bad numbers.
    """
    if name not in SCHEDULERS:
        raise InputError(f"scheduler {name!r}: unknown; choose one of {', '.join(SCHEDULERS)}")
    check_numbers(message_bytes, chunks_per_server, samples, seed)
    undisturbed = not flows.num_flows and (ready is None or not ready.any())
    if name in CLASSICAL:
        schedule = classical_schedule(name, topology, message_bytes, chunks_per_server)
        if undisturbed:
            return _one_sample(schedule)
        return _one_sample(retimed(replace(schedule, flows=flows, ready=ready)))
    if len(topology.participants) == 1:
        schedule = classical_schedule("ring", topology, message_bytes, chunks_per_server)
        return _one_sample(replace(schedule, planner={"name": name, "seed": seed}))
    sampler = replace(sampler_of(name, policy), shape=shape)
    sampling = Halves(
        sampler,
        message_bytes,
        chunks_per_server,
        samples,
        seed,
        paths or PathCache(),
        deadline,
        root,
        shape,
        optional,
    )
    roots = np.repeat(topology.participants if root is None else root, chunks_per_server).astype(np.int32)
    planner = {"name": name, "seed": seed, "samples": samples, "chunks_per_server": chunks_per_server}
    if not undisturbed:
        schedule, makespans = plan_beside(sampling, topology, roots, flows, ready, planner, target)
        return Sampled(schedule, makespans, sampler.singles(makespans))
    halves: list[NDArray[np.float64]] = []

    def half(network: Topology) -> Transfers:
        # A half that is mirrored takes half of the whole; halves planned apart are not stopped early.
        found = sampling.draw(network, as_planned, target / 2.0 if topology.opposite is not None else 0.0)
        halves.append(found.values)
        return transfers_of(found)

    schedule = allreduce_from_broadcast(topology, message_bytes, roots, half, planner)
    count = min(len(h) for h in halves)
    both = 2.0 * halves[0] if len(halves) == 1 else halves[0][:count] + halves[1][:count]
    return Sampled(schedule, both, sampler.singles(both))
