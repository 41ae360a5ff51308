"""The policy: compiled as in torch, blind to what is masked, and kept in a checkpoint."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.utils.seeding import np_random
from hypothesis import given, settings
from hypothesis import strategies as st
from small_jobs import chain, profile

from gnnsched.models.policy import Policy
from gnnsched.partition.checkpoint import PARTITION, load_partition_policy
from gnnsched.partition.cluster import collective_time
from gnnsched.partition.compiled_policy import Weights, best_row, run_policy, value_of, weights_of
from gnnsched.partition.env import JobPartitioningEnv
from gnnsched.partition.features import FEATURES
from gnnsched.partition.job_graph import mirrored
from gnnsched.partition.network import Embedding, JobBatch, PartitionConfig, PartitionPolicy, join_jobs
from gnnsched.partition.observation import (
    NETWORK_EDGE_FEATURES,
    NETWORK_NODE_FEATURES,
    SUMMARY_FEATURES,
    job_input,
)
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.topology_cluster import TopologyCluster
from gnnsched.partition.workload import beta_distribution, draw_arrivals
from gnnsched.partition.world import World, make_world
from gnnsched.topology import InputError
from gnnsched.topology.generators import hub
from gnnsched.training.checkpoint import describe_checkpoint, load_checkpoint, save_checkpoint

EMBEDDINGS: tuple[Embedding, ...] = ("graph", "summary", "none")
NARROW = PartitionConfig(width=8, graph_width=4, rounds=1)


def some_policy(seed: int = 0, config: PartitionConfig | None = None) -> PartitionPolicy:
    """With scores so far apart that rounding decides nothing."""
    torch.manual_seed(seed)
    policy = PartitionPolicy(config)
    with torch.no_grad():
        policy.score.weight.mul_(30.0)
    return policy.eval()


@cache
def crowded_world() -> World:
    """Eight workers and three jobs of 4000 to 9000 s at arrivals 1000 s apart."""
    fork = profile([20.0, 40.0, 0.0, 60.0], [(0, 1), (0, 2), (1, 3), (2, 3)], activation=[1e9] * 4)
    jobs = [chain([30.0, 50.0], 50, "short"), chain([0.0, 90.0, 90.0], 50, "long"), mirrored(fork, 50)]
    return make_world(Ramp(2, 2, 2), jobs, 1.0)


def random_decision(rng: np.random.Generator, degrees: int) -> tuple[np.ndarray, np.ndarray]:
    rows = rng.normal(size=(degrees + 1, len(FEATURES))).astype(np.float32)
    mask = rng.random(degrees + 1) < 0.6
    mask[0] = True
    return rows, mask


@torch.no_grad()
def in_torch(
    policy: PartitionPolicy, jobs: JobBatch, model: int, rows: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, float]:
    embedding = policy.embed(jobs)[model : model + 1]
    scores, value = policy(torch.from_numpy(rows)[None], torch.from_numpy(mask)[None], embedding)
    return scores[0].numpy(), float(value[0])


@cache
def compiled(seed: int, embedding: Embedding) -> tuple[PartitionPolicy, JobBatch, Weights]:
    policy = some_policy(seed, PartitionConfig(embedding=embedding))
    jobs = join_jobs(crowded_world().jobs)
    return policy, jobs, weights_of(policy, jobs)


@settings(max_examples=80)
@given(st.integers(0, 10**6), st.integers(0, 2), st.sampled_from(EMBEDDINGS))
def test_compiled_choice_and_value_are_the_networks(
    seed: int, policy_seed: int, embedding: Embedding
) -> None:
    policy, jobs, weights = compiled(policy_seed, embedding)
    rng = np.random.default_rng(seed)
    rows, mask = random_decision(rng, int(rng.integers(1, 8)))
    model = int(rng.integers(3))
    scores, value = in_torch(policy, jobs, model, rows, mask)
    chosen = best_row(weights, model, rows, mask)
    assert mask[chosen]
    assert scores[chosen] >= scores.max() - 1e-4
    assert value_of(weights, model, rows, mask) == pytest.approx(value, rel=1e-4, abs=1e-5)


def test_the_job_at_hand_counts() -> None:
    """The same rows, and other scores and values for each model."""
    policy, jobs, weights = compiled(0, "graph")
    rows, mask = random_decision(np.random.default_rng(0), 5)
    values = [value_of(weights, model, rows, mask) for model in range(3)]
    assert len({round(value, 6) for value in values}) == 3
    for model in range(3):
        assert values[model] == pytest.approx(in_torch(policy, jobs, model, rows, mask)[1], abs=1e-5)


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_what_is_masked_changes_nothing(seed: int) -> None:
    """Neither what stands in illegal rows, nor how many more of them follow, nor which batch it is in."""
    policy, jobs, weights = compiled(1, "graph")
    rng = np.random.default_rng(seed)
    rows, mask = random_decision(rng, int(rng.integers(1, 8)))
    scores, value = in_torch(policy, jobs, 0, rows, mask)
    assert np.exp(scores).sum() == pytest.approx(1.0, abs=1e-5)
    assert (scores[~mask] == -np.inf).all()
    more = int(rng.integers(1, 6))
    other = np.concatenate((rows, np.zeros((more, len(FEATURES)), np.float32)))
    wider = np.concatenate((mask, np.zeros(more, bool)))
    other[~wider] = 100.0 * rng.normal(size=(int((~wider).sum()), len(FEATURES)))
    padded, same_value = in_torch(policy, jobs, 0, other, wider)
    np.testing.assert_allclose(padded[: len(mask)], scores, rtol=1e-4, atol=1e-5)
    assert (padded[len(mask) :] == -np.inf).all()
    assert same_value == pytest.approx(value, rel=1e-4, abs=1e-5)
    assert best_row(weights, 0, other, wider) == best_row(weights, 0, rows, mask)
    assert value_of(weights, 0, other, wider) == pytest.approx(value_of(weights, 0, rows, mask), abs=1e-6)


def test_a_single_legal_row_is_chosen_for_sure() -> None:
    policy, jobs, weights = compiled(0, "graph")
    rows, _ = random_decision(np.random.default_rng(0), 3)
    mask = np.array([True, False, False, False])
    assert best_row(weights, 2, rows, mask) == 0
    assert in_torch(policy, jobs, 2, rows, mask)[0][0] == 0.0


# Embeddings of the jobs' graphs


def test_embeddings_tell_models_apart() -> None:
    jobs = join_jobs(crowded_world().jobs)
    embedding = some_policy().embed(jobs).detach()
    assert embedding.shape == (3, PartitionConfig().graph_width)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (embedding[one] - embedding[other]).abs().max() > 1e-3


def test_embeddings_do_not_depend_on_the_batch() -> None:
    models = crowded_world().jobs
    policy = some_policy()
    together = policy.embed(join_jobs(models))
    for m in range(3):
        alone = policy.embed(join_jobs(models[m : m + 1]))
        torch.testing.assert_close(together[m : m + 1], alone, rtol=1e-5, atol=1e-6)


def test_embeddings_do_not_depend_on_the_order_of_edges() -> None:
    """But on where they are: the job with an edge turned round is another one."""
    policy = some_policy()
    jobs = join_jobs(crowded_world().jobs[2:])
    order = torch.randperm(len(jobs.edges), generator=torch.Generator().manual_seed(0))
    shuffled = JobBatch(jobs.nodes, jobs.edges[order], jobs.edge_index[:, order], jobs.graph, jobs.summary)
    torch.testing.assert_close(policy.embed(jobs), policy.embed(shuffled), rtol=1e-5, atol=1e-6)
    turned = JobBatch(jobs.nodes, jobs.edges, jobs.edge_index.flip(0), jobs.graph, jobs.summary)
    assert (policy.embed(jobs) - policy.embed(turned)).abs().max() > 1e-3


def test_a_policy_without_embedding_knows_nothing_of_a_graph() -> None:
    jobs = join_jobs(crowded_world().jobs)
    embedding = some_policy(config=PartitionConfig(embedding="none")).embed(jobs)
    assert embedding.shape == (3, PartitionConfig().graph_width)
    assert not embedding.any()


def test_a_summary_knows_numbers_but_not_which_op_is_where() -> None:
    """The bytes of two ops of a chain exchanged: the same summary, another graph."""
    cluster = Ramp(2, 2, 2)
    jobs = [
        (mirrored(profile([1.0, 2.0, 3.0], [(0, 1), (1, 2)], parameter=bytes_of)), cluster)
        for bytes_of in ([1e9, 5e9, 2e9], [2e9, 5e9, 1e9])
    ]
    batch = join_jobs(jobs)
    summary = some_policy(config=PartitionConfig(embedding="summary")).embed(batch)
    torch.testing.assert_close(summary[0], summary[1])
    graph = some_policy().embed(batch)
    assert (graph[0] - graph[1]).abs().max() > 1e-3


def test_the_network_sees_times_beside_the_step() -> None:
    """Ops of 1 and 3 s, and 3 + 4 s backwards: a step of 11 s; messages on a hub of 1e9 bytes/s."""
    cluster = TopologyCluster(hub(3, 1e9, latency=0.0), factor=1.0)
    job = mirrored(profile([1.0, 3.0], [(0, 1)], [4.0, 3.0], [2e9, 0.0], [0.0, 4e9]))
    seen = job_input(job, cluster)
    pair = cluster.blocks(2).workers[0]

    def of_step(seconds: float) -> float:
        return float(np.log2(1.0 + 1000.0 * seconds / 11.0) / 10.0)

    node = dict(zip(NETWORK_NODE_FEATURES, seen.nodes.T.tolist()))
    assert node["log_compute_of_step"] == pytest.approx([of_step(t) for t in (1.0, 3.0, 3.0, 4.0)])
    two, four = (collective_time(pair, size, cluster) for size in (2e9, 4e9))
    assert two == pytest.approx(2.0, rel=0.05)
    assert node["log_transfer_of_step"] == pytest.approx([of_step(t) for t in (two, four, four, two)])
    edge = dict(zip(NETWORK_EDGE_FEATURES, seen.edges.T.tolist()))
    # Forwards the 2e9 bytes of the first op; the last op and its partner hand on nothing.
    assert edge["log_transfer_of_step"] == pytest.approx([of_step(two), 0.0, 0.0])
    summary = dict(zip(SUMMARY_FEATURES, seen.summary.tolist()))
    assert summary["log_ops"] == pytest.approx(2.0 / 8.0)
    assert summary["median_memory"] == pytest.approx(0.75)
    assert summary["mean_depth"] == pytest.approx(float(job.depth.mean() / job.depth.max()))
    assert summary["log_node_transfers_of_step"] == pytest.approx(of_step(2 * two + 2 * four))
    assert summary["log_edge_transfers_of_step"] == pytest.approx(of_step(two))
    assert len(seen.summary) == len(SUMMARY_FEATURES)


# Episodes


@pytest.mark.parametrize("distribution", ["A", "D"])
def test_a_compiled_episode_is_one_of_the_environment(distribution: str) -> None:
    """The environment's observations, the network in torch and the compiled loop agree on every decision."""
    world = crowded_world()
    policy, jobs, weights = compiled(1, "graph")
    env = JobPartitioningEnv(world=world, distribution=distribution, arrivals=120)
    observation, _ = env.reset(seed=5)
    arrivals = draw_arrivals(3, beta_distribution(distribution), np_random(5)[0], 1.0, 120)
    outcome = run_policy(world, arrivals, weights)
    assert len(set(outcome.degree.tolist())) > 1
    rows = np.concatenate(([0], world.tables.degree))
    for i in range(120):
        scores, _ = in_torch(
            policy,
            jobs,
            int(arrivals.model[i]),
            observation["choices"][rows],
            observation["action_mask"][rows].astype(bool),
        )
        degree = int(outcome.degree[i])
        assert scores[rows.tolist().index(degree)] >= scores.max() - 1e-4
        observation, reward, terminated, _, info = env.step(np.int64(degree))
        assert not info["illegal"]
        done = i * arrivals.interarrival + outcome.lasting[i] <= arrivals.horizon
        assert info["jct"] == pytest.approx(outcome.lasting[i] if done else 0.0, rel=1e-12)
        assert reward == (1.0 if degree and done else -1.0)
    assert terminated
    assert (outcome.lasting > 0.0).tolist() == (outcome.degree > 0).tolist()


# Checkpoints


@pytest.mark.parametrize("config", [*(PartitionConfig(embedding=known) for known in EMBEDDINGS), NARROW])
def test_round_trip_gives_equal_episodes(config: PartitionConfig, tmp_path: Path) -> None:
    world = crowded_world()
    policy = some_policy(3, config)
    save_checkpoint(policy, tmp_path, {"seed": 3}, PARTITION)
    loaded = load_partition_policy(tmp_path)
    assert loaded.config == config
    assert not loaded.training
    jobs = join_jobs(world.jobs)
    for mine, theirs in zip(weights_of(policy, jobs), weights_of(loaded, jobs)):
        np.testing.assert_array_equal(mine, theirs)
    about = describe_checkpoint(tmp_path, PARTITION)
    assert about["seed"] == 3
    assert about["features"]["choice"] == list(FEATURES)


def test_checkpoints_of_one_kind_are_refused_as_the_other(tmp_path: Path) -> None:
    save_checkpoint(Policy(), tmp_path / "allreduce", {})
    save_checkpoint(PartitionPolicy(NARROW), tmp_path / "partition", {}, PARTITION)
    for load, folder, command in (
        (load_partition_policy, tmp_path / "allreduce", "gnnsched partition train"),
        (load_checkpoint, tmp_path / "partition", "gnnsched train"),
    ):
        with pytest.raises(InputError, match="not a gnnsched checkpoint of this kind") as caught:
            load(folder)
        assert str(folder) in str(caught.value)
        assert str(caught.value).endswith(command)
        assert "\n" not in str(caught.value)


def test_a_checkpoint_of_other_sizes_is_refused(tmp_path: Path) -> None:
    save_checkpoint(PartitionPolicy(NARROW), tmp_path, {}, PARTITION)
    text = (tmp_path / "checkpoint.json").read_text()
    for changed, word in (('"width": 16', "do not fit"), ('"depth": 8', "architecture")):
        (tmp_path / "checkpoint.json").write_text(text.replace('"width": 8', changed))
        with pytest.raises(InputError, match=word):
            load_partition_policy(tmp_path)
