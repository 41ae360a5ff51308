"""The compiled event loop that grows all flow trees: legal paths, picks, chunk choices, augmentation.

One function serves acting and learning: acting samples and records its choices on a tape, replaying follows the
tape and accumulates the gradient of the log-probabilities with respect to the scores.
"""

from heapq import heappop, heappush

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gnnsched.collective.decode.augmentation import augment
from gnnsched.collective.decode.choice import NONE, RECORD, REPLAY, Rules, Scores, choose_chunk, legal_paths
from gnnsched.collective.decode.learn import ADVANTAGE, Tape, learn_picks, settle_nearness
from gnnsched.collective.decode.moves import start_transfer
from gnnsched.collective.decode.opening import opening
from gnnsched.collective.decode.problem import Problem
from gnnsched.collective.decode.state import (
    COMMITTED,
    EVENT,
    FRESH,
    MEAN_NEED,
    NEEDED,
    NOW,
    PICK,
    PROGRESS,
    STARTED,
    STRAYED,
    TOLERANCE,
    WINDOW,
    State,
    announce,
    anything_useful,
    prune,
)

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

STUCK, STOPPED = -1, -2


@njit(cache=True, forceinline=True)
def commit(pr: Problem, st: State, heap: list[tuple[float, int]]) -> int:
    """Make this event's transfers final: note when links are released and chunks arrive."""
    made = 0
    for i in range(st.counter[FRESH]):
        slot = st.fresh[i]
        if st.slot_state[slot] != STARTED:
            continue
        st.slot_state[slot] = COMMITTED
        made += 1
        path = st.slot_path[slot]
        heappush(heap, (st.slot_end[slot], slot * 2 + 1))
        work = pr.chunk_bytes[0] / st.slot_rate[slot]
        for k in range(pr.start[path], pr.start[path + 1]):
            released = st.slot_start[slot] + pr.offset[k] + work
            if k > pr.start[path] and pr.offset[k] == pr.offset[k - 1]:
                continue
            heappush(heap, (released, slot * 2))
    st.counter[FRESH] = 0
    return made


@njit(cache=True, forceinline=True)
def replay_pass(
    pr: Problem,
    sc: Scores,
    st: State,
    tape: Tape,
    rules: Rules,
    legal: Longs,
    features: Floats,
    value: Floats,
    count: int,
    position: Longs,
    rng: np.random.Generator,
) -> None:
    """The pass over idle paths as recorded, with the moment at which each path stops being legal."""
    death = np.full(count, -1, np.int64)
    order = np.empty(count, np.int64)
    for i in range(count):
        position[legal[i]] = i
    picks = 0
    first = st.counter[PICK]
    recorded = 0
    if st.counter[EVENT] <= len(tape.event_picks):
        recorded = tape.event_picks[st.counter[EVENT] - 1]
    else:
        st.counter[STRAYED] += 1
    for _ in range(recorded):
        path = tape.picks[st.counter[PICK]]
        st.counter[PICK] += 1
        i = position[path]
        start, rate = opening(pr, st, path)
        if i < 0 or rate <= 0.0:
            st.counter[STRAYED] += 1
            continue
        order[picks] = i
        chunk = choose_chunk(pr, sc, st, tape, rules, path, rate, rules.allow_none, rng)
        # Moments that rounding takes apart may close a path that is open once more when its turn comes.
        death[i] = picks
        if chunk != NONE:
            start_transfer(pr, sc, st, tape, rules, path, chunk, start, rate)
            d = pr.target[path]
            for other in range(pr.into[d], pr.into[d + 1]):
                i = position[other]
                if i >= 0 and death[i] < 0 and not anything_useful(pr, st, rules.guide, other):
                    death[i] = picks
            for k in range(pr.start[path], pr.start[path + 1]):
                link = pr.links[k]
                for n in range(pr.through[link], pr.through[link + 1]):
                    other = pr.through_paths[n]
                    i = position[other]
                    if i >= 0 and death[i] < 0 and opening(pr, st, other)[1] <= 0.0:
                        death[i] = picks
        picks += 1
    for i in range(count):
        if death[i] < 0:
            death[i] = max(picks - 1, 0)
    learn_picks(tape, legal, features, value, count, death, order, picks, first)
    for i in range(count):
        position[legal[i]] = -1


@njit(cache=True, nogil=True)
def run(
    problem: tuple,
    scores: tuple,
    state: tuple,
    choices: tuple,
    how: tuple,
    legal: Longs,
    features: Floats,
    frames: Longs,
    position: Longs,
    rng: np.random.Generator,
    stop: NDArray[np.bool_],
) -> int:
    """Plan the whole all-gather; the transfers are left in the slots.

    Returns the number of events, STUCK where the plan cannot be finished, STOPPED where another thread has set ``stop``
    (1,), which is looked at before each event.

    The first five are a Problem, Scores, State, Tape and Rules as plain tuples: looking at a named tuple takes numba
    as long as a plan. ``legal``, ``position`` (P,), ``features`` (P, path features) and ``frames`` are scratch.
    """
    pr, sc, st = Problem(*problem), Scores(*scores), State(*state)
    tape, rules = Tape(*choices), Rules(*how)
    servers, chunks = pr.needed.shape
    heap = [(0.0, 0)]
    heap.pop()
    for c in range(chunks):
        for s in range(servers):
            if pr.since[s, c] < np.inf:
                announce(pr, sc.attention, st, s, c)
                if pr.since[s, c] > 0.0:
                    heappush(heap, (pr.since[s, c], -2 - (s * chunks + c)))
    for moment in pr.falls:
        heappush(heap, (moment, -1))
    initial = max(1, st.counter[NEEDED])
    force = False
    while st.counter[NEEDED] > 0:
        if stop[0]:
            return STOPPED
        if st.counter[EVENT] < len(tape.event_time):
            tape.event_time[st.counter[EVENT]] = st.real[NOW]
        if st.counter[EVENT] < len(tape.advantage):
            tape.setting[ADVANTAGE] = tape.advantage[st.counter[EVENT]]
        st.counter[EVENT] += 1
        st.real[PROGRESS] = 1.0 - st.counter[NEEDED] / initial
        total = 0
        for d in range(servers):
            total += st.need[d]
        st.real[MEAN_NEED] = total / servers
        allow_none = rules.allow_none and not force
        now_rules = Rules(rules.mode, rules.sample, allow_none, rules.augment, rules.guide)
        count = legal_paths(pr, st, rules.guide, legal, features)
        value = np.zeros(count)
        for i in range(count):
            for k in range(features.shape[1]):
                value[i] += features[i, k] * sc.path[legal[i], k]
        if rules.mode == REPLAY:
            replay_pass(pr, sc, st, tape, now_rules, legal, features, value, count, position, rng)
        else:
            key = value.copy()
            if rules.sample:
                for i in range(count):
                    key[i] -= np.log(-np.log(max(rng.random(), 1e-300)))
            order = np.argsort(-key, kind="mergesort")
            before = st.counter[PICK]
            for i in range(count):
                path = legal[order[i]]
                start, rate = opening(pr, st, path)
                if rate <= 0.0 or not anything_useful(pr, st, rules.guide, path):
                    continue
                if rules.mode == RECORD:
                    if st.counter[PICK] < len(tape.picks):
                        tape.picks[st.counter[PICK]] = path
                    st.counter[PICK] += 1
                chunk = choose_chunk(pr, sc, st, tape, now_rules, path, rate, allow_none, rng)
                if chunk != NONE:
                    start_transfer(pr, sc, st, tape, rules, path, chunk, start, rate)
            if rules.mode == RECORD and st.counter[EVENT] <= len(tape.event_picks):
                tape.event_picks[st.counter[EVENT] - 1] = st.counter[PICK] - before
        if rules.augment:
            augment(pr, sc, st, tape, now_rules, frames, rng)
        made = commit(pr, st, heap)
        force = False
        if st.counter[NEEDED] == 0:
            break
        if len(heap) == 0:
            if made == 0:
                if not rules.allow_none or not allow_none:
                    return STUCK
                force = True
            continue
        moment, item = heappop(heap)
        now = moment
        while True:
            if item >= 0:
                slot = item // 2
                path = st.slot_path[slot]
                if item % 2 == 1:
                    chunk = st.slot_chunk[slot]
                    st.holds[pr.target[path], chunk >> 6] |= np.uint64(1) << np.uint64(chunk & 63)
                for k in range(pr.start[path], pr.start[path + 1]):
                    prune(st, pr.links[k], now)
            elif item < -1:
                # A copy that was on its way when planning began.
                chunk = (-2 - item) % chunks
                st.holds[(-2 - item) // chunks, chunk >> 6] |= np.uint64(1) << np.uint64(chunk & 63)
            if len(heap) == 0 or heap[0][0] > now + st.real[WINDOW] + st.real[TOLERANCE]:
                break
            moment, item = heappop(heap)
            if st.real[WINDOW] == 0.0:
                now = moment
        st.real[NOW] = now
    if rules.mode == REPLAY:
        settle_nearness(st, tape)
    return st.counter[EVENT]
