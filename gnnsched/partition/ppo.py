"""Proximal policy optimisation of the partitioning policy (Schulman et al., 2017): decisions, advantages, losses."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnsched.partition.features import FEATURES
from gnnsched.partition.fleet import Fleet
from gnnsched.partition.network import ACCEPTED, BLOCKED, DISCOUNT, JobBatch, PartitionPolicy


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


def balanced(advantage: NDArray[np.float32], group: NDArray[np.int64]) -> NDArray[np.float32]:
    """Advantages less their group's mean, over its deviation: where few jobs are blocked each counts for as much as
    where most are.
    """
    result = np.zeros_like(advantage)
    for own in (group == number for number in np.unique(group)):
        result[own] = (advantage[own] - advantage[own].mean()) / (advantage[own].std() + 1e-8)
    return result


@torch.no_grad()
def collect(
    policy: PartitionPolicy,
    jobs: JobBatch,
    fleets: Sequence[Fleet],
    rules: Sequence[NDArray[np.int64]] | None,
    steps: int,
    trace: float,
    rng: np.random.Generator,
) -> tuple[Batch, dict[str, float]]:
    """Go on with all episodes for some ``steps``; where ``rules`` are given, they decide, else draws of the policy.

    ``jobs``: the models of all fleets, one fleet's after the other's.
    """
    embedding = policy.embed(jobs)
    widest = max(fleet.mask.shape[1] for fleet in fleets)
    parts: dict[str, list[NDArray[np.generic]]] = {}
    scalars: dict[str, float] = {}
    returns, errors = [], []
    first = 0
    for number, fleet in enumerate(fleets):
        fleet.rng = rng
        shape = (steps, fleet.count)
        rows = np.zeros((*shape, widest, len(FEATURES)), np.float32)
        mask = np.zeros((*shape, widest), bool)
        job, action = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        log_probability, value, reward = (np.zeros(shape, np.float32) for _ in range(3))
        ended = np.zeros(shape, bool)
        distribution = np.zeros(shape, np.int64)
        for t in range(steps):
            own = fleet.mask.shape[1]
            rows[t, :, :own], mask[t, :, :own] = fleet.rows, fleet.mask
            job[t] = fleet.model + first
            distribution[t] = fleet.distribution
            action[t], scores, value[t] = _draw(policy, fleet, job[t], embedding, rng)
            if rules is not None:
                action[t] = fleet.rule_rows(rules[number])
            log_probability[t] = scores[np.arange(fleet.count), action[t]]
            accepted, ended[t] = fleet.act(action[t])
            reward[t] = np.where(accepted, ACCEPTED, BLOCKED)
        _, _, last = _draw(policy, fleet, fleet.model + first, embedding, rng)
        advantage = advantages(reward, value, last, ended, DISCOUNT, trace)
        returns.append((advantage + value).ravel())
        errors.append(advantage.ravel())
        scalars[f"rollout/blocking_rate/{number}_{fleet.world.label}"] = float(
            (reward == np.float32(BLOCKED)).mean()
        )
        for name, values in (
            ("rows", rows),
            ("mask", mask),
            ("job", job),
            ("action", action),
            ("log_probability", log_probability),
            ("advantage", balanced(advantage, distribution)),
            ("value_target", advantage + value),
        ):
            parts.setdefault(name, []).append(values.reshape(-1, *values.shape[2:]))
        first += len(fleet.world.models)
    device = jobs.nodes.device
    joined = {name: torch.from_numpy(np.concatenate(values)).to(device) for name, values in parts.items()}
    spread = np.concatenate(returns).var()
    scalars["rollout/explained_variance"] = float(1.0 - np.concatenate(errors).var() / max(spread, 1e-12))
    return Batch(**joined), scalars


def _draw(
    policy: PartitionPolicy,
    fleet: Fleet,
    job: NDArray[np.int64],
    embedding: Tensor,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Draws of the policy for the decisions at hand, all log-probabilities, and the values."""
    rows, mask = (torch.from_numpy(array).to(embedding.device) for array in (fleet.rows, fleet.mask))
    log_all, value = policy(rows, mask, embedding[torch.from_numpy(job).to(embedding.device)])
    scores = log_all.cpu().numpy()
    # The largest of the log-probabilities with Gumbel noise is a draw; what is masked is at minus infinity.
    chosen = np.argmax(scores + rng.gumbel(size=scores.shape), 1)
    return chosen, scores, value.cpu().numpy()


@dataclass(frozen=True)
class Losses:
    """Of a minibatch: the clipped surrogate's, of imitation (minus the mean log-probability of what was done), the
    value's, and the mean entropy; then diagnostics.
    """

    surrogate: Tensor
    imitation: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: float
    clipfrac: float


def losses(policy: PartitionPolicy, jobs: JobBatch, batch: Batch, part: Tensor, clip: float) -> Losses:
    """Losses of the decisions ``part`` (indices) of ``batch``."""
    mask = batch.mask[part]
    log_all, value = policy(batch.rows[part], mask, policy.embed(jobs)[batch.job[part]])
    log_new = log_all.gather(1, batch.action[part].unsqueeze(1)).squeeze(1)
    log_ratio = log_new - batch.log_probability[part]
    ratio = log_ratio.exp()
    advantage = batch.advantage[part]
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return Losses(
        surrogate=-torch.minimum(ratio * advantage, clipped * advantage).mean(),
        imitation=-log_new.mean(),
        value=(value - batch.value_target[part]).square().mean(),
        entropy=-(log_all.exp() * log_all.masked_fill(~mask, 0.0)).sum(1).mean(),
        approx_kl=((ratio - 1.0) - log_ratio).mean().item(),
        clipfrac=((ratio - 1.0).abs() > clip).float().mean().item(),
    )
