"""RAMP: block shapes and their order, and the closed form of its AllReduce evaluated by hand."""

import math
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnsched.partition.cases import RAMPS, load_cluster
from gnnsched.partition.cluster import collective_time, degrees
from gnnsched.partition.ramp import Ramp, Shape
from gnnsched.topology import InputError

DEFAULT, PUBLISHED = Ramp(), Ramp(published=True)


# Blocks


def test_shapes_of_32_workers_are_tried_in_the_published_order() -> None:
    assert degrees(DEFAULT) == [1, 2, 4, 6, 8, 16]
    assert {d: DEFAULT.shapes(d) for d in degrees(DEFAULT)} == {
        1: [(1, 1, 1)],
        # The last of each, with no height, is the diagonal.
        2: [(2, 1, 1), (1, 1, 2), (1, 2, 1), (2, 2, 0)],
        4: [(2, 2, 1), (4, 1, 1), (2, 1, 2), (4, 4, 0)],
        6: [(3, 1, 2), (3, 2, 1)],
        8: [(2, 2, 2), (4, 1, 2), (4, 2, 1)],
        16: [(4, 4, 1)],
    }
    for degree in (10, 12, 14):
        assert DEFAULT.shapes(degree) == []
        assert DEFAULT.blocks(degree).workers.shape == (0, degree)


def test_a_row_of_groups_is_the_last_resort() -> None:
    """With fewer racks than groups only: elsewhere such a row is among the shapes already."""
    assert Ramp(8, 2, 1).shapes(8) == [(8, 1, 1)]
    assert Ramp(8, 2, 1).shapes(4) == [(2, 2, 1), (4, 1, 1)]
    assert Ramp(4, 4, 4).shapes(4)[-1] == (4, 4, 0)


def test_number_of_blocks_of_32_workers() -> None:
    assert [len(DEFAULT.blocks(d)) for d in degrees(DEFAULT)] == [
        32,
        3 * 4 * 2 + 4 * 4 * 1 + 4 * 3 * 2 + 3 * 3 * 2,
        3 * 3 * 2 + 1 * 4 * 2 + 3 * 4 * 1 + 1 * 1 * 2,
        2 * 4 * 1 + 2 * 3 * 2,
        3 * 3 * 1 + 1 * 4 * 1 + 1 * 3 * 2,
        2,
    ]
    assert [DEFAULT.blocks(d).num_kinds for d in degrees(DEFAULT)] == [1, 4, 4, 2, 3, 1]


@pytest.mark.parametrize("size", [8, 16, 32, 64, 128])
def test_blocks_are_boxes_by_origin_that_never_wrap_around(size: int) -> None:
    cluster = Ramp(*RAMPS[size])
    assert cluster.num_workers == size
    assert (cluster.name, load_cluster(f"ramp{size}")) == (f"ramp{size}", cluster)
    sizes = (cluster.groups, cluster.racks, cluster.servers)
    for degree in degrees(cluster):
        blocks = cluster.blocks(degree)
        assert (np.diff(blocks.kind) >= 0).all()
        for kind, shape in enumerate(cluster.shapes(degree)):
            diagonal = shape[2] == 0
            extent = (*shape[:2], max(shape[2], 1))
            offsets = [(k, k, 0) for k in range(degree)] if diagonal else list(product(*map(range, extent)))
            # The product of ranges is in lexicographic order, and ends where the block touches the far side.
            origins = product(*(range(whole - part + 1) for whole, part in zip(sizes, extent)))
            expected = [[cluster.worker(c + i, r + j, s + k) for i, j, k in offsets] for c, r, s in origins]
            rows = blocks.workers[blocks.kind == kind].tolist()
            assert rows == expected
            assert blocks.of_kind(kind).tolist() == expected[0]
        for row in blocks.workers.tolist():
            assert len(set(row)) == degree


def test_coordinates_are_of_the_worker() -> None:
    cluster = Ramp(4, 3, 2)
    seen = [cluster.coordinates(worker) for worker in range(cluster.num_workers)]
    assert seen == list(product(range(4), range(3), range(2)))
    assert [cluster.worker(*where) for where in seen] == list(range(24))


@pytest.mark.parametrize("sizes", [(2, 3, 1), (2, 2, 0), (0, 0, 1), (3, 0, 1)])
def test_impossible_sizes_are_refused(sizes: Shape) -> None:
    with pytest.raises(InputError, match="no more racks than groups"):
        Ramp(*sizes)


# Times


def test_a_message_between_two_servers() -> None:
    # A channel has a quarter of 1.6 TB/s; both ends' input and output count.
    assert DEFAULT.transfer_time(3, 17, 4e11) == pytest.approx(1.0 + 50e-9 + 2 * 100e-9, rel=1e-15)
    assert DEFAULT.transfer_time(17, 3, 4.0) == pytest.approx(250e-9 + 1e-11, rel=1e-15)
    assert DEFAULT.transfer_time(3, 3, 4e11) == 0.0
    assert DEFAULT.transfer_time(3, 17, 0.0) == 0.0
    slow = Ramp(2, 2, 1, node_bandwidth=10.0, latency=1.0, io_latency=0.5)
    assert slow.transfer_time(0, 1, 15.0) == pytest.approx(1.0 + 2 * 0.5 + 3.0)


@pytest.mark.parametrize(
    ("shape_of", "message", "published", "seconds"),
    [
        # 2 groups, 2 racks, 2 servers: steps of 2 with shares of 4, 2 and 1 GB over 4 transceivers; 1/6 operation
        # per byte, so 1/3 Top/s for 2, 1 and 0.5 G additions.
        ((8, 0), 8e9, True, 2 * (3 * 250e-9 + 7e9 / 4e11) + 3.5e9 / (2e12 / 6)),
        ((8, 0), 8e9, False, 2 * (3 * 250e-9 + 7e9 / 16e11) + 3.5e9 / (2e12 / 6)),
        # 4 groups of 4 racks: steps of 4 with shares of 4 and 1 GB over one transceiver per peer; two rounds of
        # additions at 1/5 operation per byte.
        ((16, 0), 16e9, True, 2 * (2 * 250e-9 + 5e9 / 1e11) + 5e9 / (2e12 / 5)),
        ((16, 0), 16e9, False, 2 * (2 * 250e-9 + 5e9 / 4e11) + 5e9 / (2e12 / 5)),
        # 3 groups, 2 servers: shares of 2 and 1 GB, two transceivers per peer in the step of 3, 4 in that of 2.
        (
            (6, 0),
            6e9,
            True,
            2 * (2 * 250e-9 + 2e9 / 2e11 + 1e9 / 4e11) + 2e9 / (2e12 / 4) + 0.5e9 / (2e12 / 6),
        ),
        # 2 servers of a rack: nothing in the published program, one step of 2 in truth.
        ((2, 1), 8e9, True, 0.0),
        ((2, 1), 8e9, False, 2 * (250e-9 + 4e9 / 16e11) + 2e9 / (2e12 / 6)),
        # 2 racks of a group; a share of 7 bytes among 2 is 4.
        ((2, 2), 7.0, True, 2 * (250e-9 + 4 / 4e11) + 2 / (2e12 / 6)),
    ],
)
def test_allreduce_times_by_hand(
    shape_of: tuple[int, int], message: float, published: bool, seconds: float
) -> None:
    """``shape_of``: degree and kind of the block; 4 x 4 x 2 workers with 0.4 TB/s per channel."""
    cluster = PUBLISHED if published else DEFAULT
    workers = cluster.blocks(shape_of[0]).of_kind(shape_of[1]).tolist()
    assert cluster.collective_time(workers, message) == pytest.approx(seconds, rel=1e-12)
    assert collective_time(workers[::-1], message, cluster) == pytest.approx(seconds, rel=1e-12)


def by_formula(cluster: Ramp, workers: list[int], message: float) -> float:
    """RAMP's closed form, term by term; J, the racks in contention, is 1 as in the published program."""
    groups, racks, servers = (
        Counter(where[axis] for where in map(cluster.coordinates, workers)) for axis in range(3)
    )
    c, rk, w, x = len(groups), len(racks), len(servers), cluster.groups
    if cluster.published:
        sizes, b = [c, min(c, w), rk, math.ceil(w / x)], cluster.node_bandwidth / x / x
    else:
        # Groups, servers, racks, servers again, no more of each than are still to be reached.
        sizes, reached = [], 1
        for most in (c, min(c, w), rk, w):
            sizes.append(min(most, math.ceil(len(workers) / reached)))
            reached *= sizes[-1]
        b = cluster.node_bandwidth / x
    m, communicating, computing = message, 0.0, 0.0
    for d in sizes:
        m = math.ceil(m / d)
        if d > 1:
            transceivers: float = min(math.floor(x / 1), math.floor(x / (d - 1)))
            if transceivers == 0:
                transceivers = x / (d - 1)
            communicating += cluster.latency + 2 * cluster.io_latency + m / (transceivers * b)
            o = math.ceil(math.log2(d))
            intensity = o / (2 * (d + 1))
            computing += (o * m / 2) / min(2e12 * intensity, 130e12)
    return 2 * communicating + computing


@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_allreduce_times_follow_the_formula(seed: int, published: bool, box: bool) -> None:
    """On blocks, and on sets of any form, as pairs of parts that synchronise are."""
    rng = np.random.default_rng(seed)
    cluster = Ramp(*RAMPS[int(rng.choice([8, 16, 32, 64, 128]))], published=published)
    if box:
        blocks = cluster.blocks(int(rng.choice(degrees(cluster)[1:])))
        workers = blocks.workers[int(rng.integers(len(blocks)))].tolist()
    else:
        workers = rng.choice(cluster.num_workers, int(rng.integers(2, 5)), replace=False).tolist()
    message = float(np.round(10.0 ** rng.uniform(0.0, 11.0)))
    assert cluster.collective_time(workers, message) == pytest.approx(
        by_formula(cluster, workers, message), rel=1e-12
    )


def test_alone_or_with_nothing_to_say_costs_nothing() -> None:
    assert collective_time([5], 1e9, DEFAULT) == 0.0
    assert collective_time([5, 5], 1e9, DEFAULT) == 0.0
    assert collective_time([5, 6], 0.0, DEFAULT) == 0.0


def test_the_published_slip_makes_servers_of_one_rack_free() -> None:
    for one, other in combinations(range(32), 2):
        same_rack = DEFAULT.coordinates(one)[:2] == DEFAULT.coordinates(other)[:2]
        assert (PUBLISHED.collective_time([one, other], 1e9) == 0.0) == same_rack
        # All pairs are one step of two, wherever they sit.
        pair = DEFAULT.collective_time([one, other], 1e9)
        assert pair == pytest.approx(2 * (250e-9 + 0.5e9 / 1.6e12) + 0.25e9 / (2e12 / 6))


@pytest.mark.parametrize("workers", RAMPS)
def test_no_block_of_any_cluster_is_faster_than_its_channels(workers: int) -> None:
    """Also where a step has more peers than a server has transceivers."""
    cluster = Ramp(*RAMPS[workers])
    for degree in degrees(cluster)[1:]:
        blocks = cluster.blocks(degree)
        for kind in range(blocks.num_kinds):
            least = 2 * (degree - 1) / degree * 1e9 / cluster.node_bandwidth
            assert cluster.collective_time(blocks.of_kind(kind).tolist(), 1e9) > least


@pytest.mark.parametrize("degree", degrees(DEFAULT)[1:])
def test_blocks_of_one_kind_take_equally_long_and_no_less_than_they_must(degree: int) -> None:
    blocks = DEFAULT.blocks(degree)
    for cluster in (DEFAULT, PUBLISHED):
        for message in (1.0, 1e6, 1e10):
            times = [cluster.collective_time(row, message) for row in blocks.workers.tolist()]
            for kind in range(blocks.num_kinds):
                assert len({time for time, own in zip(times, blocks.kind) if own == kind}) == 1
            if cluster is DEFAULT:
                # What any AllReduce sends out of each server, through all of the server's channels.
                assert min(times) > 2 * (degree - 1) / degree * message / 1.6e12
    for kind in range(blocks.num_kinds):
        row = blocks.of_kind(kind).tolist()
        grown = [DEFAULT.collective_time(row, 10.0**e) for e in range(12)]
        assert (np.diff(grown) >= 0.0).all()
        assert grown[-1] > grown[0]
