"""Augmentation: ports that a greedy pass leaves unmatched are matched by rearranging the same event's transfers."""

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.compiling import borrowing
from gnnsched.collective.decode.choice import NONE, Rules, Scores, choose_chunk
from gnnsched.collective.decode.learn import Tape
from gnnsched.collective.decode.moves import book, release_slot, start_transfer, take_back
from gnnsched.collective.decode.opening import left_for, opening
from gnnsched.collective.decode.problem import Problem
from gnnsched.collective.decode.state import (
    BUDGET,
    EVENT,
    NOW,
    STAMP,
    STARTED,
    TOLERANCE,
    WHOLE,
    WINDOW,
    State,
    anything_useful,
)

Longs = NDArray[np.int64]

AUGMENTATION_DEPTH = 4
# Evictions an event may try, per server.
EVICTIONS_PER_SERVER = 200


@borrowing(inline=False)
def try_path(
    pr: Problem,
    sc: Scores,
    st: State,
    tape: Tape,
    rules: Rules,
    path: int,
    share: float,
    rng: np.random.Generator,
) -> int:
    """Start the policy's choice on the path if it can start at ``share`` of its ordinary rate; slot or NONE."""
    if not anything_useful(pr, st, rules.guide, path):
        return NONE
    start, rate = opening(pr, st, path)
    if rate <= 0.0 or rate < share * pr.rate[path] * WHOLE:
        return NONE
    chunk = choose_chunk(pr, sc, st, tape, rules, path, rate, rules.allow_none, rng)
    if chunk == NONE:
        return NONE
    return start_transfer(pr, sc, st, tape, rules, path, chunk, start, rate)


@borrowing()
def blocker(pr: Problem, st: State, path: int) -> int:
    """The transfer started in this event that stands on the path's first full link, or NONE."""
    longest = st.longest[0]
    now = st.real[NOW]
    for k in range(pr.start[path], pr.start[path + 1]):
        link = pr.links[k]
        time = now + pr.offset[k] + st.real[TOLERANCE]
        if left_for(pr, st, link, time, pr.rate[path]) >= pr.rate[path] * WHOLE:
            continue
        booking = st.head[link]
        while booking >= 0:
            slot = booking // longest
            if st.slot_event[slot] == st.counter[EVENT] and st.slot_state[slot] == STARTED:
                return slot
            booking = st.next[booking]
        return NONE
    return NONE


@borrowing()
def augment_from(
    pr: Problem,
    sc: Scores,
    st: State,
    tape: Tape,
    rules: Rules,
    origin: int,
    frames: Longs,
    rng: np.random.Generator,
) -> bool:
    """Kuhn's augmenting path from a destination with an idle in-link: rob another of this event's transfers, serve
    the robbed destination another way, up to AUGMENTATION_DEPTH deep. True if a transfer was added.

    ``frames`` rows: server, paths tried, stage (0 directly, 1 by robbing), slot taken back, slot started.
    """
    stamp = st.counter[STAMP]
    level = 0
    frames[0, 0], frames[0, 1], frames[0, 2] = origin, 0, 1
    st.visited[origin] = stamp
    while level >= 0:
        d = frames[level, 0]
        first = pr.into[d]
        degree = pr.into[d + 1] - first
        if frames[level, 1] == degree:
            if frames[level, 2] == 0 and level < AUGMENTATION_DEPTH:
                frames[level, 1], frames[level, 2] = 0, 1
                continue
            level -= 1
            if level >= 0:
                take_back(pr, sc, st, tape, rules, frames[level, 4])
                release_slot(st, frames[level, 4])
                book(pr, sc, st, tape, rules, frames[level, 3])
            continue
        # Different paths come first at different events, so that none is favoured by its number.
        path = first + (frames[level, 1] + st.counter[EVENT] * 7919) % degree
        frames[level, 1] += 1
        if frames[level, 2] == 0:
            if try_path(pr, sc, st, tape, rules, path, 0.5, rng) >= 0:
                for i in range(level):
                    release_slot(st, frames[i, 3])
                return True
            continue
        if st.counter[BUDGET] <= 0 or not anything_useful(pr, st, rules.guide, path):
            continue
        victim = blocker(pr, st, path)
        if victim < 0:
            continue
        robbed = pr.target[st.slot_path[victim]]
        if st.visited[robbed] == stamp:
            continue
        st.counter[BUDGET] -= 1
        take_back(pr, sc, st, tape, rules, victim)
        started = try_path(pr, sc, st, tape, rules, path, 1.0, rng)
        if started < 0:
            book(pr, sc, st, tape, rules, victim)
            continue
        st.visited[robbed] = stamp
        frames[level, 3], frames[level, 4] = victim, started
        level += 1
        frames[level, 0], frames[level, 1], frames[level, 2] = robbed, 0, 0
    return False


@borrowing()
def augment(
    pr: Problem, sc: Scores, st: State, tape: Tape, rules: Rules, frames: Longs, rng: np.random.Generator
) -> None:
    """Serve destinations whose in-links stayed idle by rearranging what was started in this event."""
    servers = len(pr.needed)
    st.counter[BUDGET] = EVICTIONS_PER_SERVER * servers
    st.counter[STAMP] += 1
    horizon = st.real[NOW] + st.real[WINDOW]
    for i in range(servers):
        d = (i + st.counter[EVENT]) % servers
        again = True
        while again and st.need[d] > 0:
            again = False
            idle = False
            for g in range(pr.group_into[d], pr.group_into[d + 1]):
                first = pr.group[g]
                end = pr.start[first + 1] - 1
                time = horizon + pr.offset[end] + st.real[TOLERANCE]
                if left_for(pr, st, pr.links[end], time, pr.rate[first]) >= pr.rate[first] * WHOLE:
                    idle = True
                    break
            if idle and st.visited[d] != st.counter[STAMP]:
                again = augment_from(pr, sc, st, tape, rules, d, frames, rng)
                if again:
                    st.counter[STAMP] += 1
