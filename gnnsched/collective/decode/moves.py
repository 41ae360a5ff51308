"""Starting a transfer and taking it back: its bookings, and what everybody knows of where its chunk is."""

import numpy as np

from gnnsched.collective.compiling import borrowing
from gnnsched.collective.decode.choice import REPLAY, Rules, Scores
from gnnsched.collective.decode.learn import Tape, enter_nearness, leave_nearness
from gnnsched.collective.decode.problem import Problem
from gnnsched.collective.decode.state import (
    EVENT,
    FREE,
    FRESH,
    NEEDED,
    STARTED,
    UNUSED,
    State,
    add_booking,
    announce,
    note_vacancy,
    retract,
)


@borrowing()
def book(pr: Problem, sc: Scores, st: State, tape: Tape, rules: Rules, slot: int) -> None:
    """Put a slot's transfer on its links, take the chunk off its target's wants, and tell everybody."""
    path, chunk = st.slot_path[slot], st.slot_chunk[slot]
    d = pr.target[path]
    longest = st.longest[0]
    work = pr.chunk_bytes[0] / st.slot_rate[slot]
    for k in range(pr.start[path], pr.start[path + 1]):
        booking = slot * longest + (k - pr.start[path])
        link = pr.links[k]
        st.ends[booking] = st.slot_start[slot] + pr.offset[k] + work
        st.rates[booking] = st.slot_rate[slot]
        add_booking(st, link, booking)
        note_vacancy(pr, st, link)
    st.arrival[d, chunk] = st.slot_end[slot]
    st.wants[d, chunk >> 6] &= ~(np.uint64(1) << np.uint64(chunk & 63))
    st.need[d] -= 1
    if pr.needed[d, chunk]:
        st.counter[NEEDED] -= 1
    st.holders[chunk] += 1
    st.slot_state[slot] = STARTED
    if rules.mode == REPLAY:
        enter_nearness(tape, d, chunk)
    announce(pr, sc.attention, st, d, chunk)


@borrowing()
def start_transfer(
    pr: Problem,
    sc: Scores,
    st: State,
    tape: Tape,
    rules: Rules,
    path: int,
    chunk: int,
    start: float,
    rate: float,
) -> int:
    """Start a transfer in this event; returns its slot."""
    st.counter[FREE] -= 1
    slot = st.free[st.counter[FREE]]
    begin = max(start, st.arrival[pr.source[path], chunk])
    st.slot_path[slot] = path
    st.slot_chunk[slot] = chunk
    st.slot_rate[slot] = rate
    st.slot_start[slot] = begin
    st.slot_end[slot] = begin + pr.latency[path] + pr.chunk_bytes[0] / rate
    st.slot_event[slot] = st.counter[EVENT]
    book(pr, sc, st, tape, rules, slot)
    st.fresh[st.counter[FRESH]] = slot
    st.counter[FRESH] += 1
    return slot


@borrowing()
def take_back(pr: Problem, sc: Scores, st: State, tape: Tape, rules: Rules, slot: int) -> None:
    """Undo ``book`` of a transfer started in this event; the slot keeps its data, so that it can be booked again."""
    path, chunk = st.slot_path[slot], st.slot_chunk[slot]
    d = pr.target[path]
    longest = st.longest[0]
    for k in range(pr.start[path], pr.start[path + 1]):
        wanted = slot * longest + (k - pr.start[path])
        link = pr.links[k]
        booking = st.head[link]
        if booking == wanted:
            st.head[link] = st.next[wanted]
        else:
            while st.next[booking] != wanted:
                booking = st.next[booking]
            st.next[booking] = st.next[wanted]
        note_vacancy(pr, st, link)
    st.arrival[d, chunk] = np.inf
    st.wants[d, chunk >> 6] |= np.uint64(1) << np.uint64(chunk & 63)
    st.need[d] += 1
    if pr.needed[d, chunk]:
        st.counter[NEEDED] += 1
    st.holders[chunk] -= 1
    st.slot_state[slot] = UNUSED
    if rules.mode == REPLAY:
        leave_nearness(tape, d, chunk)
    retract(pr, sc.attention, st, d, chunk)


@borrowing()
def release_slot(st: State, slot: int) -> None:
    """Give a slot whose transfer was taken back for good to the next one."""
    st.free[st.counter[FREE]] = slot
    st.counter[FREE] += 1
