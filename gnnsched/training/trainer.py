"""Hierarchical PPO: both levels of the policy trained together (after arXiv 2503.21013), flat and readable."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from gnnsched.collective.decode.learn import (
    CHOICE_CLIPPED,
    CHOICE_ENTROPY_SUM,
    CHOICE_KL,
    CHOICE_SURROGATE,
    CHOICES,
    PICK_CLIPPED,
    PICK_ENTROPY_SUM,
    PICK_KL,
    PICK_SURROGATE,
    PICKS,
    STATISTICS,
)
from gnnsched.models.features import join
from gnnsched.models.policy import Policy, PolicyConfig, join_gradients, split_scores
from gnnsched.training.mixture import Lesson, Mixture
from gnnsched.training.rollout import LevelWeights, collect, explained_variance, gradient
from gnnsched.training.run import TrainingRun


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run; the defaults made the shipped checkpoint.

    ``iterations`` or ``minutes`` end it, whichever comes first (one of them is needed); the learning rate falls
    linearly over the part that ends first. ``alternate``: freeze the levels in turns, that many updates each
    (0: joint updates). ``pool``: number of different lessons before they come again. ``horizon``: how much later, in
    makespans, a cost counts 1/e of itself in a decision's credit.
    """

    seed: int = 0
    iterations: int | None = None
    minutes: float | None = None
    lessons: int = 12
    rollouts: int = 8
    epochs: int = 2
    learning_rate: float = 1e-3
    base_learning_rate: float = 1e-2
    horizon: float = 0.3
    clip: float = 0.2
    gradient_clip: float = 1.0
    pick_entropy: float = 1e-3
    choice_entropy: float = 1e-3
    averaging: float = 0.99
    alternate: int = 0
    pool: int = 4096
    validation_lessons: int = 96
    validation_every: int = 50


class Trainer(TrainingRun[Policy]):
    """Trains the AllReduce policy on a mixture of networks."""

    def __init__(
        self,
        mixture: Mixture,
        config: TrainConfig,
        policy_config: PolicyConfig | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, lambda: Policy(policy_config), device)
        self.config = config
        self.mixture = mixture
        self.held_out = mixture.held_out()
        base = [self.policy.path_base, self.policy.chunk_base]
        rest = [p for p in self.policy.parameters() if not any(p is b for b in base)]
        self.optimizer = torch.optim.Adam(
            [
                {"params": rest, "lr": config.learning_rate, "peak": config.learning_rate},
                {"params": base, "lr": config.base_learning_rate, "peak": config.base_learning_rate},
            ]
        )

    def level_weights(self) -> LevelWeights:
        """Both levels, or in alternating mode the one whose turn it is."""
        pick = choice = 1.0
        if self.config.alternate:
            low = (self.iteration // self.config.alternate) % 2 == 0
            pick, choice = float(low), float(not low)
        return LevelWeights(pick, choice, self.config.pick_entropy, self.config.choice_entropy)

    def frozen(self, weights: LevelWeights) -> list[nn.Parameter]:
        """Parameters of the heads whose turn it is not; the encoder belongs to both levels."""
        policy = self.policy
        low = [policy.path_base, *policy.path_head.parameters()]
        high = [policy.chunk_base, policy.pair_weight]
        for part in (policy.chunk_head, policy.query, policy.key):
            high += part.parameters()
        return (low if weights.pick == 0.0 else []) + (high if weights.choice == 0.0 else [])

    def update(self) -> dict[str, float]:
        """One iteration: rollouts of some lessons, then PPO's epochs over them."""
        config = self.config
        rng = np.random.default_rng([config.seed, 7, self.iteration])
        lessons = [self.mixture.lesson(int(i)) for i in rng.integers(config.pool, size=config.lessons)]
        instances = [lesson.instance for lesson in lessons]
        batch = join([lesson.graph for lesson in lessons]).to(self.device)
        rate = max(0.02, 1.0 - self.done_share)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * rate
        rollouts = []
        statistic = np.zeros(STATISTICS)
        weights = self.level_weights()
        norm = 0.0
        for epoch in range(config.epochs):
            output = self.policy(batch)
            scores = split_scores(output, batch, instances)
            if epoch == 0:
                rollouts = [
                    collect(lesson, own, lesson.decoding, config.rollouts, rng, config.horizon)
                    for lesson, own in zip(lessons, scores)
                ]
            results = [
                gradient(r, own, r.lesson.decoding, epoch == 0, config.clip, weights)
                for r, own in zip(rollouts, scores)
            ]
            statistic = np.sum([s for _, s in results], 0)
            gradients = join_gradients(output, batch, instances, [g for g, _ in results])
            self.optimizer.zero_grad()
            # The optimizer descends, the surrogate is to be climbed.
            torch.autograd.backward(
                [output.path, output.chunk, output.chunk_progress, output.attention],
                [-g / config.lessons for g in gradients],
            )
            for parameter in self.frozen(weights):
                # No gradient at all: of a zero one Adam's momentum would still make steps.
                parameter.grad = None
            norm = float(nn.utils.clip_grad_norm_(self.policy.parameters(), config.gradient_clip))
            self.optimizer.step()
        self.follow()
        self.iteration += 1
        decisions = int(sum(len(e.tape.picks) + len(e.tape.choices) for r in rollouts for e in r.episodes))
        self.steps += decisions
        picks, choices = max(statistic[PICKS], 1.0), max(statistic[CHOICES], 1.0)
        return {
            "rollout/ratio_mean": float(np.mean([r.ratio.mean() for r in rollouts])),
            "rollout/ratio_best": float(np.mean([r.ratio.min() for r in rollouts])),
            "rollout/spread": float(np.mean([r.ratio.std() for r in rollouts])),
            "rollout/explained_variance": explained_variance(rollouts),
            "low_level/loss": -statistic[PICK_SURROGATE] / picks,
            "low_level/approx_kl": statistic[PICK_KL] / picks,
            "low_level/clipfrac": statistic[PICK_CLIPPED] / picks,
            "low_level/entropy": statistic[PICK_ENTROPY_SUM] / picks,
            "high_level/loss": -statistic[CHOICE_SURROGATE] / choices,
            "high_level/approx_kl": statistic[CHOICE_KL] / choices,
            "high_level/clipfrac": statistic[CHOICE_CLIPPED] / choices,
            "high_level/entropy": statistic[CHOICE_ENTROPY_SUM] / choices,
            "update/gradient_norm": norm,
            "update/learning_rate": self.optimizer.param_groups[0]["lr"],
            "time/steps": float(self.steps),
        }

    def validation_lessons(self) -> list[Lesson]:
        """Lessons apart from the run's own (of given networks: other chunks and flows), the same for every seed."""
        return [self.held_out.lesson(i) for i in range(self.config.validation_lessons)]

    def validate(self) -> dict[str, float]:
        """Ratio of the averaged policy on the validation lessons; keeps the best weights seen."""
        lessons = self.validation_lessons()
        instances = [lesson.instance for lesson in lessons]
        batch = join([lesson.graph for lesson in lessons]).to(self.device)
        with torch.no_grad():
            scores = split_scores(self.average(batch), batch, instances)
        rng = np.random.default_rng([self.config.seed, 11])
        mean, best = [], []
        for lesson, own in zip(lessons, scores):
            logs = [
                np.log(lesson.instance.decode(own, lesson.decoding, rng).makespan / lesson.bound)
                for _ in range(4)
            ]
            mean.append(np.mean(logs))
            best.append(np.min(logs))
        score = float(np.exp(np.mean(mean + best)))
        self.consider(score)
        groups: dict[str, list[float]] = {}
        for lesson, value in zip(lessons, mean):
            groups.setdefault(f"validation_family/{lesson.family}", []).append(value)
            groups.setdefault(f"validation_case/{lesson.case}", []).append(value)
        return {
            "validation/ratio_mean": float(np.exp(np.mean(mean))),
            "validation/ratio_best": float(np.exp(np.mean(best))),
            **{name: float(np.exp(np.mean(values))) for name, values in groups.items()},
        }
