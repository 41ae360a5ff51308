"""The partitioning trainer: it learns what can be learned, goes on exactly where it stopped, and repeats itself."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_jobs import chain

from gnnsched.partition import kernel
from gnnsched.partition.evaluation import Runner, evaluate
from gnnsched.partition.network import PartitionConfig, PartitionPolicy
from gnnsched.partition.ppo import advantages, balanced
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.trainer import PartitionTrainer, PartitionTraining
from gnnsched.partition.workload import DISTRIBUTIONS
from gnnsched.partition.world import World, make_world
from gnnsched.topology import InputError

SMALL = PartitionTraining(
    seed=1,
    iterations=8,
    imitation=0,
    episodes=8,
    steps=64,
    minibatch=256,
    learning_rate=3e-3,
    averaging=0.9,
    expert_share=0.0,
    futures=3,
    ahead=4,
    replay=40,
    validation_every=10**9,
    validation_episodes=1,
)
NARROW = PartitionConfig(width=16, graph_width=4, rounds=1)
WALL_CLOCK = "time/steps_per_second"


@cache
def easy_world() -> World:
    """Eight workers and jobs of 3 and 6 arrivals' work: room for all, unless one refuses."""
    return make_world(Ramp(2, 2, 2), [chain([120.0], 50, "a"), chain([60.0], 50, "b")], 1.0)


@cache
def hard_world() -> World:
    """Half of the jobs keep workers busy for 200 arrivals' work; half take 2."""
    return make_world(Ramp(2, 2, 2), [chain([4000.0], 50, "long"), chain([40.0], 50, "short")], 1.0)


def greedy_rules(world: World) -> np.ndarray:
    """Of all distributions: the largest degree and no other one."""
    models = len(world.models)
    own = [len(world.tables.degree) - 1] * models + [kernel.NOWHERE] * models + [0] * models
    return np.array([own] * len(DISTRIBUTIONS))


def small_trainer(world: World | None = None, **changes: Any) -> PartitionTrainer:
    world = world or easy_world()
    return PartitionTrainer([world], [greedy_rules(world)], dataclasses.replace(SMALL, **changes), NARROW)


def scalars_of(trainer: PartitionTrainer, iterations: int | None = None) -> list[dict[str, float]]:
    """What ``run`` yields, the clock left out."""
    made = []
    for scalars in trainer.run():
        made.append({name: float(value) for name, value in scalars.items() if name != WALL_CLOCK})
        if len(made) == iterations:
            break
    return made


def blocking(made: list[dict[str, float]]) -> list[float]:
    """Of the episodes that were trained on, by iteration."""
    return [
        value for scalars in made for name, value in scalars.items() if name.startswith("rollout/blocking")
    ]


def rate_of(world: World, policy: PartitionPolicy, name: str = "learned") -> float:
    """Mean blocking rate over held-out episodes."""
    rows = evaluate(Runner(world, policy), [name], DISTRIBUTIONS, 2)
    return float(np.mean([row.metrics.blocking_rate for row in rows]))


def weights_of_all(trainer: PartitionTrainer) -> dict[str, torch.Tensor]:
    tensors = {f"policy/{name}": value for name, value in trainer.policy.state_dict().items()}
    tensors |= {f"best/{name}": value for name, value in trainer.best_policy().state_dict().items()}
    return {name: value.clone() for name, value in tensors.items()}


def assert_bitwise_equal(one: PartitionTrainer, other: PartitionTrainer) -> None:
    mine, theirs = weights_of_all(one), weights_of_all(other)
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


# Advantages


def test_advantages_by_hand() -> None:
    """Two steps of two episodes, of which the second one ends after its first step."""
    found = advantages(
        reward=np.array([[1.0, 2.0], [4.0, 8.0]], np.float32),
        value=np.array([[0.5, 1.0], [2.0, 3.0]], np.float32),
        last_value=np.array([6.0, 10.0], np.float32),
        ended=np.array([[False, True], [False, False]]),
        discount=0.5,
        trace=0.5,
    )
    # Surprises: 1 + 2/2 - 0.5 = 1.5 and 4 + 6/2 - 2 = 5; 2 - 1 = 1 and 8 + 10/2 - 3 = 10.
    np.testing.assert_allclose(found, [[1.5 + 0.25 * 5.0, 1.0], [5.0, 10.0]])


def test_each_group_of_advantages_counts_alike() -> None:
    """By hand: 1, 3, 5 about 3 with deviation sqrt(8 / 3), and a group a thousand times as loud about 0."""
    advantage = np.array([[1.0, 1000.0, 3.0], [5.0, -1000.0, 7.0]], np.float32)
    group = np.array([[2, 0, 2], [2, 0, 1]])
    far = 2.0 / (8.0 / 3.0) ** 0.5
    # What is alone in its group stands for nothing.
    wanted = [[-far, 1.0, 0.0], [far, -1.0, 0.0]]
    np.testing.assert_allclose(balanced(advantage, group), wanted, rtol=1e-5, atol=1e-6)


@given(st.integers(0, 10**6))
def test_advantages_are_discounted_sums_of_surprises(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps, episodes = (int(n) for n in rng.integers(1, 7, size=2))
    reward, value = rng.normal(size=(2, steps, episodes)).astype(np.float32)
    last = rng.normal(size=episodes).astype(np.float32)
    ended = rng.random((steps, episodes)) < 0.3
    discount, trace = rng.uniform(0.5, 1.0, size=2)
    found = advantages(reward, value, last, ended, discount, trace)
    following = np.concatenate((value[1:], last[None]))
    for e in range(episodes):
        for t in range(steps):
            total, factor = 0.0, 1.0
            for s in range(t, steps):
                total += factor * (reward[s, e] - value[s, e])
                if ended[s, e]:
                    break
                total += factor * discount * following[s, e]
                factor *= discount * trace
            assert found[t, e] == pytest.approx(total, rel=1e-4, abs=1e-5)


# Learning


def test_it_imitates_rules_good_or_bad() -> None:
    """The greedy rule gives long jobs the whole cluster; the policy comes to do the same, whatever it did before."""
    world = hard_world()
    trainer = small_trainer(world, imitation=100, iterations=15)
    made = scalars_of(trainer)
    assert all(scalars["update/imitating"] == 1.0 for scalars in made)
    losses = [scalars["update/loss"] for scalars in made]
    assert losses[-1] < losses[0]
    greedy = rate_of(world, PartitionPolicy(), "max")
    assert greedy > 0.9
    assert rate_of(world, trainer.best_policy()) == pytest.approx(greedy, abs=0.02)


def test_it_learns_to_refuse_what_keeps_others_out() -> None:
    """By trial alone: from nine in ten jobs blocked to the half that take a hundred times as long as the others."""
    trainer = small_trainer(hard_world(), iterations=50, episodes=16)
    rates = blocking(scalars_of(trainer))
    assert np.mean(rates[:5]) > 0.85
    assert np.mean(rates[-3:]) < 0.65
    assert rate_of(hard_world(), trainer.best_policy()) < 0.6


def test_it_learns_not_to_refuse() -> None:
    """By trial; a few jobs have limits that no degree meets."""
    trainer = small_trainer(iterations=12)
    before = rate_of(easy_world(), trainer.best_policy())
    scalars_of(trainer)
    assert before > 0.5
    least = rate_of(easy_world(), PartitionPolicy(), "smallest_fit")
    assert rate_of(easy_world(), trainer.best_policy()) < least + 0.1


def test_phases_follow_one_another() -> None:
    """Imitation, then trial, then lookahead."""
    made = scalars_of(small_trainer(iterations=8, imitation=2, expert_share=0.5))
    assert [scalars.get("update/imitating") for scalars in made] == [1.0, 1.0, 0.0, 0.0] + [None] * 4
    assert ["expert/regret" in scalars for scalars in made] == [False] * 4 + [True] * 4
    for scalars in made:
        assert all(np.isfinite(value) for value in scalars.values())
    assert made[3]["time/steps"] == 4 * 8 * 64
    assert made[7]["time/steps"] == 4 * 8 * 64 + 4 * 8 * 5
    # The learning rate falls, and begins anew.
    rates = [scalars["update/learning_rate"] for scalars in made]
    for phase, first in ((rates[:4], SMALL.learning_rate), (rates[4:], SMALL.expert_rate)):
        assert phase == sorted(phase, reverse=True)
        assert phase[0] == first > phase[-1]


# Going on


@pytest.mark.parametrize(("imitation", "expert_share"), [(0, 0.0), (4, 0.0), (0, 0.5), (0, 0.8)])
def test_some_iterations_and_some_more_equal_all_at_once(
    imitation: int, expert_share: float, tmp_path: Path
) -> None:
    """Weights, best weights, counters and scalars, bit by bit, over the end of imitation and of trial too."""
    changes: dict[str, Any] = {
        "iterations": 6,
        "validation_every": 2,
        "imitation": imitation,
        "expert_share": expert_share,
    }
    whole = small_trainer(**changes)
    expected = scalars_of(whole)
    assert len(expected) == whole.iteration == 6
    first = small_trainer(**changes)
    made = scalars_of(first, 3)
    first.save(tmp_path / "run")
    second = small_trainer(**changes)
    second.load(tmp_path / "run")
    assert_bitwise_equal(second, first)
    assert second.iteration == 3
    made += scalars_of(second)
    assert made == expected
    assert_bitwise_equal(second, whole)
    assert (second.iteration, second.steps, second.best) == (whole.iteration, whole.steps, whole.best)
    # Saving changed nothing for the trainer that was saved.
    scalars_of(first)
    assert_bitwise_equal(first, whole)


def test_a_run_saved_before_its_first_iteration_goes_on_as_well(tmp_path: Path) -> None:
    trainer = small_trainer(iterations=2)
    trainer.save(tmp_path)
    loaded = small_trainer(iterations=2)
    loaded.load(tmp_path)
    assert loaded.best == float("inf")
    assert scalars_of(loaded) == scalars_of(trainer)
    assert_bitwise_equal(loaded, trainer)


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    """Missing, truncated, foreign, of other settings, jobs or sizes: one line that names the folder."""
    trainer = small_trainer(iterations=1)
    scalars_of(trainer)
    for name in ("truncated", "foreign", "whole"):
        trainer.save(tmp_path / name)
    state = tmp_path / "truncated" / "trainer.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    (tmp_path / "foreign" / "trainer.json").write_text("[1, 2]")
    # The end may be moved, nothing else.
    small_trainer(iterations=5).load(tmp_path / "whole")
    large = make_world(Ramp(2, 2, 4), list(easy_world().models), 1.0)
    for name, other, word in (
        ("truncated", small_trainer(), "cannot be resumed"),
        ("foreign", small_trainer(), "cannot be resumed"),
        ("missing", small_trainer(), "no such file"),
        ("whole", small_trainer(steps=32), "another steps"),
        ("whole", small_trainer(seed=2), "another seed"),
        ("whole", small_trainer(large), "cannot be resumed"),
        ("whole", PartitionTrainer([easy_world()], [greedy_rules(easy_world())], SMALL), "cannot be resumed"),
    ):
        with pytest.raises(InputError, match=word) as caught:
            other.load(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


# Determinism


def test_same_seed_same_run_and_another_seed_another() -> None:
    """In one process, after other random draws."""
    one = small_trainer(iterations=4)
    first = scalars_of(one)
    torch.rand(7)
    np.random.default_rng().random(3)
    two = small_trainer(iterations=4)
    assert scalars_of(two) == first
    assert_bitwise_equal(two, one)
    assert scalars_of(small_trainer(iterations=4, seed=2)) != first


# Settings


def test_one_policy_for_clusters_of_other_sizes() -> None:
    """Degrees, workers, models and holdings differ; every world has a figure of its own."""
    large = make_world(Ramp(3, 2, 2), [chain([30.0, 60.0], 50, "c")], 1.0, "exact")
    worlds = [easy_world(), large, easy_world()]
    config = dataclasses.replace(SMALL, iterations=4, imitation=1, episodes=12, validation_every=4)
    trainer = PartitionTrainer(worlds, [greedy_rules(world) for world in worlds], config, NARROW)
    made = scalars_of(trainer)
    assert len(blocking(made[:1])) == 3
    for scalars in made:
        assert all(np.isfinite(value) for value in scalars.values())
    validated = [name for name in made[-1] if name.startswith("validation/")]
    assert len(validated) == 1 + 3 * len(DISTRIBUTIONS)
    mean = np.mean([made[-1][name] for name in validated if name != "validation/blocking_rate"])
    assert made[-1]["validation/blocking_rate"] == pytest.approx(mean)


def test_the_best_policy_is_that_of_the_best_validation() -> None:
    """And before the first one the running average, not the policy at hand."""
    trainer = small_trainer(hard_world(), iterations=14, episodes=16, seed=2)
    scalars_of(trainer, 2)
    average = trainer.best_policy().state_dict()
    assert any(not torch.equal(average[name], value) for name, value in trainer.policy.state_dict().items())
    first = trainer.validate()
    assert trainer.validate() == first
    rate = first["validation/blocking_rate"]
    assert trainer.best == rate
    best = trainer.best_policy().state_dict()
    assert all(torch.equal(best[name], value) for name, value in average.items())
    for _ in trainer.run():
        later = trainer.validate()["validation/blocking_rate"]
        changed = any(not torch.equal(best[n], v) for n, v in trainer.best_policy().state_dict().items())
        assert changed == (later < rate)
        rate, best = min(rate, later), trainer.best_policy().state_dict()
        assert trainer.best == rate
    assert rate < first["validation/blocking_rate"]


def test_minutes_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of half a minute a look: two looks an iteration, so one and a half minutes are over after three."""
    looks = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: 30.0 * next(looks))
    trainer = small_trainer(iterations=None, minutes=1.5)
    assert len(scalars_of(trainer)) == 3
    assert trainer.elapsed == 90.0
    # Whichever comes first.
    assert len(scalars_of(small_trainer(iterations=2, minutes=1.5))) == 2


def test_a_run_needs_an_end_and_a_device_that_is_there() -> None:
    with pytest.raises(InputError, match="no end given"):
        small_trainer(iterations=None)
    world = easy_world()
    with pytest.raises(InputError, match="no such device"):
        PartitionTrainer([world], [greedy_rules(world)], SMALL, NARROW, device="no such device")
