"""Expert iteration: what is judged, what is kept of it, what the loss leads to, and that the policy gets better."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_jobs import chain

from gnnsched.partition import kernel
from gnnsched.partition.compiled_policy import best_rows, weights_of
from gnnsched.partition.evaluation import Runner, evaluate
from gnnsched.partition.expert import Replay, judge, losses
from gnnsched.partition.features import FEATURES, no_choices
from gnnsched.partition.fleet import Fleet
from gnnsched.partition.lookahead import Lookahead, draw_futures, weigh
from gnnsched.partition.network import BLOCKED, DISCOUNT, PartitionConfig, PartitionPolicy, join_jobs
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.trainer import PartitionTrainer, PartitionTraining
from gnnsched.partition.workload import DISTRIBUTIONS, beta_distribution
from gnnsched.partition.world import World, make_world

NARROW = PartitionConfig(width=16, graph_width=4, rounds=1)
LOOKAHEAD = Lookahead(futures=6, arrivals=5, batch=6)


def some_policy(seed: int) -> PartitionPolicy:
    """Random, of firm opinions."""
    torch.manual_seed(seed)
    policy = PartitionPolicy(NARROW)
    with torch.no_grad():
        policy.score.weight.mul_(30.0)
    return policy


def mixed_world() -> World:
    """Jobs of 1 to 25 arrivals' work on eight workers: there is a choice most of the time."""
    return make_world(Ramp(2, 2, 2), [chain([100.0], 50, "a"), chain([60.0, 20.0], 50, "b")], 1.0)


def judgement(rows: int, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Decisions that nobody saw."""
    mask = rng.random((count, rows)) < 0.6
    mask[:, 0] = True
    worth = np.where(mask, rng.normal(size=(count, rows)), 0.0)
    best = np.where(mask, worth, -np.inf).argmax(1)
    return {
        "rows": rng.random((count, rows, len(FEATURES)), np.float32),
        "mask": mask,
        "job": rng.integers(2, size=count),
        "best": best,
        "worth": worth,
        "value": worth[np.arange(count), best],
    }


# What is judged


@pytest.mark.parametrize("threads", [1, 3, 7])
def test_a_decision_is_judged_by_the_policy_that_goes_on_from_each_choice(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``weigh`` finds, on futures of the episode's own distribution; after as many arrivals as were asked for.

    With more threads than cores or than episodes as with one.
    """
    monkeypatch.setattr("gnnsched.partition.fleet.config", SimpleNamespace(NUMBA_NUM_THREADS=threads))
    world = mixed_world()
    weights = weights_of(some_policy(3), join_jobs(world.jobs))
    fleet = Fleet(world, 12, np.random.default_rng(4))
    twin = Fleet(world, 12, np.random.default_rng(4))
    fleet.rng, twin.rng = np.random.default_rng(5), np.random.default_rng(5)
    judged = judge(fleet, weights, 7, 5, LOOKAHEAD)
    for _ in range(7):
        twin.act(best_rows(weights, twin.model, twin.rows, twin.mask))
    episodes = twin.rng.permutation(12)[:5]
    assert twin.mask[episodes].sum(1).max() > 1
    state = twin.state()
    for i, e in enumerate(episodes.tolist()):
        betas = beta_distribution(DISTRIBUTIONS[twin.distribution[e]])
        model, beta = draw_futures((6, 6), 2, betas, twin.rng)
        legal = np.flatnonzero(twin.mask[e])
        best, mean = weigh(
            world.tables,
            weights,
            state["release"][e],
            twin._seen[e],
            int(state["at"][e]),
            int(twin.model[e]),
            float(twin.beta[e]),
            legal,
            model,
            beta,
            twin._interarrival,
            twin._horizon,
            6,
            2.0,
            no_choices(world.tables),
        )
        np.testing.assert_array_equal(judged["rows"][i], twin.rows[e])
        np.testing.assert_array_equal(judged["mask"][i], twin.mask[e])
        assert judged["job"][i] == twin.model[e]
        assert judged["best"][i] == legal[best]
        np.testing.assert_array_equal(judged["worth"][i, legal], mean)
        assert not judged["worth"][i, ~twin.mask[e]].any()
        own = int(best_rows(weights, twin.model, twin.rows, twin.mask)[e])
        assert judged["value"][i] == mean[legal.tolist().index(own)]


def test_what_a_full_cluster_is_worth_is_judged_too() -> None:
    """One worker that is busy for longer than any episode: all that is left is to refuse six jobs and the seventh."""
    world = make_world(Ramp(1, 1, 1), [chain([1e6], 50, "long")], 1.0)
    weights = weights_of(some_policy(0), join_jobs(world.jobs))
    weights = weights._replace(value=np.zeros_like(weights.value), value_bias=-3.0)
    fleet = Fleet(world, 4, np.random.default_rng(0))
    while fleet.mask[:, 1].any():
        fleet.act(fleet.mask[:, 1].astype(np.int64))
    # Far from the end of all episodes.
    while fleet.state()["at"].max() > 900:
        fleet.act(fleet.mask[:, 1].astype(np.int64))
    judged = judge(fleet, weights, 0, 3, LOOKAHEAD)
    worth = BLOCKED * sum(DISCOUNT**k for k in range(6)) - 3.0 * DISCOUNT**6
    np.testing.assert_allclose(judged["worth"], [[worth, 0.0]] * 3, rtol=1e-6)
    np.testing.assert_allclose(judged["value"], [worth] * 3, rtol=1e-6)
    assert judged["best"].tolist() == [0, 0, 0]


# What is kept


@given(st.integers(0, 10**6), st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_the_last_decisions_are_kept(seed: int, counts: list[int]) -> None:
    """And with fewer rows than others they are filled up with what is not legal."""
    rng = np.random.default_rng(seed)
    replay = Replay(7, 4, "cpu")
    whole: dict[str, list[Any]] = {}
    for count in counts:
        judged = judgement(int(rng.integers(2, 5)), count, rng)
        replay.add(judged)
        for name, part in judged.items():
            if part.ndim > 1:
                widths = [(0, 0), (0, 4 - part.shape[1])] + [(0, 0)] * (part.ndim - 2)
                part = np.pad(part, widths)
            whole.setdefault(name, []).extend(part)
    assert len(replay) == min(7, sum(counts))
    other = Replay(7, 4, "cpu")
    other.restore(replay.state())
    for own in (replay, other):
        state = own.state()
        assert int(state["added"]) == sum(counts)
        for name, values in whole.items():
            wanted = np.array(values[-7:], np.float32).reshape(-1, *state[name].shape[1:])
            found = state[name].numpy().astype(np.float32)
            order = [(int(state["added"]) - len(replay) + i) % 7 for i in range(len(replay))]
            np.testing.assert_array_equal(found[order], wanted, err_msg=name)


def test_what_is_drawn_hangs_together() -> None:
    rng = np.random.default_rng(2)
    replay = Replay(20, 3, "cpu")
    judged = judgement(3, 30, rng)
    replay.add({name: part[:20] for name, part in judged.items()})
    replay.add({name: part[20:] for name, part in judged.items()})
    drawn = replay.draw(200, rng)
    places = [int(np.flatnonzero(judged["value"].astype(np.float32) == v)[0]) for v in drawn["value"].numpy()]
    assert set(places) == set(range(10, 30))
    for name, part in judged.items():
        np.testing.assert_allclose(drawn[name].numpy(), part[places], rtol=1e-6, err_msg=name)


# What the loss leads to


@given(st.integers(0, 10**6), st.floats(0.05, 2.0))
def test_the_loss_is_the_divergence_from_the_softmax_of_worths(seed: int, temperature: float) -> None:
    """Up to the softmax's own normalisation, which no weight of the policy changes."""
    rng = np.random.default_rng(seed)
    world = mixed_world()
    jobs, policy = join_jobs(world.jobs), some_policy(seed % 5)
    judged = judgement(3, 9, rng)
    batch = {name: torch.from_numpy(part) for name, part in judged.items()}
    with torch.no_grad():
        found = losses(policy, jobs, batch, temperature)
        log_all, value = policy(batch["rows"], batch["mask"], policy.embed(jobs)[batch["job"]])
    divergence, regret, entropy = [], [], []
    for i in range(9):
        legal = judged["mask"][i]
        log_own = log_all[i].numpy()[legal].astype(float)
        own, worth = np.exp(log_own), judged["worth"][i][legal]
        wanted = np.exp((worth - worth.max()) / temperature)
        log_wanted = np.log(wanted.sum())
        divergence.append((own * (log_own - (worth - worth.max()) / temperature)).sum())
        # Never negative once the normalisation is taken into account.
        assert divergence[-1] + log_wanted > -1e-5
        regret.append((own * (worth.max() - worth)).sum())
        entropy.append(-(own * log_own).sum())
    assert found.divergence.item() == pytest.approx(np.mean(divergence), rel=1e-4, abs=1e-4)
    assert found.regret == pytest.approx(np.mean(regret), rel=1e-4, abs=1e-4)
    assert found.entropy == pytest.approx(np.mean(entropy), rel=1e-4, abs=1e-4)
    wanted_value = np.mean((value.numpy() - judged["value"]) ** 2)
    assert found.value.item() == pytest.approx(wanted_value, rel=1e-4)


# Learning


def test_it_unlearns_a_bad_rule() -> None:
    """Half of the jobs keep workers busy a hundred times as long as the others; the rule gives them all they want."""
    world = make_world(Ramp(2, 2, 2), [chain([4000.0], 50, "long"), chain([40.0], 50, "short")], 1.0)
    models = len(world.models)
    largest = [len(world.tables.degree) - 1] * models + [kernel.NOWHERE] * models + [0] * models
    config = PartitionTraining(
        seed=1,
        iterations=60,
        imitation=1000,
        episodes=16,
        minibatch=256,
        learning_rate=3e-3,
        averaging=0.9,
        expert_share=0.75,
        expert_rate=3e-3,
        futures=6,
        expert_minibatch=128,
        validation_every=15,
        validation_episodes=1,
    )
    trainer = PartitionTrainer([world], [np.array([largest] * len(DISTRIBUTIONS))], config, NARROW)
    rates = []
    for scalars in trainer.run():
        assert ("expert/regret" in scalars) == (trainer.iteration > 15)
        assert all(np.isfinite(value) for value in scalars.values())
        if "validation/blocking_rate" in scalars:
            rates.append(scalars["validation/blocking_rate"])
    assert rates[0] > 0.8
    assert min(rates[1:]) < 0.6
    rows = evaluate(Runner(world, trainer.best_policy()), ["learned"], DISTRIBUTIONS, 2)
    assert np.mean([row.metrics.blocking_rate for row in rows]) < 0.6


def test_it_goes_on_from_the_best_policy_so_far() -> None:
    """Not from the last one: here the validation says that nothing later was as good as the first."""
    world = mixed_world()
    rules = np.zeros((len(DISTRIBUTIONS), 3 * len(world.models)), np.int64)
    config = PartitionTraining(
        iterations=6,
        imitation=0,
        episodes=8,
        steps=8,
        averaging=0.5,
        validation_every=10**9,
        expert_share=0.5,
        expert_rate=0.0,
        passes=0,
    )
    trainer = PartitionTrainer([world], [rules], config, NARROW)
    steps = trainer.run()
    next(steps)
    trainer.consider(0.0)
    best = {name: value.clone() for name, value in trainer.average.state_dict().items()}
    next(steps)
    next(steps)
    assert any(not torch.equal(value, best[name]) for name, value in trainer.average.state_dict().items())
    next(steps)
    for module in (trainer.policy, trainer.average):
        assert all(torch.equal(value, best[name]) for name, value in module.state_dict().items())
