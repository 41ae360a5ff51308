"""Compiling the kernels before they are needed."""

import numpy as np

from gnnsched.partition.baselines import run_baseline
from gnnsched.partition.compiled_policy import run_policy, weights_of
from gnnsched.partition.expert import judge
from gnnsched.partition.fleet import Fleet
from gnnsched.partition.job_graph import JobProfile, mirrored
from gnnsched.partition.lookahead import Lookahead, run_lookahead
from gnnsched.partition.network import PartitionPolicy, join_jobs
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.workload import beta_distribution, draw_arrivals
from gnnsched.partition.world import make_world


def warm_up() -> None:
    """Load (the first time compile) the kernels of simulator, policy, lookahead and training."""
    ones = np.ones(2)
    profile = JobProfile("warm up", ("a", "b"), ones, ones, ones, ones, np.array([[0, 1]]))
    world = make_world(Ramp(2, 2, 2), [mirrored(profile)], 1.0)
    betas, rng = beta_distribution("A"), np.random.default_rng(0)
    arrivals = draw_arrivals(1, betas, rng, world.time_unit, count=3)
    run_baseline(world, arrivals, "max", rng)
    weights = weights_of(PartitionPolicy(), join_jobs(world.jobs))
    run_policy(world, arrivals, weights)
    run_lookahead(world, arrivals, weights, betas, rng, Lookahead(2, 2))
    fleet = Fleet(world, 4, rng)
    fleet.rule_rows([np.zeros(3, np.int64)] * 4)
    fleet.act(np.zeros(4, np.int64))
    judge(fleet, weights, 1, 2, Lookahead(2, 2))
