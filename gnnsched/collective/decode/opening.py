"""When and how fast a path can start, beside what is booked on its links and what in-flight flows take of them."""

import numpy as np

from gnnsched.collective.compiling import borrowing
from gnnsched.collective.decode.problem import Problem
from gnnsched.collective.decode.state import FLOOR, FULL, NOW, TOLERANCE, WHOLE, WINDOW, State
from gnnsched.collective.flows import most_taken, next_fall


@borrowing()
def taken_most(pr: Problem, link: int, begin: float, end: float) -> float:
    """The most that flows take of a link at any moment from ``begin`` to ``end`` (s), bytes/s."""
    return most_taken(pr.taken_start, pr.taken_time, pr.taken_rate, link, begin, end)


@borrowing()
def taken_less(pr: Problem, link: int, time: float) -> float:
    """The first moment (s) after ``time`` from which flows take less of a link than before, or infinity."""
    return next_fall(pr.taken_start, pr.taken_time, pr.taken_rate, link, time)


@borrowing()
def left_from(pr: Problem, st: State, link: int, time: float) -> float:
    """Rate that bookings leave of a link for an occupancy that begins at ``time``, bytes/s."""
    left = pr.bandwidth[link]
    booking = st.head[link]
    while booking >= 0 and st.ends[booking] > time:
        left -= st.rates[booking]
        booking = st.next[booking]
    return left


@borrowing()
def left_for(pr: Problem, st: State, link: int, time: float, rate: float) -> float:
    """Rate left on a link from ``time`` on for as long as a chunk takes at ``rate`` (bytes/s)."""
    return left_from(pr, st, link, time) - taken_most(pr, link, time, time + pr.chunk_bytes[0] / rate)


@borrowing()
def beside_flows(pr: Problem, st: State, path: int, start: float, left: float) -> float:
    """The most up to ``left`` (bytes/s) that a chunk can have of a path from ``start`` on until it is through.

    The slower, the more flows it meets. A chunk may start late by the decision window, for which there is room.
    """
    while left >= FULL * pr.rate[path]:
        seconds = pr.chunk_bytes[0] / left + st.real[WINDOW] - st.real[TOLERANCE]
        least = left
        for k in range(pr.start[path], pr.start[path + 1]):
            time = start + pr.offset[k]
            most = taken_most(pr, pr.links[k], time + st.real[TOLERANCE], time + seconds)
            if most > 0.0:
                least = min(least, left_from(pr, st, pr.links[k], time + st.real[TOLERANCE]) - most)
        if least >= left * WHOLE:
            return left
        left = least
    return 0.0


@borrowing()
def opening(pr: Problem, st: State, path: int) -> tuple[float, float]:
    """When and at which rate a path can start at this event: (seconds, bytes/s), rate 0 if it cannot.

    At its ordinary rate as early as the decision window allows; else at the first moment of the window at which
    what is left is at least the floor's share of that. More bookings never make a closed path open.
    """
    now = st.real[NOW]
    deadline = now + st.real[WINDOW] + st.real[TOLERANCE]
    first, last = pr.start[path], pr.start[path + 1]
    start = now
    for k in range(first, last):
        moment = st.vacant[pr.links[k]] - pr.offset[k]
        if moment > start:
            if moment > deadline:
                return now, 0.0
            start = moment
    rate = pr.rate[path]
    flows = len(pr.taken_time) > 0
    partial_start, partial = now, 0.0
    while True:
        left = rate
        following = np.inf
        for k in range(first, last):
            time = start + pr.offset[k] + st.real[TOLERANCE]
            if flows:
                following = min(following, taken_less(pr, pr.links[k], time) - pr.offset[k])
            booking = st.head[pr.links[k]]
            if booking < 0:
                continue
            free = pr.bandwidth[pr.links[k]]
            while booking >= 0 and st.ends[booking] > time:
                free -= st.rates[booking]
                following = min(following, st.ends[booking] - pr.offset[k])
                booking = st.next[booking]
            left = min(left, free)
        if flows:
            left = beside_flows(pr, st, path, start, left)
        if left >= rate * WHOLE:
            return start, left
        if partial == 0.0 and left >= max(st.real[FLOOR], FULL) * rate:
            partial_start, partial = start, left
        if following > deadline or following <= start:
            return partial_start, partial
        start = following


@borrowing()
def whole_opening(pr: Problem, st: State, path: int) -> float:
    """The first moment (s) from now on at which a path has its ordinary rate left, as booked so far."""
    moment = st.real[NOW]
    flows = len(pr.taken_time) > 0
    while True:
        whole = True
        following = np.inf
        for k in range(pr.start[path], pr.start[path + 1]):
            free = pr.bandwidth[pr.links[k]]
            booking = st.head[pr.links[k]]
            while booking >= 0 and st.ends[booking] > moment + pr.offset[k] + st.real[TOLERANCE]:
                free -= st.rates[booking]
                following = min(following, st.ends[booking] - pr.offset[k])
                booking = st.next[booking]
            time = moment + pr.offset[k] + st.real[TOLERANCE]
            if flows:
                free -= taken_most(pr, pr.links[k], time, time + pr.chunk_bytes[0] / pr.rate[path])
                following = min(following, taken_less(pr, pr.links[k], time) - pr.offset[k])
            if free < pr.rate[path] * WHOLE:
                whole = False
        if whole or following == np.inf:
            return moment
        moment = following
