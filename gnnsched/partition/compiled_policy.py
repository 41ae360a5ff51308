"""The policy in compiled code: whole episodes without Python per decision."""

from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from gnnsched.partition.episode import Outcome
from gnnsched.partition.features import FEATURES, no_choices, observe, see
from gnnsched.partition.kernel import take
from gnnsched.partition.network import JobBatch, PartitionPolicy
from gnnsched.partition.workload import Arrivals
from gnnsched.partition.world import Bools, Floats, Longs, Tables, World

Singles = NDArray[np.float32]


class Weights(NamedTuple):
    """A policy as arrays; what depends on the job's graph alone is in the bias of each model (M, width)."""

    job: Singles
    first: Singles
    second: Singles
    second_bias: Singles
    score: Singles
    value_job: Singles
    value_first: Singles
    value_second: Singles
    value_second_bias: Singles
    value: Singles
    value_bias: float


@torch.no_grad()
def weights_of(policy: PartitionPolicy, jobs: JobBatch) -> Weights:
    """The policy's weights for the models of ``jobs``."""
    embedding = policy.embed(jobs)
    count = len(FEATURES)

    def array(tensor: torch.Tensor) -> Singles:
        return np.ascontiguousarray(tensor.detach().cpu().numpy(), np.float32)

    first, value = policy.first, policy.value_first
    return Weights(
        job=array(embedding @ first.weight[:, count:].T + first.bias),
        first=array(first.weight[:, :count].T),
        second=array(policy.second.weight.T),
        second_bias=array(policy.second.bias),
        score=array(policy.score.weight[0]),
        value_job=array(embedding @ value.weight[:, 2 * count :].T + value.bias),
        value_first=array(value.weight[:, : 2 * count].T),
        value_second=array(policy.value_second.weight.T),
        value_second_bias=array(policy.value_second.bias),
        value=array(policy.value.weight[0]),
        value_bias=float(policy.value.bias),
    )


@njit(cache=True, fastmath=True)
def _silu(values: Singles) -> None:
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            values[i, k] = values[i, k] / (np.float32(1.0) + np.exp(-values[i, k]))


@njit(cache=True)
def best_row(weights: Weights, model: int, rows: Singles, mask: Bools) -> int:
    """The legal row of the highest score."""
    legal = np.flatnonzero(mask)
    if len(legal) == 1:
        return legal[0]
    packed = np.empty((len(legal), rows.shape[1]), np.float32)
    for i in range(len(legal)):
        packed[i] = rows[legal[i]]
    hidden = np.dot(packed, weights.first) + weights.job[model]
    _silu(hidden)
    hidden = np.dot(hidden, weights.second) + weights.second_bias
    _silu(hidden)
    return legal[np.argmax(np.dot(hidden, weights.score))]


@njit(cache=True)
def best_rows(weights: Weights, model: Longs, rows: Singles, mask: Bools) -> Longs:
    """``best_row`` of many episodes: all arrays have one more axis in front."""
    best = np.empty(len(model), np.int64)
    for e in range(len(model)):
        best[e] = best_row(weights, model[e], rows[e], mask[e])
    return best


@njit(cache=True)
def value_of(weights: Weights, model: int, rows: Singles, mask: Bools) -> float:
    """The policy's value of the decision at hand."""
    count = rows.shape[1]
    seen = np.zeros((1, 2 * count), np.float32)
    seen[0, :count] = rows[0]
    legal = 0
    for row in range(len(mask)):
        if mask[row]:
            seen[0, count:] += rows[row]
            legal += 1
    seen[0, count:] /= np.float32(legal)
    hidden = np.dot(seen, weights.value_first) + weights.value_job[model]
    _silu(hidden)
    hidden = np.dot(hidden, weights.value_second) + weights.value_second_bias
    _silu(hidden)
    return np.dot(hidden, weights.value)[0] + weights.value_bias


@njit(cache=True)
def _run(
    tables: Tables,
    weights: Weights,
    model: Longs,
    beta: Floats,
    interarrival: float,
    horizon: float,
    outcome: Outcome,
) -> None:
    release = np.zeros(tables.workers)
    seen = np.zeros(4)
    choices = no_choices(tables)
    for i in range(len(model)):
        now = i * interarrival
        see(seen, beta[i], tables.sequential[model[i]])
        observe(tables, release, now, model[i], beta[i], seen, interarrival, horizon, choices)
        row = best_row(weights, model[i], choices.rows, choices.mask)
        outcome.degree[i] = 0 if row == 0 else tables.degree[row - 1]
        outcome.lasting[i], outcome.holding[i] = take(
            tables, release, now, model[i], beta[i], row, choices.held
        )


def run_policy(world: World, arrivals: Arrivals, weights: Weights) -> Outcome:
    """One episode in which the policy takes its best choice each time."""
    outcome = Outcome.empty(len(arrivals))
    _run(
        world.tables,
        weights,
        arrivals.model,
        arrivals.beta,
        arrivals.interarrival,
        arrivals.horizon,
        outcome,
    )
    return outcome
