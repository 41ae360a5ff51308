"""How the samples of a learned scorer differ: which choices are left to it, how sharply it draws, which trees guide it.

A plan draws more sharply than training, which explores. Leaving paths idle by choice helps on skewed networks and
costs a little on uniform ones; the decision window gains a per cent or two on skewed networks, and elsewhere costs its
own length at each decision.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import GUIDE, Decoding, Episode, Instance
from gnnsched.collective.decode.presets import TREES_AUGMENTED, tree_scores
from gnnsched.collective.decode.shapes import CHAIN, CHAIN_BY_ID

# Samples go round this many different tree packings: they are guides, and another one may guide better.
PACKINGS = 16
# Trees of known shapes are augmented up to so many transfers; beyond, where all send to all at once, it takes minutes.
MOST_AUGMENTED = 5_000


@dataclass(frozen=True)
class SampleKind:
    """``sharpness``: of the draws. ``near_trees``: chunks keep near their packed trees. ``idle``: paths may be left
    idle by choice. ``window``: paths wait for what is about to become free. ``shape``: name of the ``Shape`` that is
    followed instead, without drawing: what a chain reaches, no luck is needed for.
    """

    sharpness: float = 3.0
    near_trees: bool = False
    idle: bool = True
    window: bool = True
    shape: str | None = None

    def decoding(self, usual: Decoding) -> Decoding:
        """``usual`` with what this kind changes."""
        return replace(
            usual,
            sharpness=self.sharpness,
            allow_none=self.idle,
            guide=GUIDE if self.near_trees else usual.guide,
            window=usual.window if self.window else 0.0,
        )


_FREE = SampleKind()
_SHARP = SampleKind(sharpness=9.0)
_BUSY = SampleKind(idle=False)
_NEAR = SampleKind(near_trees=True)
_NEAR_SHARP = SampleKind(sharpness=9.0, near_trees=True, window=False)
_NEAR_AT_ONCE = SampleKind(near_trees=True, window=False)
# In turn; the first is that of a plan of one sample.
LEARNED_SAMPLES = (
    *(_FREE, SampleKind(shape=CHAIN), _BUSY, _NEAR, _SHARP, _NEAR_AT_ONCE, _FREE, _NEAR_SHARP),
    *(_FREE, SampleKind(shape=CHAIN_BY_ID), _BUSY, _NEAR_AT_ONCE, _SHARP, _NEAR, _FREE, _NEAR_SHARP),
)


def kind_of(sample: int) -> SampleKind:
    """The kind of a learned scorer's sample number ``sample``."""
    return LEARNED_SAMPLES[sample % len(LEARNED_SAMPLES)]


@dataclass(frozen=True)
class Sampler:
    """How the samples of one scorer are drawn.

    ``score``: scores of an instance. ``learned``: its samples differ in kind; else the first takes the best choice
    each time and the others break its ties at random. ``packings``: how many tree packings the samples go round.
    ``shape``: name of the ``Shape`` that all samples follow instead of packings. ``blind``: as of ``Instance``.
    ``kinds``: those of a learned scorer's samples, in turn.
    """

    score: Callable[[Instance], Scores]
    decoding: Decoding
    learned: bool = False
    packings: int = PACKINGS
    shape: str | None = None
    blind: bool = False
    kinds: tuple[SampleKind, ...] = LEARNED_SAMPLES

    def without_shapes(self) -> "Sampler":
        """The same for what is no whole all-gather from equal shares of roots, which known shapes are made for."""
        return replace(self, kinds=tuple(kind for kind in self.kinds if kind.shape is None))

    def _kind(self, sample: int) -> SampleKind:
        return self.kinds[sample % len(self.kinds)]

    def trees(self, sample: int) -> int | str:
        """What guides the sample: the number of a tree packing or the name of a shape."""
        shape = self._kind(sample).shape if self.learned else self.shape
        return sample % self.packings if shape is None else shape

    def scores(self, instance: Instance, sample: int) -> Scores:
        """Scores of the sample's instance."""
        return tree_scores(instance) if isinstance(self.trees(sample), str) else self.score(instance)

    def decode(
        self,
        instance: Instance,
        scores: Scores,
        sample: int,
        seed: int,
        stop: NDArray[np.bool_] | None = None,
    ) -> Episode:
        """The sample, of an instance of its ``trees`` under that instance's ``scores``. Raises Stopped by ``stop``."""
        if isinstance(self.trees(sample), str):
            transfers = int(instance.participants.sum()) * len(instance.roots)
            # A shape's order leaves no port idle by itself: who waits for an arrival falls out of step.
            own = replace(TREES_AUGMENTED, window=0.0, augment=transfers <= MOST_AUGMENTED)
        else:
            own = self._kind(sample).decoding(self.decoding) if self.learned else self.decoding
        if not self.learned:
            own = replace(own, sample=own.sample or sample > 0)
        return instance.decode(scores, own, np.random.default_rng([seed, sample]), stop=stop)

    def singles(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Those of the samples' ``values`` whose kind a plan of one sample has."""
        if not self.learned:
            return values
        return values[[self._kind(sample) == self.kinds[0] for sample in range(len(values))]]
