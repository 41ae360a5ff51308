"""The compiled event loop against ``AllReduceEnv``, decision by decision."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from cases import decisions, instance_and_env, random_scores

from gnnsched.collective.decode.decoder import Decoding, Episode, Instance, Stopped
from gnnsched.collective.decode.presets import (
    GREEDY_AUGMENTED,
    TREES_AUGMENTED,
    greedy_scores,
    linear_scores,
    tree_scores,
)
from gnnsched.collective.decode.relays import worth_keeping
from gnnsched.collective.decode.shapes import DIRECT, Shape
from gnnsched.collective.decode.state import CHOICE, COMMITTED, FREE, NEEDED, NOW, PICK
from gnnsched.collective.mirror import allreduce_from_broadcast
from gnnsched.collective.schedule import Transfers
from gnnsched.collective.verify import verify
from gnnsched.envs.allreduce import AllReduceEnv
from gnnsched.topology import Topology
from gnnsched.topology.generators import bcube, dgx, fat_tree, random_heterogeneous, star, torus


def network(seed: int, most: int = 5) -> Topology:
    """A random network; in every fourth some servers only relay."""
    topology = random_heterogeneous(seed, 3, most)
    servers = topology.servers
    if seed % 4 == 3 and len(servers) > 3:
        participant = ~topology.is_switch
        participant[servers[1 : len(servers) - 2]] = False
        topology = replace(topology, is_participant=participant)
    return topology


def case(seed: int, augment: bool, floor: float, window: float, size: float) -> tuple:
    """Instance, environment at its first event, decoding and a recorded random episode."""
    rng = np.random.default_rng(seed)
    decoding = Decoding(augment=augment, floor=floor, window=window, allow_none=seed % 5 > 0)
    instance, env = instance_and_env(
        network(seed), size, int(rng.integers(1, 4)), decoding, rng if seed % 2 else None
    )
    scores = random_scores(instance, rng, take=rng.choice([-2.0, 0.0, 2.0]))
    return instance, env, decoding, scores, instance.decode(scores, decoding, rng, record=True)


def assert_same_transfers(ours: Transfers, theirs: Transfers) -> None:
    """Equal as sets of rows, times and rates to rounding."""
    assert len(ours) == len(theirs)
    one, other = np.lexsort((ours.chunk, ours.target)), np.lexsort((theirs.chunk, theirs.target))
    for name in ("chunk", "source", "target"):
        np.testing.assert_array_equal(getattr(ours, name)[one], getattr(theirs, name)[other])
    makespan = ours.end.max()
    np.testing.assert_allclose(ours.rate[one], theirs.rate[other], rtol=1e-9)
    np.testing.assert_allclose(ours.start[one], theirs.start[other], rtol=1e-9, atol=1e-9 * makespan)
    np.testing.assert_allclose(ours.end[one], theirs.end[other], rtol=1e-9, atol=1e-9 * makespan)
    for i, j in zip(one, other):
        np.testing.assert_array_equal(
            ours.path_links[ours.path_start[i] : ours.path_start[i + 1]],
            theirs.path_links[theirs.path_start[j] : theirs.path_start[j + 1]],
        )


@pytest.mark.parametrize("window", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("floor", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("seed", range(8))
def test_every_decision_of_a_plain_pass(seed: int, floor: float, window: float) -> None:
    """Masks contain each pick and choice when they are made; times, rates, makespan and rewards are the same."""
    size = 10.0 ** (4 + seed % 4)
    instance, env, _, _, episode = case(seed, False, floor, window, size)
    tape = episode.tape
    assert len(tape.picks) == len(tape.choices)
    total = 0.0
    steps = 0
    for path, chunk in zip(tape.picks.tolist(), tape.choices.tolist()):
        steps += 1
        choice = chunk if chunk >= 0 else len(instance.roots)
        assert env.action_masks()[path, choice]
        _, reward, terminated, truncated, _ = env.step(np.array([path, choice]))
        assert not truncated
        total += reward
        if terminated:
            break
    assert terminated
    # the compiled loop ends with the event, in which it may still feed relays; they are no part of the plan
    for path, chunk in zip(tape.picks[steps:], tape.choices[steps:]):
        assert chunk == -1 or not instance.participants[instance.paths.target[path]]
    assert_same_transfers(instance.transfers(episode.state), env.transfers())
    assert env.loop.event == episode.events
    assert env.loop.makespan == pytest.approx(episode.makespan, rel=1e-9)
    assert total == pytest.approx(-episode.makespan / env.bound, rel=1e-9)


@pytest.mark.parametrize("seed", range(16))
def test_net_transfers_of_an_augmented_episode(seed: int) -> None:
    """What augmentation leaves of each event are legal actions at that event, in any order.

    Without leftover rates and with transfers longer than the window, none of an event's transfers depends on
    one that was taken back in it.
    """
    window = 1.0 if seed % 2 else 0.0
    instance, env, _, _, episode = case(seed, True, 2.0, window, 1e8)
    state = episode.state
    slots = np.flatnonzero(state.slot_state == COMMITTED)
    slots = slots[np.lexsort((state.slot_start[slots], state.slot_event[slots]))]
    total, terminated = 0.0, False
    none = len(instance.roots)
    for slot in slots:
        target = instance.paths.target[state.slot_path[slot]]
        if terminated:
            assert not instance.participants[target]
            continue
        while env.loop.event < state.slot_event[slot]:
            left_idle = int(np.flatnonzero(env.loop.path_mask())[0])
            _, reward, _, _, info = env.step(np.array([left_idle, none]))
            assert not info["illegal"]
            total += reward
        assert env.loop.event == state.slot_event[slot]
        action = np.array([state.slot_path[slot], state.slot_chunk[slot]])
        _, reward, terminated, _, info = env.step(action)
        assert not info["illegal"]
        total += reward
    assert terminated
    assert_same_transfers(instance.transfers(state), env.transfers())
    assert total == pytest.approx(-episode.makespan / env.bound, rel=1e-9)


def audit(instance: Instance, env: AllReduceEnv, episode: Episode) -> None:
    """Data, bandwidths with the flows, and times of a decoded plan by plain means."""
    plan, topology = instance.transfers(episode.state), instance.topology
    schedule = allreduce_from_broadcast(
        topology, env.message_bytes, instance.root_nodes, lambda _: plan, {"name": "kernel"}
    )
    verdict = verify(schedule)
    assert verdict.ok, verdict.fault
    flows = instance.flows
    uses: list[list[tuple[float, float, float]]] = [[] for _ in range(topology.num_links)]
    for f in range(flows.num_flows):
        for link in flows.links[flows.start[f] : flows.start[f + 1]]:
            uses[link].append((flows.since[f], flows.until[f], flows.rate[f]))
    for i in range(len(plan)):
        begin = plan.start[i]
        for link in plan.path_links[plan.path_start[i] : plan.path_start[i + 1]]:
            uses[link].append((begin, begin + instance.chunk_bytes / plan.rate[i], plan.rate[i]))
            begin += topology.latency[link]
    for link, rows in enumerate(uses):
        for begin, _, _ in rows:
            moment = begin + 1e-9 * instance.time_scale
            taken = sum(rate for start, end, rate in rows if start <= moment < end)
            assert taken <= topology.bandwidth[link] * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(24))
def test_augmented_plans_with_leftover_rates_hold_water(seed: int) -> None:
    rng = np.random.default_rng(seed)
    window = float(rng.choice([0.0, 1.0, 3.0]))
    instance, env, _, _, episode = case(seed, True, 0.05, window, 10.0 ** rng.uniform(3, 9))
    audit(instance, env, episode)
    greedy = instance.decode(greedy_scores(instance), GREEDY_AUGMENTED, rng)
    audit(instance, env, greedy)
    trees = instance.decode(tree_scores(instance), TREES_AUGMENTED, rng)
    audit(instance, env, trees)
    plan = instance.transfers(trees.state)
    number = np.full(instance.topology.num_nodes, -1)
    number[instance.paths.nodes] = np.arange(instance.paths.num_servers)
    np.testing.assert_array_equal(
        instance.problem.tree_source[number[plan.target], plan.chunk], number[plan.source]
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("augment", [False, True])
def test_books_balance_at_the_end(seed: int, augment: bool) -> None:
    """Whatever was taken back on the way left no trace."""
    instance, _, _, scores, episode = case(seed, augment, 0.05, 3.0, 1e6)
    state, pr = episode.state, instance.problem
    slots = np.flatnonzero(state.slot_state == COMMITTED)
    servers, chunks = state.arrival.shape
    path, chunk = state.slot_path[slots], state.slot_chunk[slots]
    target = instance.paths.target[path]
    # arrivals are those of the transfers and the roots, one per server and chunk
    arrival = np.full((servers, chunks), np.inf)
    arrival[instance.roots, np.arange(chunks)] = 0.0
    assert len(set(zip(target.tolist(), chunk.tolist()))) == len(slots)
    assert np.isinf(arrival[target, chunk]).all()
    arrival[target, chunk] = state.slot_end[slots]
    np.testing.assert_array_equal(arrival, state.arrival)
    known = np.isfinite(arrival)
    assert known[instance.participants].all()
    assert state.counter[NEEDED] == 0
    np.testing.assert_array_equal(known.sum(0), state.holders)
    near = np.einsum("hsd,sc->hdc", scores.attention, known.astype(float))
    np.testing.assert_allclose(state.near, near, atol=1e-9)
    # wants: bits and counts agree; a relay may still want what it was not needed for
    bits = np.unpackbits(state.wants.view(np.uint8), axis=1, bitorder="little")[:, :chunks].astype(bool)
    np.testing.assert_array_equal(bits.sum(1), state.need)
    assert not (bits & known).any()
    # slots are either in use or free, once
    free = state.free[: state.counter[FREE]]
    assert sorted([*free.tolist(), *slots.tolist()]) == list(range(servers * chunks + 8))
    # a link's list has the bookings that are not over, once each
    longest = int(state.longest[0])
    for link in range(instance.topology.num_links):
        listed = []
        booking = state.head[link]
        while booking >= 0:
            listed.append(int(booking))
            booking = state.next[booking]
        assert len(set(listed)) == len(listed)
        for slot in slots:
            p = state.slot_path[slot]
            for k in range(pr.start[p], pr.start[p + 1]):
                if pr.links[k] == link and state.ends[slot * longest + k - pr.start[p]] > state.real[NOW]:
                    assert int(slot * longest + k - pr.start[p]) in listed
        for booking in listed:
            assert booking // longest in slots or booking // longest >= servers * chunks + 8


def test_relays_that_serve_nobody_are_left_out() -> None:
    """0 -> relay 2 -> relay 3 -> 1 stays; relay 4, and 5 behind it, feed nobody with chunk 0."""
    rows = [(0, 0, 2), (0, 2, 3), (0, 3, 1), (0, 0, 4), (0, 4, 5), (1, 1, 4), (1, 4, 0)]
    chunk, source, target = (np.array(column, np.int32) for column in zip(*rows))
    participant = np.array([True, True, False, False, False, False])
    kept = worth_keeping(chunk, source, target, np.repeat(participant[:, None], chunk.max() + 1, 1))
    assert kept.tolist() == [True, True, True, False, False, True, True]


def test_augmentation_asks_again_and_counts_it() -> None:
    """Its choices are on the tape beside those of the pass."""
    topology = dgx(2, 3)
    instance = Instance(topology, 1e8, 2)
    rng = np.random.default_rng(0)
    episode = instance.decode(random_scores(instance, rng, 1.0), Decoding(), rng, record=True)
    assert episode.state.counter[CHOICE] == len(episode.tape.choices)
    assert episode.state.counter[PICK] == len(episode.tape.picks)
    assert len(episode.tape.choices) > len(episode.tape.picks)


def test_recording_changes_nothing_and_seeds_decide() -> None:
    instance = Instance(bcube(2, 1), 1e6, 2)
    scores = random_scores(instance, np.random.default_rng(1))
    for augment in (False, True):
        decoding = Decoding(augment=augment)
        plain, recorded, other = (
            instance.decode(scores, decoding, np.random.default_rng(seed), record=record)
            for seed, record in ((2, False), (2, True), (3, False))
        )
        assert_same_transfers(instance.transfers(plain.state), instance.transfers(recorded.state))
        assert plain.makespan == recorded.makespan
        assert not np.array_equal(plain.state.arrival, other.state.arrival)


@pytest.mark.parametrize(
    ("message", "chunks", "alike"), [(2.0**12, 2, True), (2.0**30, 2, False), (2.0**12, 16, False)]
)
def test_augmentation_is_left_out_where_latency_leaves_ports_idle(
    message: float, chunks: int, alike: bool
) -> None:
    """The same plans as without it for few small chunks, others for large ones and for many."""
    network = dgx(2, 3)
    for seed in range(3):
        instance = Instance(network, message, chunks, seed)
        scores = random_scores(instance, np.random.default_rng(1))
        with_it, without = (Decoding(augment=augment) for augment in (True, False))
        assert instance.augments(with_it) != alike
        assert not instance.augments(without)
        found = [instance.decode(scores, d, np.random.default_rng(2)) for d in (with_it, without)]
        assert np.array_equal(found[0].state.arrival, found[1].state.arrival) == alike
    assert Instance(network, message, chunks, shape=Shape(DIRECT, network, chunks)).augments(Decoding())


def test_a_declining_policy_outgrows_its_first_tape_and_is_recorded_whole() -> None:
    instance = Instance(fat_tree(4), 1e9, 1)
    scores = random_scores(instance, np.random.default_rng(0), spread=0.0)
    scores.chunk[:, 0] = -6.0
    for augment in (False, True):
        decoding = Decoding(augment=augment)
        episode = instance.decode(scores, decoding, np.random.default_rng(0), record=True)
        assert len(episode.tape.picks) > 8 * 16 * 16 + 1024
        plain = instance.decode(scores, decoding, np.random.default_rng(0))
        np.testing.assert_array_equal(plain.state.arrival, episode.state.arrival)
        again = instance.replay(scores, decoding, episode.tape, episode.state.random)
        np.testing.assert_array_equal(again.state.arrival, episode.state.arrival)


def test_dominant_scores_decide() -> None:
    """Order value and chunk score of the best path and chunk, far above the others, are always taken."""
    instance, env = instance_and_env(star([1e9] * 3), 1e6, 2, Decoding(augment=False))
    scores = random_scores(instance, np.random.default_rng(0), spread=0.0)
    scores.path[:, 0] = -100.0 * np.arange(instance.paths.num_paths)
    scores.chunk[:, 10] = 1e4  # the random priority
    scores.chunk[:, 0] = 1e6
    episode = instance.decode(scores, Decoding(augment=False), np.random.default_rng(4), record=True)
    for decision in decisions(instance, env, episode):
        assert decision.path == decision.legal.min()
        assert decision.chunk == max(decision.candidates, key=lambda c: episode.state.random[c])


def test_an_episode_is_given_up_when_another_thread_says_so() -> None:
    """Before it begins, and in the middle: the loop looks at each event."""
    instance = Instance(torus(6, 6), 2.0**30, 16)
    scores = linear_scores(instance)
    with pytest.raises(Stopped):
        instance.decode(scores, Decoding(), np.random.default_rng(0), stop=np.ones(1, bool))
    whole = instance.decode(scores, Decoding(), np.random.default_rng(0), stop=np.zeros(1, bool))
    assert whole.makespan == instance.decode(scores, Decoding(), np.random.default_rng(0)).makespan
    given_up = 0
    for seed in range(5):
        stop = np.zeros(1, bool)
        timer = threading.Timer(0.02, stop.fill, [True])
        timer.start()
        try:
            instance.decode(scores, Decoding(), np.random.default_rng(seed), stop=stop)
        except Stopped:
            given_up += 1
        timer.join()
    # One may have looked for the last time just before.
    assert given_up >= 4
