"""Rollouts of one lesson by the compiled decoder, and the gradient that replaying them gives."""

from dataclasses import dataclass

import numpy as np

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding, Episode
from gnnsched.collective.decode.learn import (
    CHOICE_ENTROPY,
    CHOICE_WEIGHT,
    CLIP,
    FIRST_EPOCH,
    PICK_ENTROPY,
    PICK_WEIGHT,
    STATISTICS,
)
from gnnsched.training.credit import potentials
from gnnsched.training.mixture import Lesson

# Spread of log ratios below which rollouts of a lesson count as equally good.
SPREAD_FLOOR = 0.02
# Progress from one event to the next where no transfer started, so that each event keeps a place of its own.
NUDGE = 1e-9


@dataclass(frozen=True)
class Rollouts:
    """K episodes of one lesson; ``ratio`` (K,): makespan over the all-gather bound.

    ``cost`` and ``advantage``: of each episode's events, in the unit of ``costs_to_go``.
    """

    lesson: Lesson
    episodes: list[Episode]
    ratio: np.ndarray
    cost: list[np.ndarray]
    advantage: list[np.ndarray]


@dataclass(frozen=True)
class LevelWeights:
    """Weights of the two levels' objectives in an update: 0 freezes a level; entropy bonuses per decision."""

    pick: float = 1.0
    choice: float = 1.0
    pick_entropy: float = 0.0
    choice_entropy: float = 0.0


def discounted(costs: np.ndarray, moments: np.ndarray, horizon: float) -> np.ndarray:
    """Sums of the costs from each event on, those ``horizon`` later counting 1/e of themselves.

    ``moments`` has one entry more than ``costs``: the end of the plan.
    """
    if np.isinf(horizon):
        return costs[::-1].cumsum()[::-1]
    result = np.zeros(len(costs))
    later = 0.0
    fade = np.exp(-np.diff(moments) / horizon)
    for event in range(len(costs) - 1, -1, -1):
        later = costs[event] + fade[event] * later
        result[event] = later
    return result


def costs_to_go(
    lesson: Lesson, episodes: list[Episode], ratio: np.ndarray, horizon: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Per episode the progress at each event, and what the decisions from there on cost.

    In the spread of the lesson's makespans. Progress rises with every event, if only a little where nothing started.
    """
    logs = np.log(ratio)
    usual = float(np.exp(logs.mean())) * lesson.bound
    scale = usual * (logs.std() + SPREAD_FLOOR)
    progress, costs = [], []
    for episode in episodes:
        potential, own = potentials(lesson.instance, lesson.cuts, episode)
        moments = np.append(episode.tape.event_time, episode.makespan) / usual
        increments = np.diff(np.append(potential, episode.makespan))
        progress.append(own + NUDGE * np.arange(len(own)))
        costs.append(discounted(increments, moments, horizon) / scale)
    return progress, costs


def advantages(progress: list[np.ndarray], costs: list[np.ndarray]) -> list[np.ndarray]:
    """Per episode and event: how much less its decisions cost than the rollouts' at the same progress on average.

    Zero for a single rollout.
    """
    return [
        np.mean([np.interp(own, p, c) for p, c in zip(progress, costs)], 0) - cost
        for own, cost in zip(progress, costs)
    ]


def collect(
    lesson: Lesson, scores: Scores, decoding: Decoding, count: int, rng: np.random.Generator, horizon: float
) -> Rollouts:
    """``count`` sampled episodes of the lesson; ``horizon``: as ``discounted`` takes it, in usual makespans."""
    episodes = [lesson.instance.decode(scores, decoding, rng, record=True) for _ in range(count)]
    if lesson.bound <= 0.0:
        nothing = [np.zeros(e.events) for e in episodes]
        return Rollouts(lesson, episodes, np.ones(count), nothing, nothing)
    ratio = np.array([e.makespan / lesson.bound for e in episodes])
    progress, costs = costs_to_go(lesson, episodes, ratio, horizon)
    return Rollouts(lesson, episodes, ratio, costs, advantages(progress, costs))


def explained_variance(rollouts: list[Rollouts]) -> float:
    """Part of the variance of all events' costs-to-go that progress explains; 0 where they do not vary."""
    costs = np.concatenate([cost for r in rollouts for cost in r.cost])
    rest = np.concatenate([advantage for r in rollouts for advantage in r.advantage])
    spread = float(costs.var())
    return 1.0 - float(rest.var()) / spread if spread > 0.0 else 0.0


def gradient(
    rollouts: Rollouts, scores: Scores, decoding: Decoding, first: bool, clip: float, weights: LevelWeights
) -> tuple[Scores, np.ndarray]:
    """Gradient of the lesson's objective (mean over rollouts and their decisions) with respect to ``scores``.

    Also returns the sums of statistics of ``learn.PICKS`` and so on, (10,). ``first``: the first epoch after
    acting, where old and new probabilities are the same.
    """
    total = [np.zeros_like(part) for part in scores]
    statistic = np.zeros(STATISTICS)
    for episode, advantage in zip(rollouts.episodes, rollouts.advantage):
        tape = episode.tape._replace(advantage=advantage)
        for array in (tape.d_path, tape.d_chunk, tape.d_chunk_progress, tape.d_attention, tape.debt):
            array[:] = 0.0
        tape.statistic[:] = 0.0
        tape.setting[CLIP] = clip
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
