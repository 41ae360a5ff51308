"""The mutable state of the compiled event loop, and the elementary moves on it.

A transfer occupies a slot; its bookings, one per link of its path, hang in a list per link. Rates are counted
conservatively: a booking that ends after a moment counts as used at that moment even if it starts later, so
that no plan can overload a link.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.compiling import borrowing
from gnnsched.collective.decode.problem import CHUNK_FEATURES, NEARNESS_FLOOR, NEARNESS_HEADS, Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Words = NDArray[np.uint64]

# A rate within this of the ordinary one counts as the whole of it.
WHOLE = 1.0 - 1e-9
# ... and less than this share of it counts as nothing.
FULL = 1e-6

# Places in State.real ...
NOW, WINDOW, TOLERANCE, PROGRESS, FLOOR, MEAN_NEED = range(6)
# ... and in State.counter.
# STRAYED counts choices of a tape that were impossible when their turn came.
FREE, FRESH, NEEDED, EVENT, BUDGET, STAMP, PICK, CHOICE, STRAYED = range(9)

UNUSED, STARTED, COMMITTED = 0, 1, 2

_DEBRUIJN = np.uint64(0x03F79D71B4CB0A89)


def _debruijn_table() -> NDArray[np.int64]:
    table = np.zeros(64, np.int64)
    for bit in range(64):
        table[((1 << bit) * 0x03F79D71B4CB0A89 % (1 << 64)) >> 58] = bit
    return table


_BIT = _debruijn_table()


class State(NamedTuple):
    """See the module; S servers, C chunks, W = ceil(C / 64) words, H nearness heads, T transfer slots, L longest path.

    ``arrival`` (S, C): seconds, inf where not on its way; ``holds``, ``wants`` (S, W): bits of chunks that a
    server can send now, and of those neither held nor awaited; ``need`` (S,): number of the latter;
    ``holders`` (C,): servers that hold or await the chunk; ``near``, ``log_near`` (H, S, C) and ``least_duration``,
    ``least_load`` (S, C, logs): what these mean to a server; ``log_share`` (S + 2,): log(k / S) by
    number of holders k; ``head`` (m,), ``next``, ``ends``, ``rates`` (T*L): lists of bookings per link, booking
    slot * L + k being the k-th link's; ``vacant`` (m,): the first moment at which the link is not full;
    ``slot_*`` (T,): the transfers; ``free`` (T,): stack of unused slots; ``fresh``: slots started in this event;
    ``visited`` (S,): stamps of the augmentation; ``random`` (C,): the episode's priorities; ``pair`` (S, 3),
    ``candidate``, ``score`` (C,), ``phi`` (C, chunk features) and ``weight`` (chunk features,): scratch;
    ``real``, ``counter``: scalars by the places above; ``longest`` (1,): L.
    """

    arrival: Floats
    holds: Words
    wants: Words
    need: Longs
    holders: Longs
    log_share: Floats
    near: Floats
    log_near: Floats
    least_duration: Floats
    least_load: Floats
    head: Ints
    next: Ints
    ends: Floats
    rates: Floats
    vacant: Floats
    slot_path: Ints
    slot_chunk: Ints
    slot_rate: Floats
    slot_start: Floats
    slot_end: Floats
    slot_event: Longs
    slot_state: NDArray[np.uint8]
    free: Ints
    fresh: Ints
    visited: Longs
    pair: Floats
    candidate: Ints
    score: Floats
    phi: Floats
    weight: Floats
    random: Floats
    real: Floats
    counter: Longs
    longest: Longs


@borrowing()
def lowest_bit(word: np.uint64) -> int:
    """Index of the lowest bit set (de Bruijn multiplication)."""
    isolated = word & (~word + np.uint64(1))
    return _BIT[(isolated * _DEBRUIJN) >> np.uint64(58)]


@borrowing()
def announce(pr: Problem, attention: Floats, st: State, server: int, chunk: int) -> None:
    """Server holds or awaits the chunk: tell everybody what that means to them."""
    for d in range(len(pr.needed)):
        for h in range(NEARNESS_HEADS):
            st.near[h, d, chunk] += attention[h, server, d]
            st.log_near[h, d, chunk] = np.log(NEARNESS_FLOOR + st.near[h, d, chunk])
        st.least_duration[d, chunk] = min(st.least_duration[d, chunk], pr.log_duration[server, d])
        st.least_load[d, chunk] = min(st.least_load[d, chunk], pr.log_load[server, d])


@borrowing()
def retract(pr: Problem, attention: Floats, st: State, server: int, chunk: int) -> None:
    """Server awaits the chunk no longer: undo ``announce``."""
    servers = len(pr.needed)
    for d in range(servers):
        for h in range(NEARNESS_HEADS):
            # Rounding must not leave less than nothing.
            st.near[h, d, chunk] = max(st.near[h, d, chunk] - attention[h, server, d], 0.0)
            st.log_near[h, d, chunk] = np.log(NEARNESS_FLOOR + st.near[h, d, chunk])
        nearest = pr.log_duration[server, d] <= st.least_duration[d, chunk]
        if nearest or pr.log_load[server, d] <= st.least_load[d, chunk]:
            st.least_duration[d, chunk] = np.inf
            st.least_load[d, chunk] = np.inf
            for s in range(servers):
                if st.arrival[s, chunk] < np.inf:
                    st.least_duration[d, chunk] = min(st.least_duration[d, chunk], pr.log_duration[s, d])
                    st.least_load[d, chunk] = min(st.least_load[d, chunk], pr.log_load[s, d])


@borrowing()
def add_booking(st: State, link: int, booking: int) -> None:
    """Put a booking on a link's list, which has the latest end first, so that looks at it can end early."""
    before = -1
    other = st.head[link]
    while other >= 0 and st.ends[other] > st.ends[booking]:
        before = other
        other = st.next[other]
    st.next[booking] = other
    if before < 0:
        st.head[link] = booking
    else:
        st.next[before] = booking


@borrowing()
def prune(st: State, link: int, time: float) -> None:
    """Take bookings that have ended by ``time`` off a link's list."""
    before = -1
    booking = st.head[link]
    while booking >= 0 and st.ends[booking] > time:
        before = booking
        booking = st.next[booking]
    if before < 0:
        st.head[link] = -1
    else:
        st.next[before] = -1


@borrowing()
def note_vacancy(pr: Problem, st: State, link: int) -> None:
    """Note in ``st.vacant`` the first moment from which the link has some rate left, counting no later booking."""
    left = pr.bandwidth[link] * (1.0 - FULL)
    booking = st.head[link]
    while booking >= 0:
        left -= st.rates[booking]
        if left < 0.0:
            break
        booking = st.next[booking]
    st.vacant[link] = st.ends[booking] if booking >= 0 else 0.0


@borrowing()
def allowed(pr: Problem, guide: float, path: int, chunk: int) -> bool:
    """Whether the packed trees let the chunk take this path: its tree's edge, or one priced within ``guide`` (log)."""
    if guide == np.inf:
        return True
    planned = pr.tree_path[pr.target[path], chunk]
    if planned < 0:
        return False
    if pr.tree_source[pr.target[path], chunk] == pr.source[path]:
        return True
    return pr.log_price[path] <= pr.log_price[planned] + guide and guide > 0.0


@borrowing()
def anything_useful(pr: Problem, st: State, guide: float, path: int) -> bool:
    """Whether the path's source can send its target a chunk that it wants."""
    s, d = pr.source[path], pr.target[path]
    for w in range(st.holds.shape[1]):
        word = st.holds[s, w] & st.wants[d, w]
        if guide == np.inf:
            if word != np.uint64(0):
                return True
            continue
        while word != np.uint64(0):
            if allowed(pr, guide, path, w * 64 + lowest_bit(word)):
                return True
            word &= word - np.uint64(1)
    return False


def _as_words(flags: NDArray[np.bool_], words: int) -> Words:
    """Rows of flags as rows of 64-bit words, the first flag in the lowest bit."""
    padded = np.zeros((len(flags), words * 64), bool)
    padded[:, : flags.shape[1]] = flags
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def new_state(pr: Problem, window: float, floor: float, scale: float, random: Floats, budget: int) -> State:
    """Everything at time 0 before roots are announced. ``scale`` (s): times closer than 1e-10 of it are one moment.

    ``random`` (C,): the episode's random priority of each chunk.
    """
    servers, chunks = pr.needed.shape
    words = (chunks + 63) // 64
    longest = int(np.diff(pr.start).max()) if len(pr.source) else 1
    slots = servers * chunks + 8
    counts = np.zeros(STRAYED + 1, np.int64)
    counts[FREE] = slots
    there = np.isfinite(pr.since)
    wanted = ~there
    # A relay is worth feeding only where a packed tree runs through it.
    if (pr.tree_path >= 0).any():
        wanted &= pr.needed | (pr.tree_path >= 0)
    counts[NEEDED] = int((wanted & pr.needed).sum())
    arrival = pr.since.copy()
    holds, wants = _as_words(arrival <= 0.0, words), _as_words(wanted, words)
    real = np.zeros(MEAN_NEED + 1)
    real[WINDOW], real[TOLERANCE], real[FLOOR] = window, 1e-10 * scale, floor
    return State(
        arrival,
        holds,
        wants,
        wanted.sum(1).astype(np.int64),
        there.sum(0).astype(np.int64),
        np.log(np.maximum(np.arange(servers + 2), 1) / max(servers, 1)),
        np.zeros((NEARNESS_HEADS, servers, chunks)),
        np.full((NEARNESS_HEADS, servers, chunks), np.log(NEARNESS_FLOOR)),
        np.full((servers, chunks), np.inf),
        np.full((servers, chunks), np.inf),
        np.full(len(pr.bandwidth), -1, np.int32),
        np.full(slots * longest, -1, np.int32),
        np.zeros(slots * longest),
        np.zeros(slots * longest),
        np.zeros(len(pr.bandwidth)),
        np.zeros(slots, np.int32),
        np.zeros(slots, np.int32),
        np.zeros(slots),
        np.zeros(slots),
        np.zeros(slots),
        np.full(slots, -1, np.int64),
        np.zeros(slots, np.uint8),
        np.arange(slots - 1, -1, -1, dtype=np.int32),
        np.zeros(servers * chunks + budget + 16, np.int32),
        np.zeros(servers, np.int64),
        np.zeros((servers, 3)),
        np.zeros(chunks, np.int32),
        np.zeros(chunks),
        np.zeros((chunks, len(CHUNK_FEATURES))),
        np.zeros(len(CHUNK_FEATURES)),
        random,
        real,
        counts,
        np.array([longest], np.int64),
    )
