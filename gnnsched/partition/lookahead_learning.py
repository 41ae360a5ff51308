"""Learning what lookahead finds: decisions weighed by it, and the loss that moves the policy there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnsched.partition.compiled_policy import best_row, weights_of
from gnnsched.partition.fleet import Fleet
from gnnsched.partition.lookahead import Lookahead
from gnnsched.partition.network import JobBatch, PartitionPolicy, join_jobs


@dataclass(frozen=True, eq=False)
class Weighed:
    """Decisions that lookahead has weighed, (n, ...); ``worth`` (n, D + 1): of each choice, -inf where illegal."""

    rows: Tensor
    mask: Tensor
    job: Tensor
    worth: Tensor

    @staticmethod
    def joined(parts: "Sequence[Weighed]") -> "Weighed":
        """All decisions of ``parts``."""
        names = ("rows", "mask", "job", "worth")
        return Weighed(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def weigh_decisions(
    policy: PartitionPolicy,
    fleets: Sequence[Fleet],
    settings: Lookahead,
    steps: int,
    rng: np.random.Generator,
    device: str,
) -> tuple[Weighed, float]:
    """Go on with all episodes for some ``steps``; every other one follows lookahead, the others the policy.

    Decisions without a choice are left out. Also returns the part of the choices that lookahead changes. ``policy``
    must be on the CPU; the result goes to ``device``.
    """
    kept: dict[str, list[NDArray[np.generic]]] = {}
    changed = []
    widest = max(fleet.mask.shape[1] for fleet in fleets)
    first = 0
    for fleet in fleets:
        fleet.rng = rng
        weights = weights_of(policy, join_jobs(fleet.world.models))
        for _ in range(steps):
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
        first += len(fleet.world.models)
    joined = {name: torch.from_numpy(np.concatenate(values)).to(device) for name, values in kept.items()}
    return Weighed(**joined), float(np.mean(changed))


def losses(
    policy: PartitionPolicy, jobs: JobBatch, weighed: Weighed, part: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Cross entropy to the softmax of the choices' worth over ``temperature``, and the value's squared error.

    The value is held against the worth of the best choice.
    """
    mask, worth = weighed.mask[part], weighed.worth[part]
    log_all, value = policy(weighed.rows[part], mask, policy.embed(jobs)[weighed.job[part]])
    target = (worth / temperature).softmax(1)
    choice = -(target * log_all.masked_fill(~mask, 0.0)).sum(1).mean()
    return choice, (value - worth.amax(1)).square().mean()
