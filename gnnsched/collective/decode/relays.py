"""Relays that took a chunk and sent it to nobody: such transfers are no part of a plan."""

import numpy as np
from numpy.typing import NDArray


def worth_keeping(
    chunk: NDArray[np.int32],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    needed: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Which transfers of a broadcast plan, given as columns (T,), serve somebody in the end; bool (T,).

    ``needed`` is indexed by ``target`` and ``chunk``. In the mirrored reduce phase the others would come from
    relays that have nothing to send.
    """
    kept = np.ones(len(chunk), bool)
    servers = len(needed)
    sent = chunk.astype(np.int64) * servers + source
    received = chunk.astype(np.int64) * servers + target
    while True:
        idle = kept & ~needed[target, chunk] & ~np.isin(received, sent[kept])
        if not idle.any():
            return kept
        kept &= ~idle
