"""Many episodes on one cluster at once, for training: observed, decided and carried out together."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import config
from numpy.typing import NDArray

from gnnsched.partition import kernel
from gnnsched.partition.compiled_policy import Weights
from gnnsched.partition.features import FEATURES, act_many, observe_many
from gnnsched.partition.lookahead import Lookahead, draw_futures, weigh_many
from gnnsched.partition.workload import ARRIVALS, DISTRIBUTIONS, Betas, beta_distribution, draw_arrivals
from gnnsched.partition.world import World


class Fleet:
    """``count`` episodes side by side; one that ends begins anew with a distribution of limits drawn at random.

    ``rng`` draws the episodes and may be exchanged. After construction and after ``act`` these describe the decisions
    at hand: ``rows`` (count, D + 1, features), ``mask`` (count, D + 1) and ``model`` (count,).
    """

    def __init__(self, world: World, count: int, rng: np.random.Generator) -> None:
        tables = world.tables
        self.world = world
        self.count = count
        self.rng = rng
        self._betas: list[Betas] = [beta_distribution(name) for name in DISTRIBUTIONS]
        self._models = np.zeros((count, ARRIVALS), np.int64)
        self._limits = np.zeros((count, ARRIVALS))
        self._release = np.zeros((count, tables.workers))
        self._seen = np.zeros((count, 4))
        self._accepted = np.zeros(count, bool)
        self._interarrival = self._horizon = 0.0
        self.distribution = np.zeros(count, np.int64)
        rows = len(tables.degree) + 1
        self.rows = np.zeros((count, rows, len(FEATURES)), np.float32)
        self.mask = np.zeros((count, rows), bool)
        for episode in range(count):
            self._begin(episode, episode % len(DISTRIBUTIONS))
        # Begun at any moment, so that no two are at the same one; the cluster is empty at first.
        self._at = rng.integers(ARRIVALS, size=count)
        self._observe()

    def _begin(self, episode: int, distribution: int) -> None:
        arrivals = draw_arrivals(
            len(self.world.models), self._betas[distribution], self.rng, self.world.time_unit
        )
        self._models[episode], self._limits[episode] = arrivals.model, arrivals.beta
        self._interarrival, self._horizon = arrivals.interarrival, arrivals.horizon
        self._release[episode] = 0.0
        self._seen[episode] = 0.0
        self.distribution[episode] = distribution

    def _observe(self) -> None:
        places = np.arange(self.count)
        self.model = self._models[places, self._at]
        self.beta = self._limits[places, self._at]
        self._seen += self._arrival()
        observe_many(
            self.world.tables,
            self._release,
            self._at,
            self.model,
            self.beta,
            self._seen,
            self._interarrival,
            self._horizon,
            self.rows,
            self.mask,
        )

    def act(self, row: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Carry out ``row`` (count,) of the choices; returns which jobs will be done in time and which episodes end."""
        act_many(
            self.world.tables,
            self._release,
            self._at,
            self.model,
            self.beta,
            row,
            self._interarrival,
            self._horizon,
            self._accepted,
        )
        self._at += 1
        ended = self._at >= ARRIVALS
        for episode in np.flatnonzero(ended):
            self._at[episode] = 0
            self._begin(int(episode), int(self.rng.integers(len(DISTRIBUTIONS))))
        self._observe()
        return self._accepted.copy(), ended

    def state(self) -> dict[str, NDArray[Any]]:
        """What ``restore`` needs to go on."""
        return {
            "models": self._models,
            "limits": self._limits,
            "release": self._release,
            # The arrival at hand is counted again when it is observed again.
            "seen": self._seen - self._arrival(),
            "at": self._at,
            "distribution": self.distribution,
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state``."""
        self._models[:], self._limits[:] = state["models"], state["limits"]
        self._release[:], self._seen[:] = state["release"], state["seen"]
        self._at[:], self.distribution[:] = state["at"], state["distribution"]
        self._observe()

    def _arrival(self) -> NDArray[np.float64]:
        sequential = self.world.tables.sequential[self.model]
        return np.stack((np.ones(self.count), self.beta, self.beta**2, sequential), 1)

    def judge(
        self, weights: Weights, lookahead: Lookahead, episodes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """What lookahead finds in ``episodes`` (n,), the policy of ``weights`` going on.

        Returns the best row (n,), and the worth of each (n, D + 1), 0 where it is not legal.
        """
        shape = (len(episodes), lookahead.futures, lookahead.arrivals + 1)
        model, beta = np.zeros(shape, np.int64), np.zeros(shape)
        for i, distribution in enumerate(self.distribution[episodes]):
            betas = self._betas[distribution]
            model[i], beta[i] = draw_futures(shape[1:], len(self.world.models), betas, self.rng)
        best, worth = np.zeros(len(episodes), np.int64), np.zeros((len(episodes), self.mask.shape[1]))

        def weigh_part(part: NDArray[np.int64]) -> None:
            own = episodes[part]
            best[part], worth[part] = weigh_many(
                self.world.tables,
                weights,
                self._release[own],
                self._seen[own],
                self._at[own],
                self.model[own],
                self.beta[own],
                self.mask[own],
                model[part],
                beta[part],
                self._interarrival,
                self._horizon,
                lookahead.batch,
                lookahead.drop,
            )

        # Episodes know nothing of each other: the result is the same with any number of threads. Numba itself would
        # start its own when asked for their number, and those slow torch down tenfold.
        threads: int = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # set while numba is imported
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(weigh_part, np.array_split(np.arange(len(episodes)), threads)))
        return best, worth

    def rule_rows(self, rules: Sequence[NDArray[np.int64]] | NDArray[np.int64]) -> NDArray[np.int64]:
        """What the baseline ``rule`` would choose; ``rules``: its parameters per distribution."""
        rows = np.zeros(self.count, np.int64)
        held = np.zeros(self.world.tables.workers, bool)
        for e in range(self.count):
            rows[e] = 1 + kernel.decide(
                self.world.tables,
                kernel.RULE,
                rules[self.distribution[e]],
                self._release[e],
                self._at[e] * self._interarrival,
                self.model[e],
                self.beta[e],
                0.0,
                held,
            )
        return rows
