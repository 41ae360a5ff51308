"""What is left of an all-gather: copies in several places or on their way, needed by some servers alone."""

import numpy as np
import pytest

from gnnsched.collective.decode.decoder import Decoding, Instance
from gnnsched.collective.decode.demand import Demand, all_gather_demand
from gnnsched.collective.decode.presets import (
    GREEDY_AUGMENTED,
    TREES_AUGMENTED,
    greedy_scores,
    linear_scores,
    tree_scores,
)
from gnnsched.collective.flows import on_links, taken_by
from gnnsched.models.policy import Policy
from gnnsched.topology import Topology
from gnnsched.topology.generators import bcube, random_heterogeneous, star

MESSAGE = 1e9
SCORERS = [(greedy_scores, GREEDY_AUGMENTED), (tree_scores, TREES_AUGMENTED), (linear_scores, Decoding())]
SCORERS += [(Policy().eval().scores, Decoding())]


def random_demand(network: Topology, chunks: int, rng: np.random.Generator) -> Demand:
    since = np.full((network.num_nodes, chunks), np.inf)
    needed = np.zeros((network.num_nodes, chunks), bool)
    for c in range(chunks):
        order = rng.permutation(network.servers)
        copies = int(rng.integers(1, len(order)))
        since[order[:copies], c] = np.where(rng.random(copies) < 0.5, 0.0, rng.uniform(0.0, 1.0, copies))
        needed[order[copies:], c] = rng.random(len(order) - copies) < 0.7
    return Demand(since, needed)


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("number", range(len(SCORERS)))
def test_everybody_gets_what_is_needed_and_nobody_sends_what_is_not_there(seed: int, number: int) -> None:
    rng = np.random.default_rng(seed)
    network = random_heterogeneous(rng, max_servers=8)
    demand = random_demand(network, int(rng.integers(1, 12)), rng)
    instance = Instance(network, MESSAGE, 1, seed, demand=demand)
    scores, decoding = SCORERS[number]
    episode = instance.decode(scores(instance), decoding, rng)
    plan = instance.transfers(episode.state)
    have = demand.since.copy()
    for i in np.argsort(plan.end, kind="stable"):
        s, d, c = plan.source[i], plan.target[i], plan.chunk[i]
        assert have[s, c] <= plan.start[i] + 1e-9
        assert have[d, c] == np.inf
        have[d, c] = plan.end[i]
    assert np.isfinite(have[demand.needed]).all()
    wanted = have[demand.needed & ~np.isfinite(demand.since)]
    assert episode.makespan == pytest.approx(wanted.max(initial=0.0))
    # no relay is fed for nothing
    idle = ~demand.needed[plan.target, plan.chunk]
    for i in np.flatnonzero(idle):
        assert ((plan.source == plan.target[i]) & (plan.chunk == plan.chunk[i])).any()
    owner = np.repeat(np.arange(len(plan)), np.diff(plan.path_start))
    work = instance.chunk_bytes / plan.rate
    # latency moves all occupancies of a link alike: it is left out
    plain = on_links(plan.path_links, plan.rate[owner], plan.start[owner], (plan.start + work)[owner])
    if not network.latency.any():
        taken = taken_by(plain, network.num_links)
        link = np.repeat(np.arange(network.num_links), np.diff(taken.start))
        assert (taken.rate <= network.bandwidth[link] * (1 + 1e-6)).all()


def test_nothing_left_to_do() -> None:
    network = star([1e9] * 3)
    since = np.zeros((network.num_nodes, 2))
    demand = Demand(since, np.ones((network.num_nodes, 2), bool))
    instance = Instance(network, MESSAGE, 1, demand=demand)
    episode = instance.decode(greedy_scores(instance), GREEDY_AUGMENTED, np.random.default_rng(0))
    assert episode.makespan == 0.0
    assert len(instance.transfers(episode.state)) == 0


def test_a_whole_all_gather_as_a_demand_is_the_same_plan() -> None:
    network = bcube(2, 1)
    plain = Instance(network, MESSAGE, 2)
    roots = np.repeat(network.participants, 2)
    asked = Instance(network, MESSAGE, 2, demand=all_gather_demand(network, roots))
    plans = [
        own.transfers(own.decode(linear_scores(own), Decoding(), np.random.default_rng(3)).state)
        for own in (plain, asked)
    ]
    np.testing.assert_array_equal(plans[0].start, plans[1].start)
    np.testing.assert_array_equal(plans[0].path_links, plans[1].path_links)


def test_of_two_copies_the_near_one_is_taken() -> None:
    """A line a - b - c - d: d gets the chunk that a and c have from c."""
    ends = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    line = Topology.from_arrays(
        "line", list("abcd"), [False] * 4, [s for s, _ in ends], [d for _, d in ends], [1e9] * 6, [0.0] * 6
    )
    since = np.full((4, 1), np.inf)
    since[[0, 2], 0] = 0.0
    needed = np.zeros((4, 1), bool)
    needed[3, 0] = True
    instance = Instance(line, MESSAGE, 1, demand=Demand(since, needed))
    plan = instance.transfers(
        instance.decode(greedy_scores(instance), GREEDY_AUGMENTED, np.random.default_rng(0)).state
    )
    assert (plan.source.tolist(), plan.target.tolist()) == ([2], [3])
