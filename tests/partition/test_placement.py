"""Degrees of ops and where their parts go: by hand, and the compiled placement against the plain one."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_jobs import PROFILES, needs_profiles, profile, random_release, random_world

from gnnsched.partition.cluster import degrees
from gnnsched.partition.job_graph import JobGraph, mirrored
from gnnsched.partition.kernel import first_fit, try_place
from gnnsched.partition.placement import QUANTUM, degrees_of_ops, place, place_exactly
from gnnsched.partition.profile_file import read_profile
from gnnsched.partition.ramp import Ramp
from gnnsched.partition.step_simulation import simulate_job
from gnnsched.partition.world import World, make_world
from gnnsched.topology import InputError

AVAILABLE = [1, 2, 4, 6, 8, 16]


def job(edges: list[tuple[int, int]], memory: list[float], seconds: list[float] | None = None) -> JobGraph:
    """Ops that need ``memory`` bytes in either pass."""
    return mirrored(profile(seconds or [1.0] * len(memory), edges, activation=memory), steps=1)


def placed(
    graph: JobGraph, split: list[int], cluster: Ramp, taken: tuple[int, ...] = ()
) -> list[list[int]] | None:
    """Workers of the forward ops' parts; the backward ones must be the same."""
    free = np.ones(cluster.num_workers, bool)
    free[list(taken)] = False
    found = place(graph, np.array([*split, *split[::-1]]), cluster, free)
    if found is None:
        return None
    workers = [own.tolist() for own in found.workers]
    assert workers == workers[::-1]
    assert found.held.tolist() == sorted({worker for own in workers for worker in own})
    return workers[: len(split)]


# Degrees


@pytest.mark.parametrize(
    ("quanta", "wanted"),
    [(0.0, 1), (0.3, 2), (1.0, 2), (2.0, 2), (2.1, 4), (3.0, 4), (4.0, 4), (4.5, 6), (6.0, 6), (7.0, 8)],
)
def test_as_many_even_parts_as_there_are_quanta(quanta: float, wanted: int) -> None:
    """In seconds or milliseconds; a time that is a whole number of quanta is not one more."""
    for unit in (1.0, 1e-3, 7.0):
        graph = job([], [0.0, 0.0], [quanta * QUANTUM * unit, 5.0 * unit])
        for degree in AVAILABLE:
            split = degrees_of_ops(graph, degree, QUANTUM * unit, AVAILABLE)
            assert split.tolist() == [min(wanted, degree), degree, degree, min(wanted, degree)]


def test_backward_times_do_not_count() -> None:
    graph = mirrored(profile([0.0, 1.0], [(0, 1)], backward=[5.0, 0.0]))
    assert degrees_of_ops(graph, 8, QUANTUM, AVAILABLE).tolist() == [1, 8, 8, 1]


def test_degrees_without_blocks_are_rounded_down() -> None:
    # 9 quanta make 10 parts, 11 make 12, 15 make 16.
    graph = job([], [0.0] * 3, [0.09, 0.11, 0.15])
    assert degrees_of_ops(graph, 16, QUANTUM, AVAILABLE)[:3].tolist() == [8, 8, 16]
    assert degrees_of_ops(graph, 16, QUANTUM, [1, 2, 4, 8, 12])[:3].tolist() == [8, 12, 12]
    assert degrees_of_ops(graph, 14, QUANTUM, AVAILABLE)[:3].tolist() == [8, 8, 8]


@needs_profiles
@pytest.mark.parametrize("name", ["alexnet", "resnet18", "squeezenet1_0", "vgg16", "gnmt"])
def test_only_gnmt_has_ops_in_between(name: str) -> None:
    graph = mirrored(read_profile(PROFILES / f"{name}.txt", 1.0))
    for degree in AVAILABLE[1:]:
        split = set(degrees_of_ops(graph, degree, QUANTUM, AVAILABLE).tolist())
        # Its dropouts and embeddings take 5.5 to 7.7 quanta.
        between = {d for d in (6, 8) if d <= degree} if name == "gnmt" else set()
        assert split - {1} == {degree} | between
        # What takes no time stays whole.
        whole = degrees_of_ops(graph, degree, QUANTUM, AVAILABLE)[: graph.num_forward] == 1
        np.testing.assert_array_equal(whole, graph.profile.forward_time == 0.0)


# Placement by hand, on 2 groups of 2 racks of 2 servers: pairs are tried as 04, 15, 26, 37, then 01, 23, 45, 67


SMALL = Ramp(2, 2, 2, worker_memory=10.0)


def test_blocks_of_the_hand_cases() -> None:
    assert SMALL.blocks(2).workers[:8].tolist() == [
        [0, 4],
        [1, 5],
        [2, 6],
        [3, 7],
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    assert SMALL.blocks(4).workers[0].tolist() == [0, 2, 4, 6]


def test_first_fit_skips_the_workers_of_others() -> None:
    assert placed(job([], [1.0]), [2], SMALL) == [[0, 4]]
    assert placed(job([], [1.0]), [2], SMALL, taken=(0,)) == [[1, 5]]
    # Only the diagonal is left, and then not even that.
    assert placed(job([], [1.0]), [2], SMALL, taken=(0, 3, 5, 6)) == [[1, 7]]
    assert placed(job([], [1.0]), [2], SMALL, taken=(0, 3, 5, 6, 7)) is None
    assert placed(job([], [1.0]), [2], SMALL, taken=(4, 5, 2, 3)) == [[0, 1]]
    assert placed(job([], [1.0]), [1], SMALL, taken=(0, 1, 2)) == [[3]]
    assert placed(job([], [1.0]), [4], SMALL, taken=(6,)) == [[1, 3, 5, 7]]


def test_an_op_goes_where_its_parent_is() -> None:
    graph = job([(0, 1)], [1.0, 1.0])
    assert placed(graph, [2, 2], SMALL, taken=(0,)) == [[1, 5], [1, 5]]


def test_a_parent_in_another_number_of_parts_is_no_parent() -> None:
    """The op takes the first block of its own size, on workers that the job has already or not."""
    graph = job([(0, 1), (1, 2)], [1.0, 1.0, 1.0])
    assert placed(graph, [1, 2, 4], SMALL) == [[0], [0, 4], [0, 2, 4, 6]]
    assert placed(graph, [4, 1, 2], SMALL, taken=(0,)) == [[1, 3, 5, 7], [1], [1, 5]]


def test_full_workers_are_left_for_the_next_block() -> None:
    """Each op needs its bytes in both passes: 2 x 6 in two parts of 6, and 10 fit on a worker."""
    assert placed(job([(0, 1)], [6.0, 6.0]), [2, 2], SMALL) == [[0, 4], [1, 5]]
    assert placed(job([(0, 1)], [6.0, 4.0]), [2, 2], SMALL) == [[0, 4], [0, 4]]
    # Four blocks of two are disjoint; the others share a worker with one that is full.
    ring = [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert placed(job(ring[:3], [6.0] * 4), [2] * 4, SMALL) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert placed(job(ring, [6.0] * 5), [2] * 5, SMALL) is None


def test_the_second_parent_is_asked_where_the_first_one_is_full() -> None:
    graph = job([(0, 2), (1, 2)], [6.0, 5.0, 5.0])
    # Ops 0 and 1 have no parents: the second takes the next block because the first one is full.
    assert placed(graph, [2, 2, 2], SMALL, taken=(3, 7)) == [[0, 4], [1, 5], [1, 5]]
    # Where neither has room it is first fit again.
    graph = job([(0, 2), (1, 2)], [6.0, 6.0, 5.0])
    assert placed(graph, [2, 2, 2], SMALL, taken=(3, 7)) == [[0, 4], [1, 5], [2, 6]]


def test_parents_come_before_children_whatever_their_ids() -> None:
    """Op 0 is the child of op 1: in the order of ids it would take the first block itself."""
    graph = job([(1, 0)], [1.0, 4.0])
    assert placed(graph, [1, 1], SMALL, taken=(0,)) == [[1], [1]]
    graph = job([(1, 0)], [3.0, 4.0])
    assert placed(graph, [1, 1], SMALL, taken=(0,)) == [[2], [1]]


def test_exact_holding_is_one_block_for_everything() -> None:
    graph = job([(0, 1), (1, 2)], [9.0, 9.0, 9.0])
    found = place_exactly(graph, np.array([1, 4, 2, 2, 4, 1]), np.array([7, 3, 5, 1], np.int32))
    assert [own.tolist() for own in found.workers[:3]] == [[7], [7, 3, 5, 1], [7, 3]]
    assert found.held.tolist() == [1, 3, 5, 7]


# The compiled placement


def expected(world: World, release: np.ndarray, now: float, m: int, j: int) -> tuple[list[int], float] | None:
    """Workers held and completion time, from the plain placement; None where there is no room.

    The time is that of the job on the first block of the same shape as the first one of the largest degree, on a
    cluster that is empty otherwise.
    """
    graph, cluster = world.models[m], world.cluster
    known = world.tables.degree.tolist()
    split = degrees_of_ops(graph, known[j], QUANTUM * world.time_unit, known)
    largest = int(split.max())
    blocks = cluster.blocks(largest)
    free = release <= now
    if world.holding == "exact":
        fitting = [i for i, row in enumerate(blocks.workers) if free[row].all()]
        if not fitting:
            return None
        like = place_exactly(graph, split, blocks.of_kind(int(blocks.kind[fitting[0]])))
        needed = np.zeros(cluster.num_workers)
        for op, workers in enumerate(like.workers):
            needed[workers] += graph.memory[op] / len(workers)
        if needed.max() > cluster.worker_memory:
            return None
        return sorted(blocks.workers[fitting[0]].tolist()), simulate_job(graph, like, cluster).jct
    found = place(graph, split, cluster, free)
    if found is None:
        return None
    first = next(op for op in graph.forward_order if split[op] == largest)
    row = int(np.flatnonzero((blocks.workers == found.workers[first]).all(1))[0])
    block = blocks.of_kind(int(blocks.kind[row]))
    like_it = place(graph, split, cluster, np.ones(cluster.num_workers, bool), {largest: block})
    assert like_it is not None
    return found.held.tolist(), simulate_job(graph, like_it, cluster).jct


@settings(max_examples=60)
@given(
    st.integers(0, 10**6), st.sampled_from(["faithful", "exact"]), st.sampled_from([80e9, 5e9, 2.5e9, 2e9])
)
def test_compiled_placement_is_the_plain_one(seed: int, holding: str, memory: float) -> None:
    """In random holes of random clusters, where memory binds (an op has up to 4 GB) and where it does not."""
    try:
        world = random_world(seed, holding, memory)
    except InputError:
        return
    rng = np.random.default_rng(seed)
    held = np.zeros(world.tables.workers, bool)
    for _ in range(3):
        release = random_release(rng, len(held), now=2.0, longest=5.0)
        for m in range(len(world.models)):
            for j in range(len(world.tables.degree)):
                wanted = expected(world, release, 2.0, m, j)
                time = try_place(world.tables, release, 2.0, m, j, held)
                if wanted is None:
                    assert time < 0.0
                else:
                    assert np.flatnonzero(held).tolist() == wanted[0]
                    assert time == pytest.approx(wanted[1], rel=1e-12)


def test_an_op_without_bytes_stays_with_its_parent_on_a_full_worker() -> None:
    """2 x 4 bytes fill the first worker; the next op needs none, and the one after it another worker."""
    graph = mirrored(
        profile([0.0, 0.0, 0.0, 1.0], [(0, 1), (1, 2), (2, 3)], [1.0] * 4, activation=[4.0, 0.0, 1.0, 0.0])
    )
    cluster = Ramp(2, 2, 2, worker_memory=8.0)
    world = make_world(cluster, [graph], 1.0)
    held = np.zeros(8, bool)
    assert world.tables.binds.all()
    for j, degree in enumerate(degrees(cluster)):
        found = placed(graph, [1, 1, 1, degree], cluster)
        assert found is not None
        assert found[:3] == [[0], [0], [1]]
        assert try_place(world.tables, np.zeros(8), 0.0, 0, j, held) > 0.0
        assert set(np.flatnonzero(held)) == {worker for own in found for worker in own}


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(["faithful", "exact"]))
def test_a_job_of_one_degree_takes_as_long_as_where_it_is(seed: int, holding: str) -> None:
    """The tables know blocks by shape alone; such a job's time is that of its own place."""
    rng = np.random.default_rng(seed)
    graph = mirrored(
        profile(
            rng.uniform(0.2, 3.0, 4).tolist(),
            [(0, 1), (0, 2), (1, 3), (2, 3)],
            activation=(1e9 * rng.random(4)).tolist(),
        )
    )
    cluster = Ramp(4, 4, 2, node_bandwidth=4e9)
    world = make_world(cluster, [graph], 1.0, holding)
    release = random_release(rng, 32, now=1.0, longest=5.0)
    held = np.zeros(32, bool)
    for j, degree in enumerate(degrees(cluster)):
        time = try_place(world.tables, release, 1.0, 0, j, held)
        found = place(graph, np.full(8, degree), cluster, release <= 1.0)
        if found is None:
            assert time < 0.0
        else:
            assert time == pytest.approx(simulate_job(graph, found, cluster).jct, rel=1e-12)
            assert np.flatnonzero(held).tolist() == found.held.tolist()


@given(st.integers(0, 10**6))
def test_first_fit_is_the_first_block_that_is_free(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = random_world(seed % 7)
    release = random_release(rng, world.tables.workers, now=2.0, longest=5.0)
    # Released now is free now.
    release[rng.integers(len(release))] = 2.0
    for j, degree in enumerate(world.tables.degree.tolist()):
        rows = world.cluster.blocks(degree).workers
        fitting = [i for i, row in enumerate(rows.tolist()) if all(release[w] <= 2.0 for w in row)]
        found = first_fit(world.tables, release, 2.0, j)
        assert found == (world.tables.block_start[j] + fitting[0] if fitting else -1)


@needs_profiles
@pytest.mark.parametrize("number", range(5))
def test_an_accepted_job_of_16_parts_holds_16_workers_but_for_gnmt(number: int) -> None:
    """GNMT's ops of 6 and of 8 parts take blocks of their own that stick out of the main one."""
    graph = mirrored(read_profile(sorted(PROFILES.glob("[!L]*.txt"))[number], 1.0))
    world = make_world(Ramp(published=True), [graph], 1.0)
    held = np.zeros(32, bool)
    assert try_place(world.tables, np.zeros(32), 0.0, 0, 5, held) > 0.0
    assert held.sum() == (21 if graph.name == "gnmt" else 16)


# Ops that are too large


@pytest.mark.parametrize("larger", ["activation_size", "parameter_size"])
def test_an_op_too_large_for_any_worker_is_refused(larger: str, tmp_path: Path) -> None:
    sizes = {"activation_size": 30.0, "parameter_size": 30.0} | {larger: 80.0}
    path = tmp_path / "large.txt"
    path.write_text(
        "node1 -- Input -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n"
        "\tnode1 -- node2\n"
        "node2 -- Linear(9, 9) -- forward_compute_time=1, backward_compute_time=1, "
        f"activation_size={sizes['activation_size']}, parameter_size={sizes['parameter_size']}\n"
    )
    graph = mirrored(read_profile(path))
    # 220 bytes in both passes, in 8 parts, beside half a byte of the other op.
    make_world(Ramp(2, 2, 2, worker_memory=28.0), [graph], 1e-3)
    with pytest.raises(InputError) as caught:
        make_world(Ramp(2, 2, 2, worker_memory=27.4), [graph], 1e-3)
    message = str(caught.value)
    for part in (f"{path}: line 3: node2: {larger}: ", "27.5", "27.4", "8 ways", "ramp8"):
        assert part in message
    assert "\n" not in message


def test_an_op_that_is_never_split_must_fit_whole() -> None:
    """No time, no parts: 2 x 20 bytes on one worker, whatever the degree."""
    graph = job([(0, 1)], [20.0, 0.0], [0.0, 1.0])
    make_world(Ramp(2, 2, 2, worker_memory=40.0), [graph], 1.0)
    with pytest.raises(InputError, match=r"^job: node1: activation_size: .*1 ways"):
        make_world(Ramp(2, 2, 2, worker_memory=39.0), [graph], 1.0)


def test_a_job_too_large_for_all_blocks_is_refused() -> None:
    """Every op fits somewhere, but a job that holds exactly one block has no room on any."""
    graph = job([(0, 1)], [10.0, 10.0])
    cluster = Ramp(2, 2, 2, worker_memory=4.9)
    make_world(Ramp(2, 2, 2, worker_memory=5.0), [graph], 1.0, "exact")
    with pytest.raises(InputError, match=r"^job: .* fit on no block of ramp8") as caught:
        make_world(cluster, [graph], 1.0, "exact")
    assert "\n" not in str(caught.value)
