"""Training the partitioning policy: imitation of tuned rules first, then masked PPO, then expert iteration."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gnnsched.partition import ppo
from gnnsched.partition.compiled_policy import run_policy, weights_of
from gnnsched.partition.episode import metrics
from gnnsched.partition.expert import Replay, judge, losses
from gnnsched.partition.fleet import Fleet
from gnnsched.partition.lookahead import Lookahead
from gnnsched.partition.network import PartitionConfig, PartitionPolicy, join_jobs
from gnnsched.partition.seeds import TRAINING, VALIDATION, generator
from gnnsched.partition.workload import DISTRIBUTIONS, beta_distribution, draw_arrivals
from gnnsched.partition.world import World
from gnnsched.training.run import TrainingRun


@dataclass(frozen=True)
class PartitionTraining:
    """Settings of a training run.

    ``iterations`` or ``minutes`` end it, whichever comes first. The first ``imitation`` iterations imitate the tuned
    rules, with the entropy bonus ``imitation_entropy``: a policy that is sure of itself explores nothing afterwards.
    Learning rate and entropy bonus fall linearly until expert iteration takes over for the last ``expert_share`` of
    the run. ``episodes``: side by side, over all worlds.

    Expert iteration goes on from the best policy so far. In each iteration all episodes of one world go on ``apart``
    arrivals, and the decisions in up to ``judged`` of them are judged, on ``futures`` of ``ahead`` arrivals. The last
    ``replay`` judged decisions are learned from, each ``passes`` times in all, in batches of ``expert_minibatch``, with
    a learning rate that falls linearly from ``expert_rate``, towards the softmax of worths over ``temperature``.
    """

    seed: int = 0
    iterations: int | None = None
    minutes: float | None = None
    imitation: int = 20
    imitation_entropy: float = 0.15
    episodes: int = 256
    steps: int = 64
    epochs: int = 4
    minibatch: int = 2048
    learning_rate: float = 1e-3
    trace: float = 0.98
    clip: float = 0.2
    entropy: float = 0.01
    last_entropy: float = 0.0
    value_weight: float = 0.5
    gradient_clip: float = 0.5
    averaging: float = 0.998
    expert_share: float = 0.8
    judged: int = 64
    apart: int = 5
    futures: int = 12
    ahead: int = 16
    replay: int = 48000
    passes: int = 96
    expert_minibatch: int = 512
    expert_rate: float = 5e-4
    temperature: float = 0.05
    validation_every: int = 100
    validation_episodes: int = 6


class PartitionTrainer(TrainingRun[PartitionPolicy]):
    """Trains one policy on several worlds: clusters, each with the models that arrive on it."""

    def __init__(
        self,
        worlds: Sequence[World],
        rules: Sequence[NDArray[np.int64]],
        config: PartitionTraining,
        policy_config: PartitionConfig | None = None,
        device: str = "cpu",
    ) -> None:
        """``rules``: per world the tuned parameters (distributions, 3 M) of the rules to imitate."""
        super().__init__(config, lambda: PartitionPolicy(policy_config), device)
        self.config = config
        self.worlds = tuple(worlds)
        self.rules = tuple(rules)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), config.learning_rate, eps=1e-5)
        self.jobs = join_jobs([job for world in worlds for job in world.jobs]).to(device)
        each = max(len(DISTRIBUTIONS), config.episodes // len(self.worlds))
        rng = np.random.default_rng([TRAINING, config.seed])
        self.fleets = [Fleet(world, each, rng) for world in worlds]
        self.replay = Replay(config.replay, max(fleet.mask.shape[1] for fleet in self.fleets), device)

    def update(self) -> dict[str, float]:
        """One iteration of what is due."""
        trial = 1.0 - self.config.expert_share
        rng = np.random.default_rng([TRAINING, self.config.seed, 1 + self.iteration])
        # A run that has come to judging stays with it, even where its end is moved.
        if self.done_share < trial and not len(self.replay):
            scalars = self._by_trial(rng, 1.0 - self.done_share / trial)
        else:
            scalars = self._by_lookahead(rng, min(1.0, (1.0 - self.done_share) / self.config.expert_share))
        self.iteration += 1
        return {
            **scalars,
            "update/learning_rate": self.optimizer.param_groups[0]["lr"],
            "time/steps": float(self.steps),
        }

    def _by_trial(self, rng: np.random.Generator, left: float) -> dict[str, float]:
        """Some steps of all episodes, then some epochs over them; ``left``: part of the trials that is to come."""
        config = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * max(0.02, left)
        entropy_weight = config.last_entropy + (config.entropy - config.last_entropy) * left
        imitating = self.iteration < config.imitation
        batch, scalars = ppo.collect(
            self.policy,
            self.jobs,
            self.fleets,
            self.rules if imitating else None,
            config.steps,
            config.trace,
            rng,
        )
        count = len(batch.action)
        sums: dict[str, float] = {}
        passes = 0
        for _ in range(config.epochs):
            order = torch.from_numpy(rng.permutation(count)).to(self.device)
            for begin in range(0, count, config.minibatch):
                own = ppo.losses(
                    self.policy, self.jobs, batch, order[begin : begin + config.minibatch], config.clip
                )
                if imitating:
                    loss = own.imitation - config.imitation_entropy * own.entropy
                else:
                    loss = own.surrogate - entropy_weight * own.entropy
                passes += 1
                for name, value in (
                    ("loss", loss.item()),
                    ("value_loss", own.value.item()),
                    ("entropy", own.entropy.item()),
                    ("approx_kl", own.approx_kl),
                    ("clipfrac", own.clipfrac),
                    ("gradient_norm", self._descend(loss + config.value_weight * own.value)),
                ):
                    sums[name] = sums.get(name, 0.0) + value
        self.steps += count
        return {
            **scalars,
            **{f"update/{name}": value / passes for name, value in sums.items()},
            "update/imitating": float(imitating),
        }

    def _by_lookahead(self, rng: np.random.Generator, left: float) -> dict[str, float]:
        """Judge decisions of one world, then learn from some of all that were judged."""
        config = self.config
        if not len(self.replay):
            self.average.load_state_dict(self.best_policy().state_dict())
            self.policy.load_state_dict(self.average.state_dict())
        for group in self.optimizer.param_groups:
            group["lr"] = config.expert_rate * max(0.02, left)
        number = self.iteration % len(self.worlds)
        fleet = self.fleets[number]
        fleet.rng = rng
        weights = weights_of(copy.deepcopy(self.average).cpu(), join_jobs(fleet.world.jobs))
        lookahead = Lookahead(config.futures, config.ahead, config.futures)
        judged = judge(fleet, weights, config.apart, config.judged, lookahead)
        judged["job"] = judged["job"] + sum(len(world.models) for world in self.worlds[:number])
        self.replay.add(judged)
        self.steps += fleet.count * config.apart
        sums: dict[str, float] = {}
        passes = max(1, config.passes * len(judged["job"]) // config.expert_minibatch)
        for _ in range(passes):
            own = losses(
                self.policy, self.jobs, self.replay.draw(config.expert_minibatch, rng), config.temperature
            )
            for name, value in (
                ("divergence", own.divergence.item()),
                ("value_loss", own.value.item()),
                ("entropy", own.entropy),
                ("regret", own.regret),
                ("gradient_norm", self._descend(own.divergence + config.value_weight * own.value)),
            ):
                sums[name] = sums.get(name, 0.0) + value / passes
        return {f"expert/{name}": value for name, value in sums.items()}

    def _descend(self, loss: Tensor) -> float:
        """A step of the optimizer and of the running average; returns the gradient's norm."""
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.gradient_clip)
        self.optimizer.step()
        self.follow()
        return norm.item()

    def validate(self) -> dict[str, float]:
        """Blocking rates of the averaged policy on arrivals of their own; keeps the best weights seen."""
        policy = copy.deepcopy(self.average).cpu()
        result: dict[str, float] = {}
        for number, world in enumerate(self.worlds):
            weights = weights_of(policy, join_jobs(world.jobs))
            for name in DISTRIBUTIONS:
                rates = []
                for seed in range(self.config.validation_episodes):
                    rng = generator(VALIDATION, name, seed)
                    arrivals = draw_arrivals(len(world.models), beta_distribution(name), rng, world.time_unit)
                    rates.append(metrics(world, arrivals, run_policy(world, arrivals, weights)).blocking_rate)
                result[f"validation/{number}_{world.label}/{name}"] = float(np.mean(rates))
        score = float(np.mean(list(result.values())))
        self.consider(score)
        return {"validation/blocking_rate": score, **result}

    def kept_state(self) -> dict[str, dict[str, Tensor]]:
        """Where the episodes are, and the judged decisions."""
        episodes = {
            f"fleet{i}": {key: torch.from_numpy(np.ascontiguousarray(a)) for key, a in fleet.state().items()}
            for i, fleet in enumerate(self.fleets)
        }
        return {**episodes, "replay": self.replay.state()}

    def restore(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from ``kept_state``."""
        for i, fleet in enumerate(self.fleets):
            fleet.restore({key: value.numpy() for key, value in parts[f"fleet{i}"].items()})
        self.replay.restore(parts["replay"])
