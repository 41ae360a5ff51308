"""The two choices of a decision: which idle path is served next, and which chunk takes it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.compiling import borrowing
from gnnsched.collective.decode.learn import Tape, learn_choice
from gnnsched.collective.decode.opening import opening, whole_opening
from gnnsched.collective.decode.problem import Problem
from gnnsched.collective.decode.state import (
    CHOICE,
    MEAN_NEED,
    NOW,
    PROGRESS,
    STRAYED,
    TOLERANCE,
    WHOLE,
    WINDOW,
    State,
    allowed,
    lowest_bit,
)

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

ACT, RECORD, REPLAY = 0, 1, 2
NONE = -1
# Log ratio of times beyond which waiting is not more or less worth it.
MOST_WAIT_GAIN = 3.0


class Scores(NamedTuple):
    """What a policy says of a network, P paths and S servers: score functions linear in the features.

    ``path`` (P, path features): order value of an idle path; ``chunk`` and ``chunk_progress`` (P, chunk features):
    coefficients of a chunk's score and their change with progress (0 to 1); ``attention`` (heads, S, S): weight
    with which source s counts for target d in the nearness features, each [h, :, d] summing to 1.
    """

    path: Floats
    chunk: Floats
    chunk_progress: Floats
    attention: Floats

    def sharpened(self, factor: float) -> "Scores":
        """The same preferences, so many times as strong."""
        return self._replace(
            path=self.path * factor, chunk=self.chunk * factor, chunk_progress=self.chunk_progress * factor
        )


class Rules(NamedTuple):
    """How to decode. ``mode`` ACT, RECORD or REPLAY; ``sample``: draw from the distributions (else take the best);
    ``allow_none``: a path may be left idle; ``augment``: augmentation after the pass at each event; ``guide``:
    log price ratio up to which a chunk may leave its packed tree's edge (0 strict, inf free choice).
    """

    mode: int
    sample: bool
    allow_none: bool
    augment: bool
    guide: float


@borrowing(inline=False)
def choose_chunk(
    pr: Problem,
    sc: Scores,
    st: State,
    tape: Tape,
    rules: Rules,
    path: int,
    rate: float,
    idle: bool,
    rng: np.random.Generator,
) -> int:
    """High-level decision: the chunk that takes the path, or NONE. ``idle``: whether NONE may be chosen."""
    s, d = pr.source[path], pr.target[path]
    count = 0
    for w in range(st.holds.shape[1]):
        word = st.holds[s, w] & st.wants[d, w]
        while word != np.uint64(0):
            chunk = w * 64 + lowest_bit(word)
            word &= word - np.uint64(1)
            if allowed(pr, rules.guide, path, chunk):
                st.candidate[count] = chunk
                count += 1
    if count == 0:
        return NONE
    # Whole arrays and two indices: a view of a row would count references, which costs more than what it is for.
    weight, phi = st.weight, st.phi
    for k in range(sc.chunk.shape[1]):
        weight[k] = sc.chunk[path, k] + st.real[PROGRESS] * sc.chunk_progress[path, k]
    log_duration = np.log(pr.latency[path] + pr.chunk_bytes[0] / rate)
    log_load = pr.path_log_load[path]
    # At what is left now, or at the ordinary rate later: how much longer the first takes.
    wait_gain = 0.0
    if rate < pr.rate[path] * WHOLE:
        whole = (
            whole_opening(pr, st, path) - st.real[NOW] + pr.latency[path] + pr.chunk_bytes[0] / pr.rate[path]
        )
        wait_gain = min(max(log_duration - np.log(whole), -MOST_WAIT_GAIN), MOST_WAIT_GAIN)
    need = np.log((st.need[d] + 1.0) / (st.real[MEAN_NEED] + 1.0))
    log_useful = np.log(1.0 + count)
    best = 0.0 if idle else -np.inf
    choice = NONE
    for i in range(count):
        c = st.candidate[i]
        phi[i, 0] = 1.0
        phi[i, 1] = st.log_share[st.holders[c]]
        phi[i, 2] = st.near[0, d, c]
        phi[i, 3] = st.log_near[0, d, c]
        phi[i, 4] = st.near[1, d, c]
        phi[i, 5] = st.log_near[1, d, c]
        phi[i, 6] = log_duration - st.least_duration[d, c]
        phi[i, 7] = log_load - st.least_load[d, c]
        phi[i, 8] = need
        phi[i, 9] = log_useful
        phi[i, 10] = st.random[c]
        planned = pr.tree_path[d, c]
        phi[i, 11] = 1.0 if pr.tree_source[d, c] == s else 0.0
        phi[i, 12] = pr.log_price[path] - pr.log_price[planned] if planned >= 0 else 0.0
        phi[i, 13] = pr.tail[d, c]
        phi[i, 14] = wait_gain
        value = 0.0
        for k in range(len(weight)):
            value += weight[k] * phi[i, k]
        st.score[i] = value
        if value > best:
            best = value
            choice = i
    if not rules.sample and rules.mode == ACT:
        return NONE if choice == NONE else int(st.candidate[choice])
    total = np.exp(-best) if idle else 0.0
    for i in range(count):
        total += np.exp(st.score[i] - best)
    if rules.mode == REPLAY:
        wanted = tape.choices[st.counter[CHOICE]]
        choice = NONE
        for i in range(count):
            if st.candidate[i] == wanted:
                choice = i
        if choice == NONE and (wanted != NONE or not idle):
            st.counter[STRAYED] += 1
        learn_choice(pr, st, tape, path, count, choice, best, total)
        st.counter[CHOICE] += 1
        return wanted
    if rules.sample:
        draw = rng.random() * total
        choice = NONE
        if idle:
            draw -= np.exp(-best)
        if draw >= 0.0 or not idle:
            choice = count - 1
            for i in range(count):
                draw -= np.exp(st.score[i] - best)
                if draw < 0.0:
                    choice = i
                    break
    chosen = NONE if choice == NONE else int(st.candidate[choice])
    if rules.mode == RECORD:
        if st.counter[CHOICE] < len(tape.choices):
            tape.choices[st.counter[CHOICE]] = chosen
            tape.new_choice[st.counter[CHOICE]] = (
                (st.score[choice] if choice >= 0 else 0.0) - best - np.log(total)
            )
        st.counter[CHOICE] += 1
    return chosen


@borrowing()
def look_at_pair(pr: Problem, st: State, guide: float, path: int) -> None:
    """Note in ``st.pair[source]`` the path's number of useful chunks (log), their rarest share and longest tail."""
    s, d = pr.source[path], pr.target[path]
    count = 0
    rarest = 0.0
    longest = 0.0
    for w in range(st.holds.shape[1]):
        word = st.holds[s, w] & st.wants[d, w]
        while word != np.uint64(0):
            c = w * 64 + lowest_bit(word)
            word &= word - np.uint64(1)
            if not allowed(pr, guide, path, c):
                continue
            count += 1
            rarest = min(rarest, st.log_share[st.holders[c]])
            if pr.tree_source[d, c] == s:
                longest = max(longest, pr.tail[d, c])
    st.pair[s, 0] = np.log(1.0 + count)
    st.pair[s, 1] = rarest
    st.pair[s, 2] = longest


@borrowing()
def legal_paths(pr: Problem, st: State, guide: float, legal: Longs, features: Floats) -> int:
    """All paths that can start at this event and carry something useful; returns their number.

    ``features`` (P, path features) gets a row for each.
    """
    count = 0
    per_path = guide > 0.0 and guide < np.inf
    deadline = st.real[NOW] + st.real[WINDOW] + st.real[TOLERANCE]
    for d in range(len(pr.needed)):
        if st.need[d] == 0:
            continue
        need = np.log((st.need[d] + 1.0) / (st.real[MEAN_NEED] + 1.0))
        st.pair[:, 0] = -1.0
        for g in range(pr.group_into[d], pr.group_into[d + 1]):
            vacant = st.vacant[pr.links[pr.start[pr.group[g] + 1] - 1]]
            for p in range(pr.group[g], pr.group[g + 1]):
                if vacant - pr.offset[pr.start[p + 1] - 1] > deadline:
                    continue
                _, rate = opening(pr, st, p)
                if rate <= 0.0:
                    continue
                s = pr.source[p]
                if st.pair[s, 0] < 0.0 or per_path:
                    look_at_pair(pr, st, guide, p)
                if st.pair[s, 0] == 0.0:
                    continue
                features[count, 0] = 1.0
                features[count, 1] = st.real[PROGRESS]
                features[count, 2] = st.pair[s, 1]
                features[count, 3] = st.pair[s, 0]
                features[count, 4] = 0.0 if rate >= pr.rate[p] else np.log(rate / pr.rate[p])
                features[count, 5] = st.pair[s, 2]
                features[count, 6] = need
                legal[count] = p
                count += 1
    return count
