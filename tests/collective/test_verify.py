"""The verifier accepts right schedules and no wrong one: by hand, by mutation, against a second referee."""

from collections.abc import Callable

import numpy as np
import pytest
from hand_schedules import direct_ring, from_rows, network, random_network, star, to_rows, tree_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_oracle import is_right

from gnnsched.collective.schedule import BROADCAST, REDUCE, Schedule
from gnnsched.collective.verify import verify

# Columns of a row: phase, chunk, source, target, path, rate, start, end.
PHASE, CHUNK, SOURCE, TARGET, PATH, RATE, START, END = range(8)


def replace(row: tuple, **changes: object) -> tuple:
    names = ("phase", "chunk", "source", "target", "path", "rate", "start", "end")
    return tuple(changes.get(name, old) for name, old in zip(names, row))


def ring_of_three() -> Schedule:
    """Ring AllReduce on three servers in a ring, 3 bytes, 1 byte/s: two steps of reducing, two of sending.

    Server i sends to i + 1 over link 2i. Chunk c begins at c + 1, is whole at c and goes round from there.
    """
    rows = []
    for chunk in range(3):
        for step in range(4):
            source = (chunk + 1 + step) % 3
            phase = REDUCE if step < 2 else BROADCAST
            rows.append((phase, chunk, source, (source + 1) % 3, [2 * source], 1.0, float(step), step + 1.0))
    return from_rows(direct_ring(3), 3.0, [0, 1, 2], rows)


def star_of_two() -> list[tuple]:
    """Two servers on a switch, one chunk rooted at the first. Links: s0->w, w->s0, s1->w, w->s1."""
    return [(REDUCE, 0, 1, 0, [2, 1], 1.0, 0.0, 2.0), (BROADCAST, 0, 0, 1, [0, 3], 1.0, 2.0, 4.0)]


def judge(rows: list[tuple], **changes: object) -> str | None:
    settings_ = {"topology": star([1.0, 1.0]), "message_bytes": 2.0, "roots": [0]} | changes
    return verify(
        from_rows(settings_["topology"], settings_["message_bytes"], settings_["roots"], rows)
    ).fault


def test_hand_made_schedules_are_right() -> None:
    assert verify(ring_of_three()).ok
    assert verify(ring_of_three()).fault is None
    assert judge(star_of_two()) is None


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_random_right_schedules_are_right(seed: int, per_server: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = tree_schedule(random_network(rng), rng, per_server)
    assert is_right(schedule)
    assert verify(schedule).fault is None
    # Every participant sends and receives at least the message.
    t, people = schedule.transfers, schedule.topology.participants
    if len(people) > 1:
        for ends in (t.source, t.target):
            counts = np.bincount(ends, minlength=schedule.topology.num_nodes)[people]
            assert (counts >= schedule.num_chunks).all()


def test_one_participant_needs_no_transfers() -> None:
    alone = network(2, 0, [(0, 1, 1.0)], relays=[1])
    assert judge([], topology=alone, roots=[0]) is None
    # Rooted at the relay it has to go there and back.
    assert "never reach the root" in judge([], topology=alone, roots=[1])
    there = (REDUCE, 0, 0, 1, [0], 1.0, 0.0, 2.0)
    back = (BROADCAST, 0, 1, 0, [1], 1.0, 2.0, 4.0)
    assert judge([there, back], topology=alone, roots=[1]) is None


def test_what_arrives_later_may_be_sent_later() -> None:
    # s2 -> s1 -> s0 over links 3 and 1, s1 sending its own at once and what came from s2 afterwards.
    line = network(3, 0, [(0, 1, 1.0), (1, 2, 1.0)])
    rows = [
        (REDUCE, 0, 1, 0, [1], 1.0, 0.0, 2.0),
        (REDUCE, 0, 2, 1, [3], 1.0, 0.0, 2.0),
        (REDUCE, 0, 1, 0, [1], 1.0, 2.0, 4.0),
        (BROADCAST, 0, 0, 1, [0], 1.0, 4.0, 6.0),
        (BROADCAST, 0, 1, 2, [2], 1.0, 6.0, 8.0),
    ]
    assert judge(rows, topology=line) is None
    # Without the second sending, what came from s2 stays behind.
    assert "the root of chunk 0 has 2 of 3" in judge([rows[0], rows[1], *rows[3:]], topology=line)
    assert "still at 's1'" in judge(rows[:2], topology=line)


def test_slow_transfers_share_a_fast_link_up_to_its_bandwidth() -> None:
    # Four slow servers send through one fast link of bandwidth 2 to the root: two at a time.
    net = network(5, 1, [(0, 5, 2.0), *((i, 5, 1.0) for i in range(1, 5))])
    gather = [
        (REDUCE, 0, i, 0, [2 * i, 1], 1.0, 2.0 * ((i - 1) // 2), 2.0 * ((i - 1) // 2) + 2)
        for i in range(1, 5)
    ]
    spread = [(BROADCAST, 0, 0, i, [0, 2 * i + 1], 0.5, 4.0, 8.0) for i in range(1, 5)]
    assert judge(gather + spread, topology=net) is None
    crowded = [replace(gather[2], start=1.9, end=3.9)]
    assert "link 'w0' -> 's0'" in judge(gather[:2] + crowded + gather[3:] + spread, topology=net)


def test_latency_delays_arrival_and_occupies_nothing() -> None:
    pair = network(2, 0, [(0, 1, 1.0, 5.0)])
    rows = [
        (REDUCE, 0, 1, 0, [1], 1.0, 0.0, 6.0),
        (REDUCE, 1, 1, 0, [1], 1.0, 1.0, 7.0),
        (BROADCAST, 0, 0, 1, [0], 1.0, 6.0, 12.0),
        (BROADCAST, 1, 0, 1, [0], 1.0, 7.0, 13.0),
    ]
    assert judge(rows, topology=pair, roots=[0, 0]) is None
    early = [*rows[:2], replace(rows[2], start=5.5, end=11.5), rows[3]]
    assert "has 1 of 2 contributions" in judge(early, topology=pair, roots=[0, 0])


FAULTS = {
    "dropped reduce": (lambda r: r[1:], "has 1 of 2 contributions"),
    "dropped broadcast": (lambda r: r[:1], "never reaches participant 's1'"),
    "counted twice": (lambda r: [r[0], replace(r[0], start=2.0, end=4.0), r[1]], "counted twice"),
    "wrong source": (lambda r: [replace(r[0], source=0, target=1), r[1]], "does not begin at its source"),
    "wrong target": (lambda r: [r[0], replace(r[1], target=0)], "sends a server its own data"),
    "switch as source": (lambda r: [replace(r[0], source=2, path=[1]), r[1]], "its source is a switch"),
    "switch as target": (lambda r: [r[0], replace(r[1], target=2, path=[0])], "its target is a switch"),
    "two at once": (lambda r: [r[0], r[0], r[1]], "carries 2 bytes/s of its 1 from 0 s on: transfer 0"),
    "gap in the path": (lambda r: [replace(r[0], path=[2, 2, 1]), r[1]], "gap"),
    "path ends early": (lambda r: [replace(r[0], path=[2]), r[1]], "does not end at its target"),
    "empty path": (lambda r: [replace(r[0], path=[]), r[1]], "no links"),
    "unknown link": (
        lambda r: [replace(r[0], path=[2, 77]), r[1]],
        "transfer 0: its path is not in the topology",
    ),
    "unknown chunk": (lambda r: [replace(r[0], chunk=1), r[1]], "transfer 0: chunk 1 does not exist"),
    "unknown node": (lambda r: [r[0], replace(r[1], target=-1)], "transfer 1: target -1 does not exist"),
    "too fast": (lambda r: [replace(r[0], rate=2.0, end=1.0), r[1]], "above the bandwidth"),
    "no rate": (lambda r: [replace(r[0], rate=0.0), r[1]], "not positive"),
    "before zero": (lambda r: [replace(r[0], start=-1.0, end=1.0), r[1]], "before time 0"),
    "backwards": (lambda r: [replace(r[0], end=-1.0), r[1]], "ends before it starts"),
    "no number": (lambda r: [replace(r[0], start=np.nan), r[1]], "no number"),
    "late end": (lambda r: [r[0], replace(r[1], end=5.0)], "its end is not"),
    "too early": (lambda r: [r[0], replace(r[1], start=1.5, end=3.5)], "has 1 of 2 contributions"),
    "wrong phase": (lambda r: [replace(r[0], phase=BROADCAST), r[1]], "has not reached its source"),
    "reduced once more": (lambda r: [r[0], replace(r[1], phase=REDUCE)], "counted twice"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_fault_is_named(name: str) -> None:
    change, expected = FAULTS[name]
    fault = judge(change(star_of_two()))
    assert fault is not None
    assert expected in fault
    assert "\n" not in fault


def test_wrong_roots_and_messages() -> None:
    assert "root 's0'" in judge([], roots=[0])
    assert "switch" in judge(star_of_two(), roots=[2])
    assert "root 9 does not exist" in judge(star_of_two(), roots=[9])
    assert judge(star_of_two(), roots=[1]) is not None
    assert "no chunk" in judge([], roots=[])
    assert "bytes" in judge(star_of_two(), message_bytes=0.0)


def test_a_path_through_a_server_is_refused() -> None:
    line = network(3, 0, [(0, 1, 1.0), (1, 2, 1.0)])
    assert "through a server" in judge([(REDUCE, 0, 2, 0, [3, 1], 1.0, 0.0, 2.0)], topology=line)


@pytest.mark.parametrize(("overlap", "right"), [(0.0, True), (1e-12, True), (3e-10, False)])
def test_overlaps_below_the_tolerance_one_by_one_add_up(overlap: float, right: bool) -> None:
    """Forty chunks back to back on the same links, each beginning ``overlap`` of the makespan too early."""
    n = 40
    pace = 2.0 - overlap * 4 * n
    rows = []
    for c in range(n):
        for row, since in zip(star_of_two(), (0.0, 2.0 * n)):
            start = since + c * pace
            rows.append(replace(row, chunk=c, start=start, end=start + 2.0))
    fault = judge(rows, roots=[0] * n, message_bytes=2.0 * n)
    assert (fault is None) == right
    assert right or "carries 2 bytes/s of its 1" in fault


Mutation = Callable[[list[tuple], list[int], Schedule, np.random.Generator], None]


def pick(rows: list[tuple], rng: np.random.Generator, phase: int | None = None) -> int:
    return int(rng.choice([i for i, row in enumerate(rows) if phase is None or row[PHASE] == phase]))


def drop(rows, roots, schedule, rng):
    del rows[pick(rows, rng)]


def swap_places(rows, roots, schedule, rng):
    """Two transfers trade their chunks, one of each phase: neither finds its data."""
    i, j = pick(rows, rng, REDUCE), pick(rows, rng, BROADCAST)
    rows[i], rows[j] = replace(rows[i], phase=BROADCAST), replace(rows[j], phase=REDUCE)


def count_twice(rows, roots, schedule, rng):
    i = pick(rows, rng, REDUCE)
    end = max(row[END] for row in rows)
    rows.append(replace(rows[i], start=end, end=end + rows[i][END] - rows[i][START]))


def wrong_source(rows, roots, schedule, rng):
    i = pick(rows, rng)
    others = [s for s in schedule.topology.servers.tolist() if s != rows[i][SOURCE]]
    rows[i] = replace(rows[i], source=int(rng.choice(others)))


def wrong_target(rows, roots, schedule, rng):
    i = pick(rows, rng)
    others = [s for s in schedule.topology.servers.tolist() if s != rows[i][TARGET]]
    rows[i] = replace(rows[i], target=int(rng.choice(others)))


def wrong_chunk(rows, roots, schedule, rng):
    i = pick(rows, rng)
    rows[i] = replace(rows[i], chunk=int((rows[i][CHUNK] + rng.integers(1, len(roots))) % len(roots)))


def wrong_root(rows, roots, schedule, rng):
    c = int(rng.integers(len(roots)))
    roots[c] = int(rng.choice([s for s in schedule.topology.servers.tolist() if s != roots[c]]))


def wrong_phase(rows, roots, schedule, rng):
    i = pick(rows, rng)
    rows[i] = replace(rows[i], phase=1 - rows[i][PHASE])


def overlap(rows, roots, schedule, rng):
    """A harmless second copy of a final value, sent while its links are taken."""
    i = pick(rows, rng, BROADCAST)
    shift = float(rng.uniform(0.0, 0.9)) * schedule.chunk_bytes / rows[i][RATE]
    rows.append(replace(rows[i], start=rows[i][START] + shift, end=rows[i][END] + shift))


def foreign_path(rows, roots, schedule, rng):
    i = pick(rows, rng)
    path = list(rows[i][PATH])
    k = int(rng.integers(len(path)))
    s, d = schedule.topology.link_source, schedule.topology.link_target
    others = [e for e in range(len(s)) if (s[e], d[e]) != (s[path[k]], d[path[k]])]
    path[k] = int(rng.choice(others))
    rows[i] = replace(rows[i], path=path)


def detour(rows, roots, schedule, rng):
    i = pick(rows, rng)
    s, d = schedule.topology.link_source, schedule.topology.link_target
    back = np.flatnonzero((s == rows[i][TARGET]) & (d == s[rows[i][PATH][-1]]))
    rows[i] = replace(rows[i], path=[*rows[i][PATH], int(back[0]), rows[i][PATH][-1]])


def late_end(rows, roots, schedule, rng):
    i = pick(rows, rng)
    rows[i] = replace(rows[i], end=rows[i][END] + float(rng.uniform(0.01, 1)) * schedule.makespan)


def negative(rows, roots, schedule, rng):
    i = pick(rows, rng)
    shift = rows[i][START] + float(rng.uniform(0.01, 1)) * schedule.makespan
    rows[i] = replace(rows[i], start=rows[i][START] - shift, end=rows[i][END] - shift)


def too_early(rows, roots, schedule, rng):
    """A broadcast at the very beginning, when no contribution has arrived anywhere."""
    i = pick(rows, rng, BROADCAST)
    rows[i] = replace(rows[i], start=0.0, end=rows[i][END] - rows[i][START])


def raised_rate(rows, roots, schedule, rng):
    i = pick(rows, rng)
    rate = rows[i][RATE] * float(rng.uniform(1.01, 4))
    gain = schedule.chunk_bytes / rows[i][RATE] - schedule.chunk_bytes / rate
    rows[i] = replace(rows[i], rate=rate, end=rows[i][END] - gain)


MUTATIONS: list[Mutation] = [
    drop,
    swap_places,
    count_twice,
    wrong_source,
    wrong_target,
    wrong_chunk,
    wrong_root,
    wrong_phase,
    overlap,
    foreign_path,
    detour,
    late_end,
    negative,
    too_early,
    raised_rate,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=[m.__name__ for m in MUTATIONS])
def test_no_mutant_survives(mutate: Mutation) -> None:
    """100 mutants each; in these tree schedules without relays every transfer is needed."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        net = [direct_ring(3), direct_ring(4, 2.0, 0.5), star([1.0, 2.0, 4.0]), star([1.0] * 5, 0.1)][
            seed % 4
        ]
        schedule = tree_schedule(net, rng, 1 + seed % 2)
        rows, roots = to_rows(schedule), schedule.roots.tolist()
        mutate(rows, roots, schedule, rng)
        mutant = from_rows(net, schedule.message_bytes, roots, rows)
        verdict = verify(mutant)
        assert not verdict.ok, (seed, verdict)
        assert verdict.fault


def scramble(rows: list[tuple], roots: list[int], schedule: Schedule, rng: np.random.Generator) -> None:
    """A change that may or may not matter: another order, chunk, time, path or copy."""
    kind = rng.integers(6)
    i, j = pick(rows, rng), pick(rows, rng)
    if kind == 0:
        rows[i], rows[j] = replace(rows[i], chunk=rows[j][CHUNK]), replace(rows[j], chunk=rows[i][CHUNK])
    elif kind == 1:
        shift = float(rng.choice([-1, 1])) * float(rng.uniform(0.01, 0.5)) * schedule.makespan
        rows[i] = replace(rows[i], start=rows[i][START] + shift, end=rows[i][END] + shift)
    elif kind == 2:
        rows[i] = replace(
            rows[i],
            **dict(zip(("source", "target", "path", "rate"), rows[j][SOURCE : RATE + 1])),
            end=rows[i][START] + rows[j][END] - rows[j][START],
        )
    elif kind == 3:
        shift = max(row[END] for row in rows) - rows[i][START]
        rows.append(replace(rows[i], start=rows[i][START] + shift, end=rows[i][END] + shift))
    elif kind == 4:
        shift = float(rng.uniform(0, 1)) * schedule.makespan
        for k in range(len(rows)):
            if rows[k][PHASE] == BROADCAST:
                rows[k] = replace(rows[k], start=rows[k][START] + shift, end=rows[k][END] + shift)
    else:
        del rows[i]


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 2))
def test_verdict_equals_the_second_referees(seed: int, changes: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = tree_schedule(random_network(rng), rng, int(rng.integers(1, 3)))
    if not len(schedule.transfers):
        return
    rows, roots = to_rows(schedule), schedule.roots.tolist()
    for _ in range(changes):
        if rows:
            scramble(rows, roots, schedule, rng)
    mutant = from_rows(schedule.topology, schedule.message_bytes, roots, rows)
    assert verify(mutant).ok == is_right(mutant)


def test_columns_of_unequal_length_are_a_fault() -> None:
    schedule = ring_of_three()
    object.__setattr__(schedule.transfers, "rate", schedule.transfers.rate[1:])
    assert "column 'rate'" in verify(schedule).fault
    schedule = ring_of_three()
    object.__setattr__(schedule.transfers, "path_start", schedule.transfers.path_start[::-1].copy())
    assert "path_start" in verify(schedule).fault
