"""Rollouts: one advantage per event, and the gradient of the clipped surrogate in closed form."""

import dataclasses

import numpy as np
import pytest
from lessons import lesson_of, prior_scores, triangle, two_servers

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding
from gnnsched.collective.decode.learn import (
    CHOICE_CLIPPED,
    CHOICE_SURROGATE,
    CHOICES,
    PICK_CLIPPED,
    PICK_SURROGATE,
    PICKS,
)
from gnnsched.collective.decode.presets import random_scores
from gnnsched.topology.generators import dgx
from gnnsched.training.mixture import Lesson
from gnnsched.training.rollout import LevelWeights, Rollouts, collect, gradient

NO_CLIP = 1e9
HORIZON = 0.3
BOTH = LevelWeights()


def lesson_on(network: str = "dgx") -> Lesson:
    return lesson_of({"dgx": lambda: dgx(2, 3), "triangle": triangle, "two": two_servers}[network]())


def rolled(lesson: Lesson, count: int = 3, seed: int = 0) -> tuple[Rollouts, Scores]:
    scores = prior_scores(lesson.instance)
    return collect(lesson, scores, Decoding(), count, np.random.default_rng(seed), HORIZON), scores


def as_advantage(rollouts: Rollouts, value: float) -> Rollouts:
    advantage = [np.full(episode.events, value) for episode in rollouts.episodes]
    return dataclasses.replace(rollouts, advantage=advantage)


def assert_close(one: Scores, other: Scores) -> None:
    for mine, theirs in zip(one, other):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


# Collecting


def test_ratios_are_makespans_over_the_bound() -> None:
    lesson = lesson_on("triangle")
    rollouts, _ = rolled(lesson, 5)
    assert len(rollouts.episodes) == 5
    assert lesson.bound > 0.0
    for episode, ratio in zip(rollouts.episodes, rollouts.ratio):
        assert ratio == episode.makespan / lesson.bound
        assert ratio >= 1.0 - 1e-9
    for episode, cost, advantage in zip(rollouts.episodes, rollouts.cost, rollouts.advantage):
        assert len(cost) == len(advantage) == episode.events


def test_same_random_source_same_rollouts() -> None:
    lesson = lesson_on()
    (one, _), (two, _), (other, _) = rolled(lesson, 4), rolled(lesson, 4), rolled(lesson, 4, seed=1)
    np.testing.assert_array_equal(one.ratio, two.ratio)
    for mine, theirs in zip(one.episodes, two.episodes):
        np.testing.assert_array_equal(mine.tape.choices, theirs.tape.choices)
    assert any(
        len(a.tape.choices) != len(b.tape.choices) or (a.tape.choices != b.tape.choices).any()
        for a, b in zip(one.episodes, other.episodes)
    )


# The gradient


def test_gradient_is_the_mean_over_rollouts() -> None:
    rollouts, scores = rolled(lesson_on(), 3)
    whole, statistic = gradient(rollouts, scores, Decoding(), True, 0.2, BOTH)
    parts = []
    for i in range(3):
        alone = dataclasses.replace(
            rollouts, episodes=rollouts.episodes[i : i + 1], advantage=rollouts.advantage[i : i + 1]
        )
        parts.append(gradient(alone, scores, Decoding(), True, 0.2, BOTH)[0])
    assert_close(whole, Scores(*(sum(part) / 3 for part in zip(*parts))))
    assert statistic[PICKS] == sum(len(e.tape.picks) for e in rollouts.episodes)
    assert statistic[CHOICES] == sum(len(e.tape.choices) for e in rollouts.episodes)
    # again, from whatever the tapes hold now: the same
    assert_close(whole, gradient(rollouts, scores, Decoding(), True, 0.2, BOTH)[0])


def test_every_event_has_its_own_advantage() -> None:
    """The gradient is linear in the events' advantages, one event at a time."""
    rollouts, scores = rolled(lesson_on(), 1)
    events = rollouts.episodes[0].events
    assert events > 3
    values = np.random.default_rng(0).normal(size=events)
    whole, statistic = gradient(
        dataclasses.replace(rollouts, advantage=[values]), scores, Decoding(), True, 0.2, BOTH
    )
    parts, picks, choices = [], 0.0, 0.0
    for event in range(events):
        alone = dataclasses.replace(rollouts, advantage=[np.eye(events)[event]])
        part, own = gradient(alone, scores, Decoding(), True, 0.2, BOTH)
        parts.append(Scores(*(values[event] * p for p in part)))
        picks += values[event] * own[PICK_SURROGATE]
        choices += values[event] * own[CHOICE_SURROGATE]
    assert_close(whole, Scores(*(sum(p) for p in zip(*parts))))
    assert statistic[PICK_SURROGATE] == pytest.approx(picks)
    assert statistic[CHOICE_SURROGATE] == pytest.approx(choices)
    assert sum(any(p.any() for p in part) for part in parts) > 1


def test_gradient_of_a_single_rollout_is_zero_without_entropy() -> None:
    rollouts, scores = rolled(lesson_on(), 1)
    made, _ = gradient(rollouts, scores, Decoding(), True, 0.2, BOTH)
    assert not any(part.any() for part in made)


@pytest.mark.parametrize("advantage", [0.7, -0.7])
@pytest.mark.parametrize("log_ratio", [1.0, -1.0, 0.1, -0.1])
def test_clipped_surrogate_in_closed_form(advantage: float, log_ratio: float) -> None:
    """All old probabilities off by one factor: the first epoch's gradient times the ratio, or nothing if clipped."""
    rollouts, scores = rolled(lesson_on())
    rollouts = as_advantage(rollouts, advantage)
    first, _ = gradient(rollouts, scores, Decoding(), True, 0.2, BOTH)
    assert all(part.any() for part in first)
    same, statistic = gradient(rollouts, scores, Decoding(), False, 0.2, BOTH)
    assert_close(same, first)
    assert statistic[PICK_CLIPPED] == statistic[CHOICE_CLIPPED] == 0
    for episode in rollouts.episodes:
        episode.tape.old_pick[:] -= log_ratio
        episode.tape.old_choice[:] -= log_ratio
    made, statistic = gradient(rollouts, scores, Decoding(), False, 0.2, BOTH)
    clipped = (advantage > 0 and log_ratio == 1.0) or (advantage < 0 and log_ratio == -1.0)
    factor = 0.0 if clipped else np.exp(log_ratio)
    assert_close(made, Scores(*(factor * part for part in first)))
    # the surrogate itself: the ratio's part of the advantage, up to the clip
    surrogate = advantage * (1.0 + np.sign(advantage) * 0.2 if clipped else factor)
    assert statistic[PICK_SURROGATE] == pytest.approx(surrogate * statistic[PICKS])
    assert statistic[CHOICE_SURROGATE] == pytest.approx(surrogate * statistic[CHOICES])
    assert statistic[PICK_CLIPPED] == (statistic[PICKS] if clipped else 0)
    assert statistic[CHOICE_CLIPPED] == (statistic[CHOICES] if clipped else 0)


def test_a_step_along_the_gradient_raises_the_log_probability_of_what_went_well() -> None:
    rollouts, scores = rolled(lesson_on(), 2)
    rollouts = as_advantage(rollouts, 1.0)
    made, _ = gradient(rollouts, scores, Decoding(), True, NO_CLIP, BOTH)

    def mean_log_probability(at: Scores) -> float:
        gradient(rollouts, at, Decoding(), False, NO_CLIP, BOTH)
        tapes = [episode.tape for episode in rollouts.episodes]
        return float(
            np.mean(
                [(t.new_pick.sum() + t.new_choice.sum()) / (len(t.picks) + len(t.choices)) for t in tapes]
            )
        )

    step = 1e-3 / max(np.abs(part).max() for part in made)
    better = Scores(*(part + step * slope for part, slope in zip(scores, made)))
    gain = mean_log_probability(better) - mean_log_probability(scores)
    expected = step * sum(float(np.square(slope).sum()) for slope in made)
    assert gain == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("entropy", [0.0, 0.3])
def test_a_frozen_level_gets_no_gradient(entropy: float) -> None:
    """Neither from the surrogate nor from the entropy bonus, and the other level's stays what it was."""
    rollouts, scores = rolled(lesson_on())
    bonuses = {"pick_entropy": entropy, "choice_entropy": entropy}
    joint, _ = gradient(rollouts, scores, Decoding(), True, 0.2, LevelWeights(**bonuses))
    low, _ = gradient(rollouts, scores, Decoding(), True, 0.2, LevelWeights(choice=0.0, **bonuses))
    high, _ = gradient(rollouts, scores, Decoding(), True, 0.2, LevelWeights(pick=0.0, **bonuses))
    assert all(part.any() for part in joint)
    np.testing.assert_allclose(low.path, joint.path)
    assert not low.chunk.any()
    assert not low.chunk_progress.any()
    assert not low.attention.any()
    assert not high.path.any()
    for mine, theirs in zip(high[1:], joint[1:]):
        np.testing.assert_allclose(mine, theirs)


def test_entropy_bonus_makes_choices_more_even() -> None:
    """At equal scores entropy is largest already: its gradient vanishes there; elsewhere it does not."""
    lesson = lesson_on("triangle")
    only_entropy = LevelWeights(pick_entropy=1.0, choice_entropy=1.0)
    for make, flat in ((random_scores, True), (prior_scores, False)):
        scores = make(lesson.instance)
        rollouts = as_advantage(
            collect(lesson, scores, Decoding(), 2, np.random.default_rng(0), HORIZON), 0.0
        )
        made, _ = gradient(rollouts, scores, Decoding(), True, 0.2, only_entropy)
        largest = max(np.abs(part).max() for part in made)
        assert (largest < 1e-12) == flat


def test_an_episode_of_one_event_learns() -> None:
    rollouts, scores = rolled(lesson_on("two"), 1)
    assert len(rollouts.episodes[0].tape.picks) >= 1
    assert not any(advantage.any() for advantage in rollouts.advantage)
    made, statistic = gradient(rollouts, scores, Decoding(), True, 0.2, LevelWeights(1.0, 1.0, 0.1, 0.1))
    assert all(np.isfinite(part).all() for part in made)
    assert np.isfinite(statistic).all()
