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
from gnnsched.collective.decode.decoder import GUIDE, Decoding, Instance
from gnnsched.collective.decode.presets import TREES_AUGMENTED, tree_scores
from gnnsched.collective.decode.shapes import CHAIN, CHAIN_BY_ID

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
    *(_FREE, _BUSY, _NEAR, _SHARP, _NEAR_AT_ONCE, _FREE, _NEAR_SHARP, SampleKind(shape=CHAIN)),
    *(_FREE, _BUSY, _NEAR_AT_ONCE, _SHARP, _NEAR, _FREE, _NEAR_SHARP, SampleKind(shape=CHAIN_BY_ID)),
)


def kind_of(sample: int) -> SampleKind:
    """The kind of a learned scorer's sample number ``sample``."""
    return LEARNED_SAMPLES[sample % len(LEARNED_SAMPLES)]


def as_only_sample(count: int) -> NDArray[np.bool_]:
    """Which of ``count`` samples are of the kind that a plan of one sample has, (count,)."""
    return np.array([kind_of(sample) == LEARNED_SAMPLES[0] for sample in range(count)], bool)


def shape_decoding(transfers: int) -> Decoding:
    """How the trees of a shape with so many transfers are followed."""
    # A shape's order leaves no port idle by itself: who waits for an arrival falls out of step.
    return replace(TREES_AUGMENTED, window=0.0, augment=transfers <= MOST_AUGMENTED)


# What scores the trees of a shape.
shape_scores: Callable[[Instance], Scores] = tree_scores
