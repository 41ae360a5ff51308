"""The tape of an episode's choices, and the gradient of their log-probabilities with respect to the scores.

The gradient is that of the clipped surrogate of PPO (Schulman et al. 2017), for both levels apart, plus entropy
bonuses; torch only sees its sum over an episode. The order in which idle paths are picked is a Plackett-Luce
draw without replacement in which paths drop out as they are blocked; sets of legal paths only shrink within an
event, so all normalisers come from one suffix sum over the moment at which a path drops out.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.compiling import borrowing
from gnnsched.collective.decode.problem import (
    CHUNK_FEATURES,
    NEARNESS_FLOOR,
    NEARNESS_HEADS,
    PATH_FEATURES,
    Problem,
)
from gnnsched.collective.decode.state import CHOICE, PROGRESS, State

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

# Places in Tape.setting ...
ADVANTAGE, CLIP, PICK_WEIGHT, CHOICE_WEIGHT, PICK_ENTROPY, CHOICE_ENTROPY, FIRST_EPOCH = range(7)
# ... and in Tape.statistic: sums over decisions, per level.
PICKS, PICK_KL, PICK_CLIPPED, PICK_ENTROPY_SUM, PICK_SURROGATE = range(5)
CHOICES, CHOICE_KL, CHOICE_CLIPPED, CHOICE_ENTROPY_SUM, CHOICE_SURROGATE = range(5, 10)
STATISTICS = 10


class Tape(NamedTuple):
    """Recorded choices and what learning makes of them.

    ``picks``: path per low-level decision, ``choices``: chunk or -1 per high-level decision, in order; ``old_*`` and
    ``new_*``: their log-probabilities when acting and at the last replay. ``d_*``: gradient of the objective
    (to be maximised) with respect to ``Scores``. ``debt`` (H, S, C): gradient with respect to the nearness
    features so far, from which ``d_attention`` is settled. The gradient is the plain sum over decisions.
    ``event_time``: seconds at which each event's decisions were made, ``event_picks``: how many of them are picks;
    ``advantage``: that of each event's decisions, where it is empty all have the one in ``setting``.
    """

    picks: Longs
    choices: Longs
    old_pick: Floats
    new_pick: Floats
    old_choice: Floats
    new_choice: Floats
    d_path: Floats
    d_chunk: Floats
    d_chunk_progress: Floats
    d_attention: Floats
    debt: Floats
    setting: Floats
    statistic: Floats
    event_time: Floats
    event_picks: Longs
    advantage: Floats


def empty_tape(pr: Problem, decisions: int) -> Tape:
    """A tape with room for ``decisions`` choices of each level; 0 where nothing is recorded."""
    paths, servers = len(pr.source), len(pr.needed)
    learning = decisions > 0
    shape = (paths, len(CHUNK_FEATURES)) if learning else (1, 1)
    return Tape(
        np.zeros(decisions, np.int64),
        np.zeros(decisions, np.int64),
        np.zeros(decisions),
        np.zeros(decisions),
        np.zeros(decisions),
        np.zeros(decisions),
        np.zeros((paths, len(PATH_FEATURES)) if learning else (1, 1)),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros((NEARNESS_HEADS, servers, servers) if learning else (1, 1, 1)),
        np.zeros((NEARNESS_HEADS, servers, pr.needed.shape[1]) if learning else (1, 1, 1)),
        np.zeros(8),
        np.zeros(STATISTICS),
        np.zeros(decisions),
        np.zeros(decisions, np.int64),
        np.zeros(0),
    )


@borrowing()
def surrogate_weight(tape: Tape, new: float, old: float, weight: float, sums: int) -> float:
    """Derivative of the clipped surrogate with respect to a log-probability; adds to the level's statistics."""
    advantage = tape.setting[ADVANTAGE]
    tape.statistic[sums] += 1.0
    if tape.setting[FIRST_EPOCH] > 0.0:
        tape.statistic[sums + 4] += advantage
        return advantage * weight
    ratio = np.exp(min(new - old, 20.0))
    # The estimator of KL with low variance: (r - 1) - log r.
    tape.statistic[sums + 1] += (ratio - 1.0) - (new - old)
    clip = tape.setting[CLIP]
    if (advantage > 0.0 and ratio > 1.0 + clip) or (advantage < 0.0 and ratio < 1.0 - clip):
        tape.statistic[sums + 2] += 1.0
        tape.statistic[sums + 4] += advantage * (1.0 + clip if advantage > 0.0 else 1.0 - clip)
        return 0.0
    tape.statistic[sums + 4] += advantage * ratio
    return advantage * ratio * weight


@borrowing()
def learn_choice(
    pr: Problem,
    st: State,
    tape: Tape,
    path: int,
    count: int,
    choice: int,
    best: float,
    total: float,
) -> None:
    """Add one high-level decision's gradient. ``count`` candidates stand in ``st.candidate`` with their scores.

    ``choice`` is the candidate taken or -1. ``total`` is the sum of exp(score - best) over all that could be
    chosen, NONE with its score of 0 among them where it could.
    """
    d = pr.target[path]
    index = st.counter[CHOICE]
    new = (st.score[choice] if choice >= 0 else 0.0) - best - np.log(total)
    tape.new_choice[index] = new
    if tape.setting[FIRST_EPOCH] > 0.0:
        tape.old_choice[index] = new
    weight = surrogate_weight(tape, new, tape.old_choice[index], tape.setting[CHOICE_WEIGHT], CHOICES)
    log_total = np.log(total)
    entropy = 0.0
    rest = 1.0
    for i in range(count):
        log_p = st.score[i] - best - log_total
        p = np.exp(log_p)
        rest -= p
        entropy -= p * log_p
    if rest > 1e-12:
        entropy -= rest * (-best - log_total)
    tape.statistic[CHOICE_ENTROPY_SUM] += entropy
    bonus = tape.setting[CHOICE_ENTROPY] * tape.setting[CHOICE_WEIGHT]
    progress = st.real[PROGRESS]
    w = st.weight
    for i in range(count):
        log_p = st.score[i] - best - log_total
        p = np.exp(log_p)
        q = -weight * p - bonus * p * (log_p + entropy)
        if i == choice:
            q += weight
        c = st.candidate[i]
        for k in range(len(w)):
            tape.d_chunk[path, k] += q * st.phi[i, k]
            tape.d_chunk_progress[path, k] += q * progress * st.phi[i, k]
        for h in range(NEARNESS_HEADS):
            tape.debt[h, d, c] += q * (w[2 + 2 * h] + w[3 + 2 * h] / (NEARNESS_FLOOR + st.near[h, d, c]))


@njit(cache=True, forceinline=True)
def learn_picks(
    tape: Tape,
    legal: Longs,
    features: Floats,
    value: Floats,
    count: int,
    death: Longs,
    order: Longs,
    picks: int,
    first: int,
) -> None:
    """Add one event's low-level decisions. ``death`` (count,): the last pick at which the path was still legal;
    ``order`` (picks,): index into ``legal`` of each pick; ``first``: tape index of the first of them.
    """
    if picks == 0:
        return
    # log_z[j]: log-sum-exp over the paths still legal at pick j, each relative to the largest of them.
    top = np.full(picks, -np.inf)
    for i in range(count):
        top[death[i]] = max(top[death[i]], value[i])
    for j in range(picks - 2, -1, -1):
        top[j] = max(top[j], top[j + 1])
    mass = np.zeros(picks)
    moment = np.zeros(picks)
    for i in range(count):
        weight = np.exp(value[i] - top[death[i]])
        mass[death[i]] += weight
        moment[death[i]] += weight * value[i]
    for j in range(picks - 2, -1, -1):
        scale = np.exp(top[j + 1] - top[j])
        mass[j] += mass[j + 1] * scale
        moment[j] += moment[j + 1] * scale
    log_z = np.log(mass) + top
    # Sums over the picks up to j, in units of 1 / z_j so that none of them can overflow.
    share = np.zeros(picks)
    bonus = np.zeros(picks)
    shift = np.zeros(picks)
    taken = np.zeros(picks)
    entropy_weight = tape.setting[PICK_ENTROPY] * tape.setting[PICK_WEIGHT]
    for j in range(picks):
        new = value[order[j]] - log_z[j]
        index = first + j
        tape.new_pick[index] = new
        if tape.setting[FIRST_EPOCH] > 0.0:
            tape.old_pick[index] = new
        taken[j] = surrogate_weight(tape, new, tape.old_pick[index], tape.setting[PICK_WEIGHT], PICKS)
        entropy = log_z[j] - moment[j] / mass[j]
        tape.statistic[PICK_ENTROPY_SUM] += entropy
        share[j] = taken[j]
        bonus[j] = entropy_weight
        shift[j] = entropy_weight * (log_z[j] - entropy)
        if j > 0:
            scale = np.exp(log_z[j] - log_z[j - 1])
            share[j] += share[j - 1] * scale
            bonus[j] += bonus[j - 1] * scale
            shift[j] += shift[j - 1] * scale
    for i in range(count):
        j = death[i]
        slope = np.exp(value[i] - log_z[j]) * (shift[j] - value[i] * bonus[j] - share[j])
        if order[j] == i:
            slope += taken[j]
        for k in range(features.shape[1]):
            tape.d_path[legal[i], k] += slope * features[i, k]


@borrowing()
def enter_nearness(tape: Tape, server: int, chunk: int) -> None:
    """The chunk is on its way to ``server`` only now: decisions made before did not see it there."""
    for h in range(NEARNESS_HEADS):
        for d in range(tape.debt.shape[1]):
            tape.d_attention[h, server, d] -= tape.debt[h, d, chunk]


@borrowing()
def leave_nearness(tape: Tape, server: int, chunk: int) -> None:
    """The chunk is no longer on its way to ``server``: only decisions made since it was saw it there."""
    for h in range(NEARNESS_HEADS):
        for d in range(tape.debt.shape[1]):
            tape.d_attention[h, server, d] += tape.debt[h, d, chunk]


@borrowing()
def settle_nearness(st: State, tape: Tape) -> None:
    """At the end: each decision saw every server that held or awaited the chunk."""
    servers, chunks = st.arrival.shape
    for s in range(servers):
        for c in range(chunks):
            if st.arrival[s, c] < np.inf:
                for h in range(NEARNESS_HEADS):
                    for d in range(servers):
                        tape.d_attention[h, s, d] += tape.debt[h, d, c]
