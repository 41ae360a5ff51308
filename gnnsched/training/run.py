"""What training runs share: counters, the running average, the best policy so far, saving and going on."""

import copy
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Generic, Protocol

import numpy as np
import torch
from torch import Tensor

from gnnsched.models.policy import Module, on_device
from gnnsched.topology.errors import InputError
from gnnsched.training.state import TrainingState, load_state, not_resumable, save_state


class RunSettings(Protocol):
    """Settings of any run: ``iterations`` or ``minutes`` end it, whichever comes first; one of them is needed."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seed(self) -> int: ...
    @property
    def iterations(self) -> int | None: ...
    @property
    def minutes(self) -> float | None: ...
    @property
    def averaging(self) -> float: ...
    @property
    def validation_every(self) -> int: ...


class TrainingRun(ABC, Generic[Module]):
    """Holds policy, its running average, optimizer and counters; ``run`` goes on until the configured end.

    Every random draw of a subclass depends on (seed, iteration) alone, so a run that was saved and loaded goes on
    exactly.
    """

    optimizer: torch.optim.Optimizer

    def __init__(self, config: RunSettings, make: Callable[[], Module], device: str) -> None:
        """``make``: the untrained policy, made when torch has been seeded. Raises InputError without an end."""
        if config.iterations is None and config.minutes is None:
            raise InputError("training: no end given; set minutes or iterations")
        torch.manual_seed(config.seed)
        self.settings = config
        self.device = device
        self.policy = on_device(make(), device)
        self.average = copy.deepcopy(self.policy)
        self.iteration = 0
        self.elapsed = 0.0
        self.steps = 0
        self.best = float("inf")
        self.best_weights = copy.deepcopy(self.average.state_dict())

    @abstractmethod
    def update(self) -> dict[str, float]:
        """One iteration; returns its scalars."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Measure the running average, ``consider`` it, and return the figures."""

    def kept_state(self) -> dict[str, dict[str, Tensor]]:
        """What else a subclass needs to go on."""
        return {}

    def restore(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from ``kept_state``."""

    @property
    def done_share(self) -> float:
        """Part of the run that is over, 0 to 1."""
        shares = [0.0]
        if self.settings.iterations is not None:
            shares.append(self.iteration / max(1, self.settings.iterations))
        if self.settings.minutes is not None:
            shares.append(self.elapsed / (60.0 * self.settings.minutes))
        return min(1.0, max(shares))

    def run(self) -> Iterator[dict[str, float]]:
        """Train to the configured end; yields each iteration's scalars."""
        while self.done_share < 1.0:
            begin = time.monotonic()
            scalars = self.update()
            if self.iteration % self.settings.validation_every == 0:
                scalars |= self.validate()
            self.elapsed += time.monotonic() - begin
            scalars["time/steps_per_second"] = self.steps / max(self.elapsed, 1e-9)
            yield scalars

    @torch.no_grad()
    def follow(self) -> None:
        """Move the running average towards the policy, the faster the younger the run is."""
        part = 1.0 - min(self.settings.averaging, (1.0 + self.iteration) / (10.0 + self.iteration))
        for slow, fast in zip(self.average.parameters(), self.policy.parameters()):
            slow.lerp_(fast, part)

    def consider(self, score: float) -> None:
        """Keep the running average if ``score``, the smaller the better, is the best so far."""
        if score < self.best:
            self.best = score
            self.best_weights = copy.deepcopy(self.average.state_dict())

    def best_policy(self) -> Module:
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
            **self.kept_state(),
        }
        counters = [self.iteration, self.elapsed, self.steps, self.best]
        state = TrainingState(parts, self.optimizer.state_dict()["state"], counters)
        save_state(folder, state, asdict(self.settings))

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Go on from ``save``. Raises InputError where there is nothing to go on from."""
        saved = load_state(folder, asdict(self.settings))
        try:
            self.policy.load_state_dict(dict(saved.parts["policy"]))
            self.average.load_state_dict(dict(saved.parts["average"]))
            self.best_weights = dict(saved.parts["best"])
            state = self.optimizer.state_dict()
            state["state"] = saved.optimizer
            self.optimizer.load_state_dict(state)
            self.restore(saved.parts)
            self.iteration, self.elapsed = int(saved.counters[0]), saved.counters[1]
            self.steps, self.best = int(saved.counters[2]), saved.counters[3]
        except Exception as error:
            raise not_resumable(folder, error) from None
