"""Policies over distributions and seeds, the same arrivals for all of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnsched.partition.baselines import baseline_names, run_baseline
from gnnsched.partition.compiled_policy import Weights, run_policy, weights_of
from gnnsched.partition.episode import Metrics, Outcome, metrics
from gnnsched.partition.lookahead import run_lookahead
from gnnsched.partition.network import PartitionPolicy, join_jobs
from gnnsched.partition.seeds import EVALUATION, LOOKAHEAD, generator
from gnnsched.partition.tuning import tune_rule
from gnnsched.partition.workload import Arrivals, beta_distribution, draw_arrivals
from gnnsched.partition.world import World

LEARNED, LOOKING_AHEAD = "learned", "learned_lookahead"


@dataclass(frozen=True)
class Row:
    """Figures of one episode of a policy; see ``episode.Metrics``."""

    policy: str
    distribution: str
    seed: int
    metrics: Metrics

    def as_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "distribution": self.distribution,
            "seed": self.seed,
            **asdict(self.metrics),
        }


def policy_names(world: World) -> list[str]:
    """All policies but the one that looks ahead, which takes a thousand times as long."""
    return [LEARNED, *baseline_names(world), "rule"]


class Runner:
    """Runs policies by name on one world; what a policy needs, weights or a tuned rule, is made when first asked for.

    ``policy``: the network; needed by the policies that are learned.
    """

    def __init__(
        self,
        world: World,
        policy: PartitionPolicy | None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.world = world
        self._policy = policy
        self._progress = progress
        self._weights: Weights | None = None
        self._rules: dict[str, NDArray[np.int64]] = {}

    def arrivals(self, distribution: str, seed: int) -> Arrivals:
        """The held-out episode ``seed`` of a distribution, the same for every policy."""
        return draw_arrivals(
            len(self.world.models),
            beta_distribution(distribution),
            generator(EVALUATION, distribution, seed),
            self.world.time_unit,
        )

    def run(self, name: str, distribution: str, seed: int) -> tuple[Arrivals, Outcome]:
        """One episode. Raises InputError for a policy that is not known."""
        arrivals = self.arrivals(distribution, seed)
        chance = generator(LOOKAHEAD, distribution, seed)
        if name == LEARNED:
            return arrivals, run_policy(self.world, arrivals, self._network())
        if name == LOOKING_AHEAD:
            betas = beta_distribution(distribution)
            return arrivals, run_lookahead(self.world, arrivals, self._network(), betas, chance)
        if name == "rule" and distribution not in self._rules:
            self._rules[distribution] = tune_rule(
                self.world, beta_distribution(distribution), distribution, self._progress
            )
        return arrivals, run_baseline(self.world, arrivals, name, chance, self._rules.get(distribution))

    def _network(self) -> Weights:
        if self._weights is None:
            if self._policy is None:
                raise ValueError("no network given")
            self._weights = weights_of(self._policy, join_jobs(self.world.jobs))
        return self._weights


def evaluate(runner: Runner, names: Sequence[str], distributions: Sequence[str], seeds: int) -> Iterator[Row]:
    """A row per policy, distribution and seed (0 ... ``seeds`` - 1)."""
    for distribution in distributions:
        for name in names:
            for seed in range(seeds):
                arrivals, outcome = runner.run(name, distribution, seed)
                yield Row(name, distribution, seed, metrics(runner.world, arrivals, outcome))
