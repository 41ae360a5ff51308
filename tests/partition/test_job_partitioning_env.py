"""The environment: gymnasium's checker, spaces, rewards, refusals, and a cluster kept beside it."""

import warnings
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.utils.seeding import np_random
from gymnasium.vector import SyncVectorEnv
from plain_partition import plan
from small_jobs import chain, profile

from gnnsched.partition import JOB_PARTITIONING
from gnnsched.partition.env import JobPartitioningEnv
from gnnsched.partition.features import FEATURES
from gnnsched.partition.job_graph import mirrored
from gnnsched.partition.observation import GRAPH_FEATURES, Pool, edge_features, node_features
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.workload import beta_distribution, draw_arrivals
from gnnsched.partition.world import World, make_world
from gnnsched.topology import InputError


@cache
def small_world() -> World:
    """Twelve workers, of which blocks of 1, 2, 4, 6 and 12 exist, and three jobs that take some arrivals each."""
    fork = profile([20.0, 40.0, 0.0, 60.0], [(0, 1), (0, 2), (1, 3), (2, 3)], activation=[1e9] * 4)
    jobs = [chain([30.0, 50.0], 50, "short"), chain([0.0, 90.0, 90.0], 50, "long"), mirrored(fork, 50)]
    return make_world(Ramp(3, 2, 2), jobs, 1.0)


def small_env(**changes: Any) -> JobPartitioningEnv:
    return JobPartitioningEnv(**({"world": small_world(), "arrivals": 60} | changes))


def random_action(env: JobPartitioningEnv, rng: np.random.Generator, mask: np.ndarray) -> np.int64:
    """Mostly a legal one that is no refusal, where there is one."""
    if rng.random() < 0.1:
        return np.int64(rng.integers(env.action_space.n))
    legal = np.flatnonzero(mask)
    return np.int64(legal[-1] if rng.random() < 0.5 else rng.choice(legal))


@pytest.mark.parametrize("distribution", ["A", "B"])
def test_check_env_passes(distribution: str) -> None:
    env = gymnasium.make(
        JOB_PARTITIONING, world=small_world(), distribution=distribution, arrivals=20, interarrival=500.0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_it_is_registered_with_the_published_cluster_and_jobs() -> None:
    env = gymnasium.make("gnnsched/JobPartitioning-v0", distribution="D", arrivals=5)
    inner = env.unwrapped
    assert isinstance(inner, JobPartitioningEnv)
    assert inner.world.cluster == Ramp()
    assert inner.world.model_names == ("alexnet", "vgg16", "resnet18", "squeezenet", "gnmt")
    assert inner.world.time_unit == 1e-3
    assert env.action_space == gymnasium.spaces.Discrete(17)
    observation, info = env.reset(seed=0)
    assert observation["worker_free"].tolist() == [1] * 32
    # On RAMP's 32 workers there are no blocks of an odd number above 1, nor of 10, 12 or 14.
    assert set(np.flatnonzero(info["action_mask"])) <= {0, 1, 2, 4, 6, 8, 16}
    assert info["action_mask"][16]


@pytest.mark.parametrize("seed", range(4))
def test_an_episode_is_that_of_a_cluster_kept_beside_it(seed: int) -> None:
    """Observations lie in their space; busy workers, masks, rewards and times are those of a plain account."""
    world = small_world()
    env = small_env(distribution="ABCD"[seed])
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    arrivals = draw_arrivals(3, beta_distribution("ABCD"[seed]), np_random(seed)[0], 1.0, 60)
    known = world.tables.degree.tolist()
    release, ends, total, completed, refused = np.zeros(12), [], 0.0, 0, 0
    for i in range(60):
        now, m, beta = i * 1000.0, int(arrivals.model[i]), float(arrivals.beta[i])
        assert env.observation_space.contains(observation)
        np.testing.assert_array_equal(observation["action_mask"], info["action_mask"])
        wanted = np.clip((release - now) / 1000.0, 0.0, 64.0)
        np.testing.assert_allclose(observation["worker_free_in"], wanted, rtol=1e-6)
        np.testing.assert_array_equal(observation["worker_free"], release <= now)
        shown = dict(zip(GRAPH_FEATURES, observation["graph"].tolist()))
        assert shown["beta"] == pytest.approx(beta)
        assert shown["busy_workers"] == pytest.approx((release > now).mean())
        assert shown["running_jobs"] == pytest.approx(sum(end > now for end in ends) / 12)
        assert int(observation["node_count"][0]) == world.models[m].num_ops
        legal = {0: None}
        for j, degree in enumerate(known):
            found = plan(world, release, now, m, j)
            if found is not None and found.time <= beta * world.models[m].sequential_time * (1 + 1e-9):
                legal[degree] = found
        assert np.flatnonzero(observation["action_mask"]).tolist() == sorted(legal)
        for degree in range(17):
            assert observation["choices"][degree].any() == (degree in legal)
        assert observation["choices"][0, FEATURES.index("refuse")] == 1.0
        action = random_action(env, rng, observation["action_mask"])
        observation, reward, terminated, truncated, info = env.step(action)
        found = legal.get(int(action))
        assert info["illegal"] == (int(action) not in legal)
        refused += info["illegal"]
        done = False
        if found is not None:
            release[list(found.held)] = now + found.time
            ends.append(now + found.time)
            done = now + found.time <= 59_000.0
        assert reward == (1.0 if done else -1.0)
        assert info["jct"] == (pytest.approx(found.time, rel=1e-12) if found is not None and done else 0.0)
        total += reward
        completed += done
        assert (terminated, truncated) == (i == 59, False)
    assert env.observation_space.contains(observation)
    assert total == 2 * completed - 60
    assert completed > 5
    assert refused > 0


def test_an_illegal_action_is_a_refusal() -> None:
    """Degrees without a block, or too slow, or without room: the same as 0, and nothing is held."""
    for action in (3, 16):
        one, other = small_env(), small_env()
        one.reset(seed=1)
        other.reset(seed=1)
        seen, reward, _, _, info = one.step(np.int64(action))
        expected, _, _, _, plain = other.step(np.int64(0))
        assert info["illegal"]
        assert not plain["illegal"]
        assert reward == -1.0
        assert data_equivalence(seen, expected, exact=True)
        assert seen["worker_free"].all()


def test_same_seed_same_episode() -> None:
    env = small_env()

    def played(seed: int | None) -> list[Any]:
        rng = np.random.default_rng(0)
        observation, info = env.reset(seed=seed)
        made: list[Any] = [observation]
        for _ in range(60):
            observation, reward, _, _, info = env.step(random_action(env, rng, observation["action_mask"]))
            made += [observation, reward, info]
        return made

    first = played(4)
    assert data_equivalence(played(4), first, exact=True)
    # Without a seed the generator goes on, and another seed is another episode.
    assert not data_equivalence(played(None), first)
    assert not data_equivalence(played(5), first)


def test_what_was_observed_does_not_change_afterwards() -> None:
    env = small_env()
    observation, info = env.reset(seed=0)
    kept = {name: value.copy() for name, value in observation.items()}
    for _ in range(20):
        _, _, _, _, later = env.step(np.int64(1))
        later["action_mask"][:] = 7
    assert data_equivalence(observation, kept, exact=True)
    assert set(np.unique(info["action_mask"])) <= {0, 1}


def test_vector_environments() -> None:
    envs = SyncVectorEnv([small_env, lambda: small_env(distribution="C")])
    observation, _ = envs.reset(seed=3)
    assert observation["choices"].shape == (2, 17, len(FEATURES))
    rewards = np.zeros(2)
    for _ in range(60):
        observation, reward, terminated, _, _ = envs.step(np.zeros(2, np.int64))
        rewards += reward
    assert terminated.all()
    assert rewards.tolist() == [-60.0, -60.0]


@pytest.mark.parametrize("action", [17, -1, 1.0, "2", np.array([1]), None])
def test_what_is_no_degree_is_refused(action: Any) -> None:
    env = small_env()
    env.reset(seed=0)
    with pytest.raises(InputError, match="give an integer from 0 to 16") as caught:
        env.step(action)
    assert "\n" not in str(caught.value)


def test_an_episode_that_is_over_or_not_begun_takes_no_step() -> None:
    env = small_env(arrivals=1)
    with pytest.raises(InputError, match="call reset first"):
        env.step(np.int64(0))
    env.reset(seed=0)
    # The only job cannot be done by the horizon, the moment at which it arrives.
    assert env.step(np.int64(1))[1:4] == (-1.0, True, False)
    with pytest.raises(InputError, match="call reset first"):
        env.step(np.int64(0))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"distribution": "E"}, "distribution 'E'"),
        ({"arrivals": 0}, "arrivals: 0"),
        ({"interarrival": 0.0}, "interarrival: 0.0"),
        ({"arrivals": 1.5}, "arrivals: 1.5"),
        ({"interarrival": float("nan")}, "interarrival: nan"),
        ({"interarrival": float("inf")}, "interarrival: inf"),
        ({"world": None, "holding": "tight"}, "holding: 'tight'"),
        ({"world": None, "cluster": "ramp31"}, "cluster 'ramp31'"),
        ({"world": None, "cluster": "nowhere.json"}, "cluster 'nowhere.json'"),
        ({"world": None, "profiles": "nowhere"}, "nowhere: no such folder"),
    ],
)
def test_arguments_that_make_no_episode(arguments: dict, named: str) -> None:
    with pytest.raises(InputError, match=named) as caught:
        small_env(**arguments)
    assert "\n" not in str(caught.value)


# The graph and the pool


def test_features_of_a_job_by_hand() -> None:
    graph = mirrored(
        profile([1.0, 4.0], [(0, 1)], backward=[2.0, 4.0], activation=[6.0, 2.0], parameter=[0.0, 1.0])
    )
    # Compute and memory over the largest of 4 s and 6 bytes, depth over 4; both ops of 4 s are the longest.
    np.testing.assert_allclose(
        node_features(graph),
        [
            [0.25, 0.0, 1.0, 1.0, 0.25],
            [1.0, 1.0, 0.5, 0.0, 0.5],
            [1.0, 1.0, 0.5, 0.0, 0.75],
            [0.5, 0.0, 1.0, 1.0, 1.0],
        ],
    )
    # 0 -> 1 carries 6 bytes, 2 -> 3 and the joining edge 2.
    np.testing.assert_allclose(edge_features(graph), [[1.0, 1.0], [1 / 3, 0.0], [1 / 3, 0.0]])


def test_features_of_a_pool_by_hand() -> None:
    """Scaled from the least to the largest of the pool; limits from a tenth of the shortest job to the longest."""
    small = mirrored(profile([1.0], backward=[3.0], activation=[1.0]), steps=10)
    large = mirrored(profile([4.0, 8.0], [(0, 1)], backward=[4.0, 4.0], activation=[2.0, 4.0]), steps=10)
    middle = mirrored(profile([6.0], backward=[6.0], activation=[4.0]), steps=10)
    pool = Pool([small, large, middle])
    shown = dict(zip(GRAPH_FEATURES, pool.graph_features(middle, 0.4, 0.25, 0.125).tolist()))
    assert shown == pytest.approx(
        {
            "ops": 0.0,
            "edges": 0.0,
            # 120 s of 40 to 200.
            "sequential_time": 0.5,
            "limit": (48.0 - 4.0) / (200.0 - 4.0),
            "beta_in_pool": 0.3 / 0.9,
            "beta": 0.4,
            # 8 bytes of 2 to 12; edges carry 4 of 1 to 10.
            "memory": 0.6,
            "edge_bytes": 3 / 9,
            "training_steps": 1.0,
            "mean_compute": 1.0,
            "median_compute": 1.0,
            "mean_memory": 1.0,
            "median_memory": 1.0,
            "mean_edge_size": 1.0,
            "median_edge_size": 1.0,
            "busy_workers": 0.25,
            "running_jobs": 0.125,
        }
    )
    largest = dict(zip(GRAPH_FEATURES, pool.graph_features(large, 1.0, 0.0, 0.0).tolist()))
    for name in ("ops", "edges", "sequential_time", "limit", "beta_in_pool", "memory", "edge_bytes"):
        assert largest[name] == 1.0
    assert largest["mean_compute"] == pytest.approx((4 + 8 + 4 + 4) / 4 / 8)
    assert largest["median_compute"] == 0.5
