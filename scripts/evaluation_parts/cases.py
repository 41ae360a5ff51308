"""Broadcast halves of held-out networks, and samples of any scorer on them.

In-flight flows act on the broadcast half alone, so that all kinds of cases are measured there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Decoding, Instance
from gnnsched.collective.decode.paths import Paths, candidate_paths
from gnnsched.collective.decode.presets import (
    GREEDY_AUGMENTED,
    LINEAR,
    TREES_AUGMENTED,
    greedy_scores,
    linear_scores,
    tree_scores,
)
from gnnsched.collective.decode.problem import NO_FLOWS, Flows
from gnnsched.envs.flows import draw_flows
from gnnsched.models.policy import Policy
from gnnsched.planning.schedulers import LEARNED_SAMPLES, PACKINGS, SINGLE_SAMPLES
from gnnsched.topology import Topology

KINDS = ("plain", "flows", "small")
CHUNKS = (1, 2, 4)
MESSAGE_BYTES = 2.0**30
# 64 KiB ... 16 MiB, as exponents of 2.
SMALL_EXPONENTS = (16, 18, 20, 22, 24)
MOST_FLOWS = 4
# What the cases' messages and flows are drawn from, beside the network's place.
DRAW = 5


@dataclass(frozen=True)
class Scorer:
    """``packings``: how many tree packings the samples go round. ``guided``: five in eight samples keep near them.
    ``ties``: the first sample takes the best choice each time, the others break its ties at random.
    """

    label: str
    score: Callable[[Instance], Scores]
    decoding: Decoding
    packings: int = PACKINGS
    guided: bool = False
    ties: bool = False


RULES = (
    Scorer("greedy_augmented", greedy_scores, GREEDY_AUGMENTED, packings=1, ties=True),
    Scorer("trees_augmented", tree_scores, TREES_AUGMENTED, ties=True),
)
LINEAR_SCORER = Scorer("linear", linear_scores, LINEAR, guided=True)


def policy_scorer(label: str, policy: Policy, decoding: Decoding | None = None) -> Scorer:
    return Scorer(label, policy.scores, decoding or Decoding(), guided=True)


class Case:
    """One all-gather: a network, a kind of ``KINDS``, a chunk count.

    ``bound_s``: the all-gather bound of the message, of the network without flows.
    """

    def __init__(
        self,
        topology: Topology,
        kind: str,
        chunks_per_server: int,
        message_bytes: float,
        bound_s: float,
        paths: Paths,
        flows: Flows,
    ) -> None:
        self.topology, self.kind, self.chunks_per_server = topology, kind, chunks_per_server
        self.message_bytes, self.bound_s = message_bytes, bound_s
        self._paths, self._flows = paths, flows
        self._instances: dict[int, Instance] = {}

    def instance(self, packing: int) -> Instance:
        """The case with its packing number ``packing``, made once for all scorers."""
        if packing not in self._instances:
            self._instances[packing] = Instance(
                self.topology, self.message_bytes, self.chunks_per_server, packing, self._paths, self._flows
            )
        return self._instances[packing]

    def sample(self, scorer: Scorer, samples: int) -> NDArray[np.float64]:
        """Ratios to the bound of ``samples`` samples, drawn as ``planning.schedule_with`` draws them."""
        scores: dict[int, Scores] = {}
        ratios = np.empty(samples)
        for sample in range(samples):
            packing = sample % scorer.packings
            instance = self.instance(packing)
            if packing not in scores:
                scores[packing] = scorer.score(instance)
            own = scorer.decoding
            if scorer.ties:
                own = replace(own, sample=sample > 0)
            if scorer.guided:
                own = replace(own, **LEARNED_SAMPLES[sample % len(LEARNED_SAMPLES)])
            episode = instance.decode(scores[packing], own, np.random.default_rng([0, sample]))
            ratios[sample] = episode.makespan / self.bound_s
        return ratios


def cases_of(topology: Topology, place: int) -> Iterator[Case]:
    """The cases of the held-out network number ``place``, one after another: three kinds at three chunk counts."""
    paths = candidate_paths(topology)
    bound = all_gather_bound(topology, MESSAGE_BYTES)
    for count in CHUNKS:
        for kind in KINDS:
            rng = np.random.default_rng([DRAW, place, count])
            message, flows = MESSAGE_BYTES, NO_FLOWS
            if kind == "flows":
                flows = draw_flows(topology, paths, MOST_FLOWS, bound, rng)
            if kind == "small":
                message = 2.0 ** float(rng.choice(SMALL_EXPONENTS))
            yield Case(topology, kind, count, message, bound * message / MESSAGE_BYTES, paths, flows)


def row_of(case: Case, scorer: Scorer, ratios: NDArray[np.float64]) -> dict[str, object]:
    kind = np.arange(len(ratios)) % len(LEARNED_SAMPLES)
    singles = ratios[np.isin(kind, SINGLE_SAMPLES)] if scorer.guided else ratios
    return {
        "kind": case.kind,
        "chunks_per_server": case.chunks_per_server,
        "message_bytes": int(case.message_bytes),
        "sample_mean_ratio": float(singles.mean()),
        "best_ratio": float(ratios.min()),
    }
