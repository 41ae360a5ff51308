"""Training the partitioning policy: imitation of rules, then masked PPO, then what lookahead finds."""

import copy
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gnnsched.models.policy import on_device
from gnnsched.partition.compiled_policy import best_row, run_policy, weights_of
from gnnsched.partition.episode import metrics
from gnnsched.partition.features import FEATURES
from gnnsched.partition.fleet import Fleet
from gnnsched.partition.lookahead import Lookahead
from gnnsched.partition.network import (
    ACCEPTED,
    BLOCKED,
    DISCOUNT,
    PartitionConfig,
    PartitionPolicy,
    join_jobs,
)
from gnnsched.partition.seeds import TRAINING, VALIDATION, generator
from gnnsched.partition.workload import DISTRIBUTIONS, beta_distribution, draw_arrivals
from gnnsched.partition.world import World
from gnnsched.topology.errors import InputError
from gnnsched.training.state import TrainingState, load_state, not_resumable, save_state


@dataclass(frozen=True)
class PartitionTraining:
    """Settings of a training run; the defaults made the shipped checkpoints.

    ``iterations`` or ``minutes`` end it, whichever comes first; learning rate and entropy bonus fall linearly until
    then. The first ``imitation`` iterations imitate the tuned rules, with the entropy bonus ``imitation_entropy``: a
    policy that is sure of itself explores nothing afterwards. ``episodes``: side by side, over all worlds. The last
    ``lookahead`` part of the run learns the choices of lookahead (its ``futures`` and ``arrivals``), half of the
    episodes following them and half the policy: to each choice goes a probability that rises with what it is worth
    over ``temperature``. ``memory``: decisions that are learned from again.
    """

    seed: int = 0
    iterations: int | None = None
    minutes: float | None = None
    imitation: int = 20
    imitation_entropy: float = 0.15
    episodes: int = 128
    steps: int = 64
    epochs: int = 4
    minibatch: int = 2048
    learning_rate: float = 1e-3
    trace: float = 0.95
    clip: float = 0.2
    entropy: float = 0.02
    last_entropy: float = 0.002
    lookahead: float = 0.5
    futures: int = 24
    arrivals: int = 16
    temperature: float = 0.1
    lookahead_steps: int = 8
    lookahead_minibatches: int = 12
    memory: int = 65_536
    value_weight: float = 0.5
    gradient_clip: float = 0.5
    averaging: float = 0.998
    validation_every: int = 25
    validation_episodes: int = 6


@dataclass(frozen=True, eq=False)
class Batch:
    """Decisions of one iteration, (n, ...): what was seen, what was done and what came of it."""

    rows: Tensor
    mask: Tensor
    job: Tensor
    action: Tensor
    log_probability: Tensor
    advantage: Tensor
    value_target: Tensor
    taught: Tensor


@dataclass(frozen=True, eq=False)
class Weighed:
    """Decisions that lookahead has weighed, (n, ...); ``worth`` (n, D + 1): of each choice, -inf where illegal."""

    rows: Tensor
    mask: Tensor
    job: Tensor
    worth: Tensor


def advantages(
    reward: NDArray[np.float32],
    value: NDArray[np.float32],
    last_value: NDArray[np.float32],
    ended: NDArray[np.bool_],
    discount: float,
    trace: float,
) -> NDArray[np.float32]:
    """Generalised advantage estimates (Schulman et al., 2016) of (steps, episodes) decisions.

    ``last_value`` (episodes,): of the decision after the last one; ``ended``: the episode was over after the decision.
    """
    result = np.zeros_like(value)
    following, running = last_value, np.zeros_like(last_value)
    for t in range(len(value) - 1, -1, -1):
        goes_on = 1.0 - ended[t]
        surprise = reward[t] + discount * following * goes_on - value[t]
        running = surprise + discount * trace * goes_on * running
        result[t], following = running, value[t]
    return result


class PartitionTrainer:
    """Trains one policy on several worlds: clusters, each with the models that arrive on it."""

    def __init__(
        self,
        worlds: Sequence[World],
        rules: Sequence[NDArray[np.int64]],
        config: PartitionTraining,
        policy_config: PartitionConfig | None = None,
        device: str = "cpu",
    ) -> None:
        """``rules``: per world the tuned parameters (distributions, 2 M) of the rules to imitate."""
        if config.iterations is None and config.minutes is None:
            raise InputError("training: no end given; set minutes or iterations")
        torch.manual_seed(config.seed)
        self.config = config
        self.worlds = tuple(worlds)
        self.rules = tuple(rules)
        self.device = device
        self.policy = on_device(PartitionPolicy(policy_config), device)
        self.average = copy.deepcopy(self.policy)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), config.learning_rate, eps=1e-5)
        self.jobs = join_jobs([model for world in worlds for model in world.models]).to(device)
        self.first_job = np.cumsum([0] + [len(world.models) for world in worlds])
        each = max(len(DISTRIBUTIONS), config.episodes // len(self.worlds))
        rng = np.random.default_rng([TRAINING, config.seed])
        self.fleets = [Fleet(world, each, rng) for world in worlds]
        self._memory: list[Weighed] = []
        self.iteration = 0
        self.elapsed = 0.0
        self.steps = 0
        self.best = float("inf")
        self.best_weights = copy.deepcopy(self.average.state_dict())

    @property
    def done_share(self) -> float:
        """Part of the run that is over, 0 to 1."""
        shares = [0.0]
        if self.config.iterations is not None:
            shares.append(self.iteration / max(1, self.config.iterations))
        if self.config.minutes is not None:
            shares.append(self.elapsed / (60.0 * self.config.minutes))
        return max(shares)

    def run(self) -> Iterator[dict[str, float]]:
        """Train to the configured end; yields each iteration's scalars."""
        while self.done_share < 1.0:
            begin = time.monotonic()
            scalars = self.update()
            if self.iteration % self.config.validation_every == 0:
                scalars |= self.validate()
            self.elapsed += time.monotonic() - begin
            scalars["time/steps_per_second"] = self.steps / max(self.elapsed, 1e-9)
            yield scalars

    def update(self) -> dict[str, float]:
        """One iteration: some steps of all episodes, then some epochs over them."""
        config = self.config
        rng = np.random.default_rng([TRAINING, config.seed, self.iteration])
        left = 1.0 - self.done_share
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * max(0.02, left)
        entropy_weight = config.last_entropy + (config.entropy - config.last_entropy) * left
        if self.done_share >= 1.0 - config.lookahead and self.iteration >= config.imitation:
            return self._learn_lookahead(rng)
        imitating = self.iteration < config.imitation
        batch, scalars = self._collect(rng, imitating)
        count = len(batch.action)
        sums: dict[str, float] = {}
        passes = 0
        for _ in range(config.epochs):
            order = torch.from_numpy(rng.permutation(count)).to(self.device)
            for begin in range(0, count, config.minibatch):
                losses = self._step(batch, order[begin : begin + config.minibatch], imitating, entropy_weight)
                passes += 1
                for name, value in losses.items():
                    sums[name] = sums.get(name, 0.0) + value
        self.iteration += 1
        self.steps += count
        return {
            **scalars,
            **{name: value / passes for name, value in sums.items()},
            "update/learning_rate": self.optimizer.param_groups[0]["lr"],
            "update/imitating": float(imitating),
            "time/steps": float(self.steps),
        }

    def _step(self, batch: Batch, part: Tensor, imitating: bool, entropy_weight: float) -> dict[str, float]:
        config = self.config
        embedding = self.policy.embed(self.jobs)[batch.job[part]]
        mask = batch.mask[part]
        log_all, value = self.policy(batch.rows[part], mask, embedding)
        entropy = -(log_all.exp() * log_all.masked_fill(~mask, 0.0)).sum(1).mean()
        value_loss = (value - batch.value_target[part]).square().mean()
        log_new = log_all.gather(1, batch.action[part].unsqueeze(1)).squeeze(1)
        log_ratio = log_new - batch.log_probability[part]
        ratio = log_ratio.exp()
        if imitating:
            loss = -log_all.gather(1, batch.taught[part].unsqueeze(1)).mean()
            loss = loss - config.imitation_entropy * entropy
        else:
            advantage = batch.advantage[part]
            clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
            loss = -torch.minimum(ratio * advantage, clipped * advantage).mean() - entropy_weight * entropy
        norm = self._descend(loss + config.value_weight * value_loss)
        return {
            "update/loss": loss.item(),
            "update/value_loss": value_loss.item(),
            "update/entropy": entropy.item(),
            "update/approx_kl": ((ratio - 1.0) - log_ratio).mean().item(),
            "update/clipfrac": ((ratio - 1.0).abs() > config.clip).float().mean().item(),
            "update/gradient_norm": norm,
        }

    def _descend(self, loss: Tensor) -> float:
        """A step of the optimizer and of the running average; returns the gradient's norm."""
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.gradient_clip)
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), self.policy.parameters()):
                slow.lerp_(fast, 1.0 - min(self.config.averaging, (1.0 + self.steps) / (10.0 + self.steps)))
        return norm.item()

    def _learn_lookahead(self, rng: np.random.Generator) -> dict[str, float]:
        """Some steps of all episodes, each choice weighed by lookahead, and some minibatches of what is remembered."""
        config = self.config
        gathered, changed = self._weigh(rng)
        self._memory = [*self._memory, gathered]
        while len(self._memory) > 1 and sum(len(own.job) for own in self._memory[1:]) >= config.memory:
            self._memory.pop(0)
        rows, mask, job, worth = (
            torch.cat([getattr(own, name) for own in self._memory])
            for name in ("rows", "mask", "job", "worth")
        )
        losses, value_losses = [], []
        for _ in range(config.lookahead_minibatches):
            part = torch.from_numpy(rng.integers(len(job), size=config.minibatch)).to(self.device)
            legal = mask[part]
            log_all, value = self.policy(rows[part], legal, self.policy.embed(self.jobs)[job[part]])
            target = (worth[part] / config.temperature).softmax(1)
            loss = -(target * log_all.masked_fill(~legal, 0.0)).sum(1).mean()
            value_loss = (value - worth[part].amax(1)).square().mean()
            self._descend(loss + config.value_weight * value_loss)
            losses.append(loss.item())
            value_losses.append(value_loss.item())
        self.iteration += 1
        self.steps += len(gathered.job)
        return {
            "lookahead/loss": float(np.mean(losses)),
            "lookahead/value_loss": float(np.mean(value_losses)),
            "lookahead/changed_choices": changed,
            "update/learning_rate": self.optimizer.param_groups[0]["lr"],
            "time/steps": float(self.steps),
        }

    def _weigh(self, rng: np.random.Generator) -> tuple[Weighed, float]:
        """Go on with all episodes; only decisions with a choice are kept. Also the part that lookahead changes."""
        config = self.config
        settings = Lookahead(config.futures, config.arrivals)
        average = copy.deepcopy(self.average).cpu()
        kept: dict[str, list[NDArray[np.generic]]] = {}
        changed = []
        widest = max(fleet.mask.shape[1] for fleet in self.fleets)
        for fleet, first in zip(self.fleets, self.first_job):
            fleet.rng = rng
            weights = weights_of(average, join_jobs(fleet.world.models))
            for _ in range(config.lookahead_steps):
                best, worth = fleet.weigh_rows(weights, settings, int(rng.integers(1 << 31)))
                own = np.array(
                    [best_row(weights, *now) for now in zip(fleet.model, fleet.rows, fleet.mask)], np.int64
                )
                open_choice = fleet.mask.sum(1) > 1
                changed.append((best != own)[open_choice].mean() if open_choice.any() else 0.0)
                missing = ((0, 0), (0, widest - fleet.mask.shape[1]))
                for name, values in (
                    ("rows", np.pad(fleet.rows, (*missing, (0, 0)))),
                    ("mask", np.pad(fleet.mask, missing)),
                    ("job", fleet.model + first),
                    ("worth", np.pad(worth, missing, constant_values=-np.inf)),
                ):
                    kept.setdefault(name, []).append(values[open_choice])
                fleet.act(np.where(np.arange(fleet.count) % 2, best, own))
        joined = {
            name: torch.from_numpy(np.concatenate(values)).to(self.device) for name, values in kept.items()
        }
        return Weighed(**joined), float(np.mean(changed))

    @torch.no_grad()
    def _collect(self, rng: np.random.Generator, imitating: bool) -> tuple[Batch, dict[str, float]]:
        """Go on with all episodes; while imitating, the rules decide."""
        config = self.config
        embedding = self.policy.embed(self.jobs)
        widest = max(fleet.mask.shape[1] for fleet in self.fleets)
        parts: dict[str, list[NDArray[np.generic]]] = {}
        scalars: dict[str, float] = {}
        returns, errors = [], []
        for fleet, first, rules in zip(self.fleets, self.first_job, self.rules):
            fleet.rng = rng
            shape = (config.steps, fleet.count)
            rows = np.zeros((*shape, widest, len(FEATURES)), np.float32)
            mask = np.zeros((*shape, widest), bool)
            job, action, taught = (np.zeros(shape, np.int64) for _ in range(3))
            log_probability, value, reward = (np.zeros(shape, np.float32) for _ in range(3))
            ended = np.zeros(shape, bool)
            for t in range(config.steps):
                own = fleet.mask.shape[1]
                rows[t, :, :own], mask[t, :, :own] = fleet.rows, fleet.mask
                job[t] = fleet.model + first
                chosen, log_chosen, value[t] = self._act(fleet, job[t], embedding, rng)
                taught[t] = fleet.rule_rows(rules) if imitating else chosen
                action[t] = taught[t]
                log_probability[t] = log_chosen
                accepted, ended[t] = fleet.act(action[t])
                reward[t] = np.where(accepted, ACCEPTED, BLOCKED)
            _, _, last = self._act(fleet, fleet.model + first, embedding, rng)
            advantage = advantages(reward, value, last, ended, DISCOUNT, config.trace)
            returns.append((advantage + value).ravel())
            errors.append(advantage.ravel())
            scalars[f"rollout/blocking_rate/{fleet.world.cluster.name}"] = float(
                (reward == np.float32(BLOCKED)).mean()
            )
            for name, values in (
                ("rows", rows),
                ("mask", mask),
                ("job", job),
                ("action", action),
                ("log_probability", log_probability),
                ("advantage", advantage),
                ("value_target", advantage + value),
                ("taught", taught),
            ):
                parts.setdefault(name, []).append(values.reshape(-1, *values.shape[2:]))
        joined = {
            name: torch.from_numpy(np.concatenate(values)).to(self.device) for name, values in parts.items()
        }
        raw = joined["advantage"]
        joined["advantage"] = (raw - raw.mean()) / (raw.std() + 1e-8)
        spread = np.concatenate(returns).var()
        scalars["rollout/explained_variance"] = float(1.0 - np.concatenate(errors).var() / max(spread, 1e-12))
        return Batch(**joined), scalars

    def _act(
        self, fleet: Fleet, job: NDArray[np.int64], embedding: Tensor, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Draws of the policy for the decisions at hand, their log-probabilities, and the values."""
        rows, mask = (torch.from_numpy(array).to(self.device) for array in (fleet.rows, fleet.mask))
        log_all, value = self.policy(rows, mask, embedding[torch.from_numpy(job).to(self.device)])
        scores = log_all.cpu().numpy()
        # The largest of the log-probabilities with Gumbel noise is a draw; what is masked is at minus infinity.
        chosen = np.argmax(scores + rng.gumbel(size=scores.shape), 1)
        return chosen, scores[np.arange(len(chosen)), chosen], value.cpu().numpy()

    def validate(self) -> dict[str, float]:
        """Blocking rates of the averaged policy on arrivals of their own; keeps the best weights seen."""
        policy = copy.deepcopy(self.average).cpu()
        result: dict[str, float] = {}
        for world in self.worlds:
            weights = weights_of(policy, join_jobs(world.models))
            for name in DISTRIBUTIONS:
                rates = []
                for seed in range(self.config.validation_episodes):
                    rng = generator(VALIDATION, name, seed)
                    arrivals = draw_arrivals(len(world.models), beta_distribution(name), rng, world.time_unit)
                    rates.append(metrics(world, arrivals, run_policy(world, arrivals, weights)).blocking_rate)
                key = f"validation/{world.cluster.name}_{'_'.join(world.model_names[:1])}/{name}"
                result[key] = float(np.mean(rates))
        score = float(np.mean(list(result.values())))
        if score < self.best:
            self.best = score
            self.best_weights = copy.deepcopy(self.average.state_dict())
        return {"validation/blocking_rate": score, **result}

    def best_policy(self) -> PartitionPolicy:
        """The policy of the best validation so far, or the running average before the first one."""
        policy = copy.deepcopy(self.average)
        if np.isfinite(self.best):
            policy.load_state_dict(self.best_weights)
        return policy.eval()

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Everything that going on needs, as tensors and JSON."""
        parts = {
            "policy": self.policy.state_dict(),
            "average": self.average.state_dict(),
            "best": self.best_weights,
        } | {
            f"fleet{i}": {key: torch.from_numpy(np.ascontiguousarray(a)) for key, a in fleet.state().items()}
            for i, fleet in enumerate(self.fleets)
        }
        counters = [self.iteration, self.elapsed, self.steps, self.best]
        state = TrainingState(parts, self.optimizer.state_dict()["state"], counters)
        save_state(folder, state, asdict(self.config))

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Go on from ``save``. Raises InputError where there is nothing to go on from."""
        saved = load_state(folder, asdict(self.config))
        try:
            self.policy.load_state_dict(dict(saved.parts["policy"]))
            self.average.load_state_dict(dict(saved.parts["average"]))
            self.best_weights = dict(saved.parts["best"])
            state = self.optimizer.state_dict()
            state["state"] = saved.optimizer
            self.optimizer.load_state_dict(state)
            for i, fleet in enumerate(self.fleets):
                fleet.restore({key: value.numpy() for key, value in saved.parts[f"fleet{i}"].items()})
            self.iteration, self.elapsed = int(saved.counters[0]), saved.counters[1]
            self.steps, self.best = int(saved.counters[2]), saved.counters[3]
        except Exception as error:
            raise not_resumable(folder, error) from None
