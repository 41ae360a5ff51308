"""Expert iteration: the policy learns what lookahead finds that has the policy go on (Anthony et al., 2017).

Trial and error hardly ever tells apart what a choice costs much later from what came of other choices; lookahead tries
all choices on the same futures, and so does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnsched.partition.compiled_policy import Weights, best_rows
from gnnsched.partition.features import FEATURES
from gnnsched.partition.fleet import Fleet
from gnnsched.partition.lookahead import Lookahead
from gnnsched.partition.network import JobBatch, PartitionPolicy


class Replay:
    """The last ``room`` judged decisions: what was seen (``rows``, ``mask``, ``job``), what lookahead found it
    ``worth`` (n, R) to do, the ``best`` row (n,), and the ``value`` (n,): the worth of the policy's own choice.
    """

    def __init__(self, room: int, rows: int, device: str) -> None:
        """``rows``: R, most rows of a decision."""
        self.room = room
        self.device = device
        self._parts = {
            "rows": torch.zeros((room, rows, len(FEATURES)), device=device),
            "mask": torch.zeros((room, rows), dtype=torch.bool, device=device),
            "job": torch.zeros(room, dtype=torch.int64, device=device),
            "best": torch.zeros(room, dtype=torch.int64, device=device),
            "worth": torch.zeros((room, rows), device=device),
            "value": torch.zeros(room, device=device),
        }
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self.room)

    def add(self, judged: Mapping[str, NDArray[np.generic]]) -> None:
        """Take in decisions of R rows or fewer; the oldest ones leave where there is no room."""
        count = len(judged["job"])
        place = (torch.arange(self._added, self._added + count) % self.room).to(self.device)
        for name, kept in self._parts.items():
            new = torch.from_numpy(judged[name]).to(kept)
            if new.ndim == 1:
                kept[place] = new
            else:
                kept[place] = 0
                kept[place, : new.shape[1]] = new
        self._added += count

    def draw(self, count: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """Decisions drawn at random."""
        chosen = torch.from_numpy(rng.integers(len(self), size=count)).to(self.device)
        return {name: part[chosen] for name, part in self._parts.items()}

    def state(self) -> dict[str, Tensor]:
        """What ``restore`` needs to go on."""
        return {name: part[: len(self)] for name, part in self._parts.items()} | {
            "added": torch.tensor(self._added)
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from ``state``."""
        self._added = int(state["added"])
        for name, part in self._parts.items():
            part[: len(self)] = state[name].to(self.device)


def judge(
    fleet: Fleet, weights: Weights, apart: int, count: int, lookahead: Lookahead
) -> dict[str, NDArray[np.generic]]:
    """Go on ``apart`` arrivals with the policy of ``weights``, then judge the decisions at hand in ``count`` episodes.

    Those without a choice are judged as well, for what a full cluster is worth. Returns what ``Replay`` keeps; ``job``
    counts the fleet's own models.
    """
    for _ in range(apart):
        fleet.act(best_rows(weights, fleet.model, fleet.rows, fleet.mask))
    episodes = fleet.rng.permutation(fleet.count)[:count]
    rows, mask, job = fleet.rows[episodes], fleet.mask[episodes], fleet.model[episodes]
    best, worth = fleet.judge(weights, lookahead, episodes)
    own = best_rows(weights, job, rows, mask)
    value = worth[np.arange(len(episodes)), own]
    return {"rows": rows, "mask": mask, "job": job, "best": best, "worth": worth, "value": value}


@dataclass(frozen=True)
class JudgedLosses:
    """``divergence``: mean Kullback-Leibler divergence of the policy from the softmax of worths over the temperature,
    less what the policy has no part in; ``value``: the value's mean squared error; then diagnostics:
    ``regret``, by how much the policy's draws are worth less than the best choices, and the mean entropy.
    """

    divergence: Tensor
    value: Tensor
    regret: float
    entropy: float


def losses(
    policy: PartitionPolicy, jobs: JobBatch, judged: Mapping[str, Tensor], temperature: float
) -> JudgedLosses:
    """Losses of ``judged`` decisions. The divergence is linear in the worths: their noise averages out."""
    mask = judged["mask"]
    log_all, value = policy(judged["rows"], mask, policy.embed(jobs)[judged["job"]])
    best = judged["worth"].gather(1, judged["best"].unsqueeze(1))
    behind = (best - judged["worth"]).masked_fill(~mask, 0.0)
    probability = log_all.exp()
    regret = (probability * behind).sum(1).mean()
    entropy = -(probability * log_all.masked_fill(~mask, 0.0)).sum(1).mean()
    return JudgedLosses(
        divergence=regret / temperature - entropy,
        value=(value - judged["value"]).square().mean(),
        regret=regret.item(),
        entropy=entropy.item(),
    )
