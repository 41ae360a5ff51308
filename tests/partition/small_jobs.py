"""Small jobs, clusters and worlds for the tests of the partitioning, by hand and at random."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gnnsched.partition.job_graph import JobGraph, JobProfile, mirrored
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.world import Holding, World, make_world

# PipeDream's profiles lie beside the repository, not in it.
PROFILES = Path(__file__).parents[2].parent / "shared" / "profiles"
needs_profiles = pytest.mark.skipif(
    not (PROFILES / "alexnet.txt").is_file(), reason="PipeDream's profiles are not beside the repository"
)

# Clusters of 8, 9, 16, 12 and 32 workers.
CLUSTERS = ((2, 2, 2), (3, 3, 1), (2, 2, 4), (3, 2, 2), (4, 4, 2))


def profile(
    forward: Sequence[float],
    edges: Sequence[tuple[int, int]] = (),
    backward: Sequence[float] | None = None,
    activation: Sequence[float] | None = None,
    parameter: Sequence[float] | None = None,
    name: str = "job",
) -> JobProfile:
    """A profile from plain lists; what is not given: as long backwards as forwards, no bytes."""
    count = len(forward)
    return JobProfile(
        name=name,
        op_names=tuple(f"Op{i + 1}()" for i in range(count)),
        forward_time=np.array(forward, float),
        backward_time=np.array(forward if backward is None else backward, float),
        activation_bytes=np.zeros(count) if activation is None else np.array(activation, float),
        parameter_bytes=np.zeros(count) if parameter is None else np.array(parameter, float),
        edges=np.array(sorted(edges), np.int64).reshape(-1, 2),
    )


def random_profile(rng: np.random.Generator, most: int = 7, byte_scale: float = 1e9) -> JobProfile:
    """A random graph without cycles whose ids follow no order, with ops of no time and of few quanta among them."""
    count = int(rng.integers(1, most + 1))
    name_of = rng.permutation(count)
    edges = [
        (int(name_of[u]), int(name_of[v]))
        for u in range(count)
        for v in range(u + 1, count)
        if rng.random() < 0.5
    ]
    # A quantum is 0.01: times of 0.01 to 0.15 are where ops of one job get different degrees.
    kind = rng.integers(3, size=count)
    forward = np.choose(
        kind, (np.zeros(count), rng.uniform(0.005, 0.15, count), rng.uniform(0.2, 9.0, count))
    )
    backward = rng.uniform(0.0, 5.0, count) * (rng.random(count) < 0.8)
    backward[0] += 0.01
    activation, parameter = byte_scale * rng.random((2, count)) * (rng.random((2, count)) < 0.8)
    return profile(forward.tolist(), edges, backward.tolist(), activation.tolist(), parameter.tolist())


def random_world(
    seed: int, holding: Holding = "faithful", worker_memory: float = 80e9, models: int = 2
) -> World:
    """Some random jobs of two steps each on one of the small clusters."""
    rng = np.random.default_rng(seed)
    groups, racks, servers = CLUSTERS[int(rng.integers(len(CLUSTERS)))]
    cluster = Ramp(
        groups, racks, servers, node_bandwidth=groups * 1e9, latency=1e-3, worker_memory=worker_memory
    )
    jobs = [mirrored(random_profile(rng), steps=2) for _ in range(models)]
    return make_world(cluster, jobs, 1.0, holding)


def chain(seconds: Sequence[float], steps: int = 1, name: str = "job", activation: float = 0.0) -> JobGraph:
    """A job of ops one after the other, without a backward pass worth the name."""
    count = len(seconds)
    return mirrored(
        profile(
            seconds,
            [(i, i + 1) for i in range(count - 1)],
            backward=[0.0] * count,
            activation=[activation] * count,
            name=name,
        ),
        steps,
    )


def random_release(rng: np.random.Generator, workers: int, now: float, longest: float) -> np.ndarray:
    """When each worker is free: about half of them are so now, in runs, as jobs leave them."""
    release = np.where(rng.random(workers) < 0.5, 0.0, now + longest * rng.random(workers))
    begin = int(rng.integers(workers))
    release[begin : begin + int(rng.integers(1, workers + 1))] = rng.choice([0.0, now, now + longest])
    return release
