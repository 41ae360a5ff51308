"""The trainer: it learns what can be learned, goes on exactly where it stopped, and repeats itself from a seed."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from lessons import triangle, two_servers
from safetensors.torch import load, save
from torch import Tensor

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding, Instance
from gnnsched.collective.decode.presets import GREEDY, RANDOM, greedy_scores, random_scores
from gnnsched.collective.decode.problem import CHUNK_FEATURES
from gnnsched.models.policy import Policy, PolicyConfig
from gnnsched.topology import InputError, Topology
from gnnsched.topology.generators import bcube, dumbbell, star
from gnnsched.training import mixture
from gnnsched.training.mixture import Mixture
from gnnsched.training.rollout import LevelWeights
from gnnsched.training.state import PROGRESS, STATE
from gnnsched.training.trainer import TrainConfig, Trainer

SMALL = TrainConfig(
    seed=5, iterations=20, lessons=2, rollouts=3, pool=16, validation_lessons=3, validation_every=4
)
NARROW = PolicyConfig(width=8, rounds=2, attention_width=4)
WALL_CLOCK = "time/steps_per_second"


def small_trainer(config: TrainConfig = SMALL, **changes: int) -> Trainer:
    return Trainer(
        Mixture([triangle(), bcube(2, 1), star([1e9, 2e9, 1e9])], config.seed),
        dataclasses.replace(config, **changes),
        NARROW,
    )


def scalars_of(trainer: Trainer, updates: int | None = None) -> list[dict[str, float]]:
    """What ``run`` yields, the clock left out."""
    made = []
    for scalars in trainer.run():
        made.append({name: float(value) for name, value in scalars.items() if name != WALL_CLOCK})
        if len(made) == updates:
            break
    return made


def all_tensors(trainer: Trainer) -> dict[str, Tensor]:
    tensors = {f"policy/{name}": value for name, value in trainer.policy.state_dict().items()}
    tensors |= {f"average/{name}": value for name, value in trainer.average.state_dict().items()}
    tensors |= {f"best/{name}": value for name, value in trainer.best_weights.items()}
    for i, moments in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"adam/{i}/{name}": value for name, value in moments.items()}
    return {name: value.clone() for name, value in tensors.items()}


def assert_bitwise_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


# Learning


def overfitted(
    topology: Topology,
    start: dict[str, float],
    chunks_per_server: int,
    updates: int,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Trainer, list[float]]:
    """A trainer on one network, and the mean ratio of each update's rollouts.

    The policy starts from chunk weights of its own, ``start``, instead of the linear scorer's, which know too much.
    """
    monkeypatch.setattr(mixture, "CHUNKS_PER_SERVER", (chunks_per_server,))
    # Near its packed trees any policy does well.
    monkeypatch.setattr(mixture, "GUIDED_SHARE", 0.0)
    monkeypatch.setattr(mixture, "BUSY_SHARE", 0.0)
    config = TrainConfig(
        iterations=updates,
        lessons=4,
        learning_rate=3e-3,
        base_learning_rate=2e-2,
        pool=16,
        validation_every=10**9,
    )
    trainer = Trainer(Mixture([topology], 0, flow_share=0.0), config)
    with torch.no_grad():
        for weights in (trainer.policy.path_base, trainer.policy.chunk_base, trainer.policy.pair_weight):
            weights.zero_()
        for name, value in start.items():
            trainer.policy.chunk_base[CHUNK_FEATURES.index(name)] = value
    return trainer, [scalars["rollout/ratio_mean"] for scalars in scalars_of(trainer)]


def mean_ratio(trainer: Trainer, make: Callable[[Instance], Scores], decoding: Decoding) -> float:
    """Of four samples of each of six lessons that training did not see."""
    rng = np.random.default_rng(0)
    made = []
    for lesson in (trainer.mixture.lesson(1000 + i) for i in range(6)):
        scores = make(lesson.instance)
        made += [lesson.instance.decode(scores, decoding, rng).makespan / lesson.bound for _ in range(4)]
    return float(np.mean(made))


def test_learns_to_leave_a_slow_cable_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """From more than 3 to the optimum, 1.1, where greedy and random choices make use of whatever is idle."""
    start = {"constant": -0.5, "in_packed_tree": 1.5}
    trainer, ratios = overfitted(triangle(), start, 1, 20, monkeypatch)
    assert np.mean(ratios[:2]) > 2.5
    assert np.mean(ratios[-5:]) < 1.3
    for policy in (trainer.policy, trainer.best_policy()):
        assert mean_ratio(trainer, policy.scores, Decoding()) == pytest.approx(1.1, abs=0.05)
    for decoding in (GREEDY, Decoding()):
        assert mean_ratio(trainer, greedy_scores, decoding) == pytest.approx(5.5)
    for decoding in (RANDOM, Decoding()):
        assert mean_ratio(trainer, random_scores, decoding) > 3.0


def test_learns_which_chunk_a_narrow_link_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk should cross the middle once: below random and greedy in the same decoder."""
    trainer, ratios = overfitted(dumbbell(2), {"constant": 2.0}, 2, 16, monkeypatch)
    assert np.mean(ratios[-4:]) < np.mean(ratios[:2]) - 0.1
    learned = mean_ratio(trainer, trainer.policy.scores, Decoding())
    for make, decoding in (
        (random_scores, RANDOM),
        (random_scores, Decoding()),
        (greedy_scores, GREEDY),
        (greedy_scores, Decoding()),
    ):
        assert learned < mean_ratio(trainer, make, decoding) - 0.05


# Going on


@pytest.mark.parametrize("alternate", [0, 3])
def test_ten_updates_and_ten_more_equal_twenty(tmp_path: Path, alternate: int) -> None:
    """Weights, average, best weights, optimizer, counters and scalars, bit by bit."""
    whole = small_trainer(alternate=alternate)
    expected = scalars_of(whole)
    assert len(expected) == whole.iteration == 20

    first = small_trainer(alternate=alternate)
    made = scalars_of(first, 10)
    first.save(tmp_path / "run")
    stopped = all_tensors(first)

    second = small_trainer(alternate=alternate)
    second.load(tmp_path / "run")
    assert_bitwise_equal(all_tensors(second), stopped)
    assert second.iteration == 10
    made += scalars_of(second)
    assert_bitwise_equal(all_tensors(second), all_tensors(whole))
    assert (second.iteration, second.steps, second.best) == (whole.iteration, whole.steps, whole.best)
    assert made == expected
    # saving changed nothing for the trainer that was saved
    made = scalars_of(first)
    assert_bitwise_equal(all_tensors(first), all_tensors(whole))


def test_a_run_saved_before_its_first_update_goes_on_as_well(tmp_path: Path) -> None:
    trainer = small_trainer(iterations=2)
    trainer.save(tmp_path)
    loaded = small_trainer(iterations=2)
    loaded.load(tmp_path)
    assert loaded.best == float("inf")
    assert scalars_of(loaded) == scalars_of(trainer)
    assert_bitwise_equal(all_tensors(loaded), all_tensors(trainer))


def test_nothing_to_go_on_from(tmp_path: Path) -> None:
    """Missing, truncated, foreign and other-sized: one line that names the folder or the file."""
    trainer = small_trainer(iterations=1)
    scalars_of(trainer)
    cases = {}
    for name in ("truncated", "foreign", "not json", "incomplete", "empty"):
        cases[name] = tmp_path / name
        trainer.save(cases[name])
    weights = (cases["truncated"] / STATE).read_bytes()
    (cases["truncated"] / STATE).write_bytes(weights[: len(weights) // 2])
    (cases["foreign"] / PROGRESS).write_text("[1, 2]")
    (cases["not json"] / PROGRESS).write_text("{")
    kept = load((cases["incomplete"] / STATE).read_bytes())
    del kept["counters"]
    (cases["incomplete"] / STATE).write_bytes(save(kept))
    (cases["empty"] / STATE).write_bytes(b"")
    cases["missing"] = tmp_path / "missing"
    for name, folder in cases.items():
        with pytest.raises(InputError) as caught:
            small_trainer().load(folder)
        assert str(folder) in str(caught.value), name
        assert "\n" not in str(caught.value), name
    trainer.save(tmp_path / "narrow")
    with pytest.raises(InputError, match="cannot be resumed"):
        Trainer(trainer.mixture, SMALL, PolicyConfig(width=16)).load(tmp_path / "narrow")


# Determinism


def test_same_seed_same_run_and_another_seed_another() -> None:
    """In one process, after other random draws."""
    one = small_trainer(iterations=3)
    first = scalars_of(one)
    torch.rand(7)
    two = small_trainer(iterations=3)
    assert scalars_of(two) == first
    assert_bitwise_equal(all_tensors(two), all_tensors(one))
    other = small_trainer(dataclasses.replace(SMALL, seed=6), iterations=3)
    assert scalars_of(other) != first
    assert not torch.equal(other.policy.chunk_base, one.policy.chunk_base)


# Sizes


@pytest.mark.parametrize(("lessons", "rollouts", "epochs"), [(1, 1, 1), (1, 4, 3), (3, 1, 2), (5, 2, 1)])
def test_any_number_of_lessons_and_rollouts_trains(lessons: int, rollouts: int, epochs: int) -> None:
    """One rollout has no advantage and leaves the entropy bonus; nothing is NaN."""
    trainer = small_trainer(iterations=3, lessons=lessons, rollouts=rollouts, epochs=epochs)
    before = all_tensors(trainer)["policy/chunk_base"]
    for scalars in scalars_of(trainer):
        assert all(np.isfinite(value) for value in scalars.values())
    assert all(torch.isfinite(value).all() for value in all_tensors(trainer).values())
    assert not torch.equal(before, trainer.policy.chunk_base)


def test_episodes_of_one_event_train() -> None:
    config = dataclasses.replace(SMALL, iterations=3, lessons=1, rollouts=1)
    trainer = Trainer(Mixture([two_servers()], 0), config, NARROW)
    for scalars in scalars_of(trainer):
        assert all(np.isfinite(value) for value in scalars.values())
    assert all(torch.isfinite(value).all() for value in all_tensors(trainer).values())


# Settings


def parameters_by_level(policy: Policy) -> dict[str, dict[str, Tensor]]:
    low, high = ("path_base", "path_head"), ("chunk_base", "chunk_head", "query", "key", "pair_weight")
    parts: dict[str, dict[str, Tensor]] = {"low": {}, "high": {}, "shared": {}}
    for name, value in policy.state_dict().items():
        level = name.split(".")[0]
        kind = "low" if level in low else "high" if level in high else "shared"
        parts[kind][name] = value.clone()
    return parts


def test_alternating_mode_moves_one_level_at_a_time() -> None:
    """Two updates each; the other head stands still, though the optimizer still has momentum for it."""
    trainer = small_trainer(iterations=8, alternate=2)
    before = parameters_by_level(trainer.policy)
    turns = []
    for _ in trainer.run():
        after = parameters_by_level(trainer.policy)
        moved = {
            level: [not torch.equal(before[level][name], after[level][name]) for name in before[level]]
            for level in before
        }
        assert any(moved["shared"])
        turns.append((any(moved["low"]), any(moved["high"])))
        before = after
    assert turns == [(True, False)] * 2 + [(False, True)] * 2 + [(True, False)] * 2 + [(False, True)] * 2


def test_joint_mode_trains_both_levels() -> None:
    trainer = small_trainer(iterations=1)
    assert trainer.level_weights() == LevelWeights(1.0, 1.0, SMALL.pick_entropy, SMALL.choice_entropy)
    before = parameters_by_level(trainer.policy)
    scalars_of(trainer)
    after = parameters_by_level(trainer.policy)
    for level in before:
        for name, value in before[level].items():
            assert not torch.equal(value, after[level][name]), name


def test_learning_rate_falls_linearly() -> None:
    rates = [scalars["update/learning_rate"] for scalars in scalars_of(small_trainer(iterations=4))]
    np.testing.assert_allclose(rates, SMALL.learning_rate * np.array([1.0, 0.75, 0.5, 0.25]))


def test_minutes_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of half a minute a look: two looks an update, so one and a half minutes are over after three."""
    looks = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: 30.0 * next(looks))
    trainer = small_trainer(dataclasses.replace(SMALL, iterations=None, minutes=1.5))
    assert len(scalars_of(trainer)) == 3
    assert trainer.elapsed == 90.0


def test_a_run_needs_an_end() -> None:
    with pytest.raises(InputError, match="no end given"):
        Trainer(Mixture("bcube", 0), TrainConfig())


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"^device 'no such device': not available here; use cpu$"):
        Trainer(Mixture("bcube", 0), SMALL, device="no such device")


# Validation


def test_validation_is_on_random_networks_that_training_never_draws() -> None:
    def random_networks(lessons: Mixture, count: int) -> set[str]:
        drawn = [lessons.lesson(i).instance.topology for i in range(count)]
        # Small ones are few, and may well come twice.
        large = [network for network in drawn if len(network.servers) > 5]
        return {network.fingerprint for network in large if network.name.startswith("random")}

    runs = [Trainer(Mixture("default", seed), SMALL, NARROW) for seed in (0, 1)]
    validation = [random_networks(run.held_out, 30) for run in runs]
    training = [random_networks(run.mixture, 30) for run in runs]
    assert validation[0] == validation[1]
    assert training[0] != training[1]
    assert not validation[0] & (training[0] | training[1])
    lessons = runs[0].validation_lessons()
    assert lessons == [runs[0].held_out.lesson(i) for i in range(SMALL.validation_lessons)]


def test_another_setting_is_not_resumed(tmp_path: Path) -> None:
    """The end may be moved, nothing else."""
    trainer = small_trainer(iterations=1)
    trainer.save(tmp_path)
    small_trainer(iterations=5).load(tmp_path)
    with pytest.raises(InputError, match="another rollouts"):
        small_trainer(rollouts=2).load(tmp_path)


def test_validation_keeps_the_best_weights_seen() -> None:
    """Not the last ones; and it draws nothing that training would miss."""
    trainer = small_trainer(validation_every=10**9, iterations=2)
    scalars_of(trainer)
    lessons = trainer.validation_lessons()
    assert not trainer.best < np.inf
    assert_same_weights(trainer.best_policy(), trainer.average)
    first = trainer.validate()
    assert trainer.validate() == first
    mean, best = first["validation/ratio_mean"], first["validation/ratio_best"]
    assert trainer.best == pytest.approx(np.sqrt(mean * best))
    for kind in ("family", "case"):
        own = [getattr(lesson, kind) for lesson in lessons]
        logs = [np.log(first[f"validation_{kind}/{group}"]) for group in own]
        assert np.mean(logs) == pytest.approx(np.log(mean))
        assert {name for name in first if name.startswith(f"validation_{kind}/")} == {
            f"validation_{kind}/{group}" for group in own
        }
    kept = {name: value.clone() for name, value in trainer.average.state_dict().items()}
    # a policy that leaves nearly everything idle is far worse
    with torch.no_grad():
        trainer.average.chunk_base.zero_()
        trainer.average.chunk_base[0] = -6.0
    assert trainer.validate()["validation/ratio_mean"] > first["validation/ratio_mean"]
    for name, value in trainer.best_policy().state_dict().items():
        assert torch.equal(value, kept[name]), name


def assert_same_weights(one: Policy, other: Policy) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
