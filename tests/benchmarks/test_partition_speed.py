"""Speed of episodes of arriving jobs, off by default: ``pytest -o addopts= tests/benchmarks``."""

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from gnnsched.partition.baselines import run_baseline
from gnnsched.partition.cases import load_world
from gnnsched.partition.compiled_policy import run_policy, weights_of
from gnnsched.partition.lookahead import run_lookahead
from gnnsched.partition.network import PartitionPolicy, join_jobs
from gnnsched.partition.workload import beta_distribution, draw_arrivals
from gnnsched.partition.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return load_world("ramp32", None)


def test_an_episode_of_a_baseline(benchmark: BenchmarkFixture, world: World) -> None:
    """At least 200 a second."""
    rng = np.random.default_rng(0)
    arrivals = draw_arrivals(len(world.models), beta_distribution("A"), rng, world.time_unit)
    benchmark(run_baseline, world, arrivals, "max", rng)


@pytest.mark.parametrize("ahead", [False, True])
def test_an_episode_of_the_policy(benchmark: BenchmarkFixture, world: World, ahead: bool) -> None:
    """Under 5 s, with lookahead under 120 s."""
    rng, betas = np.random.default_rng(0), beta_distribution("A")
    arrivals = draw_arrivals(len(world.models), betas, rng, world.time_unit)
    weights = weights_of(PartitionPolicy(), join_jobs(world.jobs))
    if ahead:
        benchmark.pedantic(run_lookahead, (world, arrivals, weights, betas, rng), rounds=1)
    else:
        benchmark(run_policy, world, arrivals, weights)
