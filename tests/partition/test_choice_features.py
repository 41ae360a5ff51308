"""What the policy sees of a decision: every feature against a plain computation, and what is masked."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_partition import choice_rows, fits, plan
from small_jobs import chain, random_profile, random_release, random_world

from gnnsched.partition.features import (
    AFTER_FEATURES,
    FEATURES,
    Choices,
    act_many,
    no_choices,
    observe,
    observe_many,
    see,
)
from gnnsched.partition.job_graph import mirrored
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.topology_cluster import TopologyCluster
from gnnsched.partition.world import World, make_world
from gnnsched.topology.generators import bcube


@cache
def topology_world() -> World:
    """Nine servers of a BCube, the time of an AllReduce its bound."""
    rng = np.random.default_rng(3)
    jobs = [mirrored(random_profile(rng), steps=2) for _ in range(2)]
    return make_world(TopologyCluster(bcube(3, 1), factor=1.0), jobs, 1.0)


def world_of(seed: int) -> World:
    """A few worlds for many states: making one takes longer than observing it."""
    return topology_world() if seed % 4 == 3 else random_world(seed % 6, models=2)


class State:
    """A cluster in the middle of an episode, and the job that arrives."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        tables = world.tables
        self.interarrival = float(tables.sequential.mean() * rng.uniform(0.02, 0.6))
        self.at = int(rng.integers(1, 40))
        self.now = self.at * self.interarrival
        self.horizon = self.now + self.interarrival * float(rng.integers(0, 30))
        self.release = random_release(rng, tables.workers, self.now, 20.0 * self.interarrival)
        count = int(rng.integers(1, 20))
        self.models = rng.integers(len(world.models), size=count).tolist()
        self.betas = np.round(rng.uniform(0.1, 1.0, count), 2).tolist()
        self.sequentials = [world.models[m].sequential_time for m in self.models]
        self.seen = np.zeros(4)
        for beta, sequential in zip(self.betas, self.sequentials):
            see(self.seen, beta, sequential)

    @property
    def model(self) -> int:
        return self.models[-1]

    @property
    def beta(self) -> float:
        return self.betas[-1]

    def observed(self, world: World, choices: Choices) -> Choices:
        observe(
            world.tables,
            self.release,
            self.now,
            self.model,
            self.beta,
            self.seen,
            self.interarrival,
            self.horizon,
            choices,
        )
        return choices


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.booleans())
def test_every_feature_is_what_its_name_says(seed: int, told: bool) -> None:
    world = world_of(seed) if told else world_of(seed).without_times()
    state = State(world, np.random.default_rng(seed))
    choices = no_choices(world.tables)
    # What was there before must not show.
    choices.rows[:] = 7.0
    choices.mask[:] = True
    state.observed(world, choices)
    rows, mask = choice_rows(
        world,
        state.release,
        state.now,
        state.model,
        state.beta,
        state.betas,
        state.sequentials,
        state.interarrival,
        state.horizon,
    )
    assert choices.mask.tolist() == mask.tolist()
    assert choices.rows.shape == (len(world.tables.degree) + 1, len(FEATURES))
    for row, plain in zip(choices.rows, rows):
        for name, value, wanted in zip(FEATURES, row, plain, strict=True):
            assert value == pytest.approx(wanted, rel=1e-5, abs=1e-6), name


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_the_mask_is_what_can_be_placed_and_meets_the_limit(seed: int) -> None:
    world = world_of(seed)
    state = State(world, np.random.default_rng(seed))
    before = state.release.copy()
    choices = state.observed(world, no_choices(world.tables))
    np.testing.assert_array_equal(state.release, before)
    assert choices.mask[0]
    assert choices.rows[0, FEATURES.index("refuse")] == 1.0
    for j in range(len(world.tables.degree)):
        found = plan(world, state.release, state.now, state.model, j)
        assert choices.mask[j + 1] == fits(world, found, state.model, state.beta)
        if not choices.mask[j + 1]:
            assert not choices.rows[j + 1].any()
        else:
            assert choices.rows[j + 1, FEATURES.index("refuse")] == 0.0
            assert found is not None
            limit = state.beta * world.tables.sequential[state.model]
            part = choices.rows[j + 1, FEATURES.index("time_over_limit")]
            assert part == pytest.approx(found.time / limit, rel=1e-6)


def test_after_states_by_hand() -> None:
    """An empty cluster of 2 x 2 x 2; a job of 8 s in 4 parts holds one of the two aligned blocks of 4 for 2 s."""
    world = make_world(Ramp(2, 2, 2), [chain([8.0])], 1.0)
    choices = no_choices(world.tables)
    seen = np.zeros(4)
    see(seen, 0.5, 8.0)
    observe(world.tables, np.zeros(8), 0.0, 0, 0.5, seen, 1.0, 8.0, choices)
    # Degrees 1, 2, 4 and 8; on one worker it takes 8 s of the 4 s that it may.
    assert choices.mask.tolist() == [True, False, True, True, True]
    time = choices.rows[:, FEATURES.index("time_over_limit")]
    assert time.tolist() == [0.0, 0.0, 1.0, 0.5, 0.25]
    row = dict(zip(FEATURES, choices.rows[3].tolist()))
    wanted = {
        "free_aligned_blocks_of_1_after_0": 0.5,
        "free_aligned_blocks_of_2_after_0": 0.5,
        "free_aligned_blocks_of_4_after_0": 0.5,
        "free_aligned_blocks_of_8_after_0": 0.0,
        "free_aligned_blocks_of_4_after_1": 0.5,
        "free_aligned_blocks_of_4_after_2": 1.0,
        "free_aligned_blocks_of_8_after_2": 1.0,
        # No such blocks on this cluster.
        "free_aligned_blocks_of_6_after_0": 0.0,
        "any_free_block_of_16_after_16": 0.0,
        "any_free_block_of_4_after_1": 1.0,
        "any_free_block_of_8_after_1": 0.0,
        "any_free_block_of_8_after_2": 1.0,
        "refuse": 0.0,
        "log_degree": 0.5,
        "time_over_limit": 0.5,
        "log_time_in_arrivals": np.log2(3.0) / 4.0,
        "workers_held": 0.5,
        "work_in_arrivals": 1.0,
        "beta": 0.5,
        "log_sequential_in_arrivals": np.log2(9.0) / 5.0,
        "sequential_over_mean": 1.0,
        "mean_beta": 0.5,
        # Four arrivals of spread 0.2 are taken for granted, and one of 0.5 is none off their mean.
        "spread_of_beta": (4 * 0.04 / 5) ** 0.5,
        "log_arrivals_seen": np.log(2.0) / 7.0,
        "horizon_left": 0.5,
        "side_blocks": 1.0,
    }
    for name, value in wanted.items():
        assert row[name] == pytest.approx(value, rel=1e-6), name
    refused = dict(zip(FEATURES, choices.rows[0].tolist()))
    degrees_there = [name for name in AFTER_FEATURES if "of_6_" not in name and "of_16_" not in name]
    assert all(refused[name] == 1.0 for name in degrees_there)
    assert all(refused[name] == row[name] for name in FEATURES[-8:])


def test_aligned_blocks_fill_the_cluster() -> None:
    """By first fit: two of 16 and four of 8 on 32 workers, and no worker is in two of them."""
    world = make_world(Ramp(), [chain([1.0])], 1.0)
    tables = world.tables
    counts = {}
    for j, degree in enumerate(tables.degree.tolist()):
        own = (tables.block_degree == j) & tables.aligned
        members = tables.block_workers[own, :degree].ravel().tolist()
        assert len(set(members)) == len(members)
        counts[degree] = int(own.sum())
    assert counts == {1: 32, 2: 16, 4: 8, 6: 4, 8: 4, 16: 2}


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.booleans())
def test_many_episodes_at_once_are_each_alone(seed: int, told: bool) -> None:
    world = world_of(seed) if told else world_of(seed).without_times()
    tables = world.tables
    rng = np.random.default_rng(seed)
    states = [State(world, rng) for _ in range(3)]
    for state in states:
        state.interarrival, state.horizon = states[0].interarrival, states[0].horizon
        state.now = state.at * state.interarrival
    rows_of = len(tables.degree) + 1
    rows = np.full((3, rows_of, len(FEATURES)), 7.0, np.float32)
    mask = np.zeros((3, rows_of), bool)
    release = np.stack([state.release for state in states])
    at = np.array([state.at for state in states])
    model = np.array([state.model for state in states])
    beta = np.array([state.beta for state in states])
    shared = (states[0].interarrival, states[0].horizon)
    observe_many(
        tables,
        release,
        at,
        model,
        beta,
        np.stack([state.seen for state in states]),
        *shared,
        rows,
        mask,
    )
    alone = [state.observed(world, no_choices(tables)) for state in states]
    for e in range(3):
        np.testing.assert_array_equal(rows[e], alone[e].rows)
        np.testing.assert_array_equal(mask[e], alone[e].mask)
    chosen = np.array([rng.choice(np.flatnonzero(own)) for own in mask])
    accepted = np.ones(3, bool)
    after = release.copy()
    act_many(tables, after, at, model, beta, chosen, *shared, accepted)
    for e, state in enumerate(states):
        wanted = state.release.copy()
        end = state.now
        if chosen[e]:
            found = plan(world, state.release, state.now, state.model, int(chosen[e]) - 1)
            assert found is not None
            if not fits(world, found, state.model, state.beta):
                # Who is not told of times may choose too few ways; such a job runs until its limit in vain.
                assert not told
                assert not accepted[e]
                wanted[list(found.held)] = state.now + state.beta * world.models[state.model].sequential_time
                np.testing.assert_allclose(after[e], wanted, rtol=1e-12)
                continue
            end += found.time
            wanted[list(found.held)] = end
        np.testing.assert_allclose(after[e], wanted, rtol=1e-12)
        # What still runs at the horizon does not count.
        assert accepted[e] == (chosen[e] > 0 and end <= state.horizon * (1 + 1e-12))
