"""Rollouts of one lesson by the compiled decoder, and the gradient that replaying them gives."""

from dataclasses import dataclass

import numpy as np

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding, Episode
from gnnsched.collective.decode.learn import (
    ADVANTAGE,
    CHOICE_ENTROPY,
    CHOICE_WEIGHT,
    CLIP,
    FIRST_EPOCH,
    PICK_ENTROPY,
    PICK_WEIGHT,
)
from gnnsched.training.mixture import Lesson

# Spread of ratios below which rollouts of a lesson count as equally good.
SPREAD_FLOOR = 0.02


@dataclass(frozen=True)
class Rollouts:
    """K episodes of one lesson; ``ratio`` (K,): makespan over the all-gather bound; ``advantage`` (K,)."""

    lesson: Lesson
    episodes: list[Episode]
    ratio: np.ndarray
    advantage: np.ndarray


@dataclass(frozen=True)
class LevelWeights:
    """Weights of the two levels' objectives in an update: 0 freezes a level; entropy bonuses per decision."""

    pick: float = 1.0
    choice: float = 1.0
    pick_entropy: float = 0.0
    choice_entropy: float = 0.0


def advantages(ratio: np.ndarray) -> np.ndarray:
    """How much better than the lesson's mean, in its spread; zero for a single rollout."""
    return (ratio.mean() - ratio) / (ratio.std() + SPREAD_FLOOR)


def collect(
    lesson: Lesson, scores: Scores, decoding: Decoding, count: int, rng: np.random.Generator
) -> Rollouts:
    """``count`` sampled episodes of the lesson."""
    episodes = [lesson.instance.decode(scores, decoding, rng, record=True) for _ in range(count)]
    ratio = np.array([e.makespan / lesson.bound if lesson.bound > 0 else 1.0 for e in episodes])
    return Rollouts(lesson, episodes, ratio, advantages(ratio))


def gradient(
    rollouts: Rollouts, scores: Scores, decoding: Decoding, first: bool, clip: float, weights: LevelWeights
) -> tuple[Scores, np.ndarray]:
    """Gradient of the lesson's objective (mean over rollouts and their decisions) with respect to ``scores``.

    Also returns the sums of statistics of ``learn.PICKS`` and so on, (8,). ``first``: the first epoch after
    acting, where old and new probabilities are the same.
    """
    total = [np.zeros_like(part) for part in scores]
    statistic = np.zeros(8)
    for episode, advantage in zip(rollouts.episodes, rollouts.advantage):
        tape = episode.tape
        for array in (tape.d_path, tape.d_chunk, tape.d_chunk_progress, tape.d_attention, tape.debt):
            array[:] = 0.0
        tape.statistic[:] = 0.0
        tape.setting[ADVANTAGE], tape.setting[CLIP] = advantage, clip
        tape.setting[PICK_WEIGHT], tape.setting[CHOICE_WEIGHT] = weights.pick, weights.choice
        tape.setting[PICK_ENTROPY], tape.setting[CHOICE_ENTROPY] = (
            weights.pick_entropy,
            weights.choice_entropy,
        )
        tape.setting[FIRST_EPOCH] = float(first)
        rollouts.lesson.instance.replay(scores, decoding, tape, episode.state.random)
        decisions = max(1, len(tape.picks) + len(tape.choices))
        scale = 1.0 / (decisions * len(rollouts.episodes))
        for part, own in zip(total, (tape.d_path, tape.d_chunk, tape.d_chunk_progress, tape.d_attention)):
            part += own * scale
        statistic += tape.statistic
    return Scores(*total), statistic
