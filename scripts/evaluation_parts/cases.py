"""Broadcast halves of held-out networks, and samples of any scorer on them.

In-flight flows act on the broadcast half alone, so that all kinds of cases are measured there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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
from gnnsched.collective.decode.shapes import Shape
from gnnsched.collective.flows_bound import all_gather_bound_under
from gnnsched.envs.flows import draw_flows
from gnnsched.models.policy import Policy
from gnnsched.planning.samples import Sampler
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
    """A sampler and its name in the tables."""

    label: str
    sampler: Sampler


RULES = (
    Scorer("greedy_augmented", Sampler(greedy_scores, GREEDY_AUGMENTED, packings=1)),
    Scorer("trees_augmented", Sampler(tree_scores, TREES_AUGMENTED)),
)
LINEAR_SCORER = Scorer("linear", Sampler(linear_scores, LINEAR, learned=True))


def policy_scorer(label: str, policy: Policy, decoding: Decoding | None = None, kinds: bool = True) -> Scorer:
    """``kinds``: the samples differ in kind, as a plan's do."""
    return Scorer(label, Sampler(policy.scores, decoding or Decoding(), learned=kinds))


class Case:
    """One all-gather: a network, a kind of ``KINDS``, a chunk count.

    ``bound_s``: the all-gather bound of the message beside the flows.
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
        self._instances: dict[int | str, Instance] = {}

    def instance(self, trees: int | str) -> Instance:
        """The case with its packing number ``trees`` or the shape of that name, made once for all scorers."""
        if trees not in self._instances:
            count = self.chunks_per_server
            shape = Shape(trees, self.topology, count) if isinstance(trees, str) else None
            packing = 0 if isinstance(trees, str) else trees
            self._instances[trees] = Instance(
                self.topology, self.message_bytes, count, packing, self._paths, self._flows, shape=shape
            )
        return self._instances[trees]

    def sample(self, scorer: Scorer, samples: int) -> NDArray[np.float64]:
        """Ratios to the bound of ``samples`` samples, drawn as ``planning.schedule_with`` draws them."""
        sampler = scorer.sampler
        scores: dict[int | str, Scores] = {}
        ratios = np.empty(samples)
        for sample in range(samples):
            trees = sampler.trees(sample)
            instance = self.instance(trees)
            if trees not in scores:
                scores[trees] = sampler.scores(instance, sample)
            ratios[sample] = sampler.decode(instance, scores[trees], sample, 0).makespan / self.bound_s
        return ratios


def cases_of(topology: Topology, place: int) -> Iterator[Case]:
    """The cases of the held-out network number ``place``, one after another: three kinds at three chunk counts."""
    paths = candidate_paths(topology)
    bound = all_gather_bound(topology, MESSAGE_BYTES)
    for count in CHUNKS:
        for kind in KINDS:
            rng = np.random.default_rng([DRAW, place, count])
            message, flows, least = MESSAGE_BYTES, NO_FLOWS, bound
            if kind == "flows":
                flows = draw_flows(topology, paths, MOST_FLOWS, bound, rng)
                least = all_gather_bound_under(topology, message, flows)
            if kind == "small":
                message = 2.0 ** float(rng.choice(SMALL_EXPONENTS))
                least = bound * message / MESSAGE_BYTES
            yield Case(topology, kind, count, message, least, paths, flows)


def row_of(case: Case, scorer: Scorer, ratios: NDArray[np.float64]) -> dict[str, object]:
    return {
        "kind": case.kind,
        "chunks_per_server": case.chunks_per_server,
        "message_bytes": int(case.message_bytes),
        "sample_mean_ratio": float(scorer.sampler.singles(ratios).mean()),
        "best_ratio": float(ratios.min()),
    }
