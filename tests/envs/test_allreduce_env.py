"""The environment's rules: masks, times, flows, ends, and the optimum of instances where it is known."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from playing import RATE, check_plan, flow, legal_action, line, path_between, play

from gnnsched.collective.decode.problem import NO_FLOWS
from gnnsched.envs.allreduce import AllReduceEnv
from gnnsched.envs.event_loop import EventLoop
from gnnsched.topology import Topology
from gnnsched.topology.generators import bcube, random_heterogeneous, star, torus


def test_hundred_thousand_steps_inside_the_mask_of_their_time() -> None:
    rng = np.random.default_rng(0)
    envs = [
        AllReduceEnv(star([RATE, RATE, 4 * RATE]), random_flows=0.3),
        AllReduceEnv(bcube(2, 1), message_bytes=1e5, random_flows=0.3),
        AllReduceEnv(random_heterogeneous(8, 3, 4), 1e6, 2, window=1.0),
        AllReduceEnv(torus(2, 2), 1e4, 2, window=0.0, floor=2.0),
    ]
    steps = finished = 0
    while steps < 100_000:
        env = envs[finished % len(envs)]
        _, info = env.reset(seed=finished)
        reach = env.loop.network.window + env.loop.network.tolerance
        source, target = env.instance.paths.source, env.instance.paths.target
        # who gets what when, kept apart from the environment's own books
        arrival = np.full(env.observation_space["status"].shape, np.inf)
        arrival[env.instance.roots, np.arange(arrival.shape[1])] = 0.0
        total, terminated = 0.0, False
        while not terminated:
            action = legal_action(env, info["action_mask"], rng)
            path, chunk = action.tolist()
            if chunk < arrival.shape[1]:
                assert arrival[source[path], chunk] <= env.loop.now + reach
                assert arrival[target[path], chunk] == np.inf
            decided = len(env.loop.transfers)
            _, reward, terminated, truncated, info = env.step(action)
            assert not truncated
            assert not info["illegal"]
            if chunk < arrival.shape[1]:
                assert env.loop.transfers[decided][:2] == (path, chunk)
                arrival[target[path], chunk] = env.loop.transfers[decided][4]
            assert len(env.loop.transfers) == decided + (chunk < arrival.shape[1])
            total += reward
            steps += 1
        assert total == pytest.approx(-info["makespan"] / env.bound)
        assert info["makespan"] == pytest.approx(arrival.max())
        finished += 1
        if finished % 25 == 0:
            check_plan(env)


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_end_in_right_schedules(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_heterogeneous(seed, 3, 6)
    if seed % 3 == 0:  # some servers only relay
        participant = ~topology.is_switch
        participant[np.flatnonzero(participant)[2:4]] = False
        topology = replace(topology, is_participant=participant)
    env = AllReduceEnv(topology, 10.0 ** rng.uniform(3, 9), int(rng.integers(1, 3)), random_flows=0.7)
    play(env, rng, seed=seed)
    check_plan(env)


@pytest.mark.parametrize("servers", [2, 3, 4])
def test_star_reaches_its_closed_form(servers: int) -> None:
    """In round r server d gets the chunk of server d + r: every link is busy all the time."""
    latency = 1e-6
    env = AllReduceEnv(star([RATE] * servers, latency=latency), message_bytes=servers * 1e6)
    env.reset()
    total = 0.0
    for distance in range(1, servers):
        for target in range(servers):
            source = (target + distance) % servers
            _, reward, terminated, _, info = env.step(np.array([path_between(env, source, target), source]))
            assert not info["illegal"]
            total += reward
    work = 1e6 / RATE
    assert terminated
    assert env.bound == pytest.approx((servers - 1) * work)
    assert info["makespan"] == pytest.approx((servers - 1) * work + 2 * latency)
    assert total == pytest.approx(-info["makespan"] / env.bound)


@pytest.mark.parametrize(("topology", "best"), [(star([RATE] * 3, latency=0.0), 1.0), (line(3), 1.0)])
def test_no_sequence_of_actions_beats_the_bound_and_one_reaches_it(topology: Topology, best: float) -> None:
    env = AllReduceEnv(topology)
    env.reset()
    makespans = []
    seen = set()

    def search(loop: EventLoop) -> None:
        # without latency and leftover rates this is all that the future depends on
        state = (loop.now, loop.forced, loop.arrival.tobytes(), loop.settled.tobytes())
        if state in seen:
            return
        seen.add(state)
        paths = np.flatnonzero(loop.path_mask())
        if loop.missing == 0:
            makespans.append(loop.makespan)
            return
        if len(paths) == 0:
            assert loop.advance()
            search(loop)
            return
        path = int(paths[0])
        for chunk in np.flatnonzero(loop.chunk_mask(path)).tolist():
            after = copy.deepcopy(loop)
            after.serve(path, chunk)
            search(after)
        if not loop.forced:
            loop.decline(path)
            search(loop)

    search(env.loop)
    assert min(makespans) / env.bound == pytest.approx(best)
    assert max(makespans) / env.bound > 1.5


def only_legal(env: AllReduceEnv, source: int, target: int, chunk: int) -> dict:
    _, _, _, _, info = env.step(np.array([path_between(env, source, target), chunk]))
    assert not info["illegal"]
    return info


def test_flow_delays_what_shares_its_links() -> None:
    env = AllReduceEnv(star([RATE] * 2, latency=0.0), message_bytes=2e6)
    work = 1e6 / RATE
    path = path_between(env, 0, 1)
    # the whole link until 2.5 transfer times: the transfer waits for it
    _, info = env.reset(options={"flows": flow(env, path, 1.0, 2.5 * work)})
    assert info["action_mask"].tolist() == [int(p != path) for p in range(2)]
    only_legal(env, 1, 0, 1)
    assert env.loop.now == pytest.approx(2.5 * work)
    assert only_legal(env, 0, 1, 0)["makespan"] == pytest.approx(3.5 * work)
    # half of it: the transfer takes the other half at once
    observation, _ = env.reset(options={"flows": flow(env, path, 0.5, 9 * work)})
    assert observation["flow_rate"].tolist() == [0.5, 0, 0, 0]
    assert observation["flow_time_left"][0] == pytest.approx(9 * work / env.bound)
    assert observation["path_rate"][path] == pytest.approx(0.5)
    assert observation["link_left"][env.instance.paths.links[env.instance.paths.start[path]]] == 0.5
    only_legal(env, 1, 0, 1)
    assert only_legal(env, 0, 1, 0)["makespan"] == pytest.approx(2 * work)
    # another reset has no flow any more
    env.reset()
    only_legal(env, 1, 0, 1)
    assert only_legal(env, 0, 1, 0)["makespan"] == pytest.approx(work)
    # less than the floor is left: wait
    env = AllReduceEnv(star([RATE] * 2, latency=0.0), message_bytes=2e6, floor=0.6)
    env.reset(options={"flows": flow(env, path, 0.5, 0.5 * work)})
    only_legal(env, 1, 0, 1)
    assert only_legal(env, 0, 1, 0)["makespan"] == pytest.approx(1.5 * work)


def test_decision_window_starts_a_path_that_opens_within_it() -> None:
    latency = 1e-4
    env = AllReduceEnv(star([RATE] * 2, latency=latency), message_bytes=4e7, window=1.0)
    path = path_between(env, 0, 1)
    # the window is the longest path's latency, 2e-4 s: less than a fiftieth of a transfer
    _, info = env.reset(options={"flows": flow(env, path, 1.0, 1.9e-4)})
    assert info["action_mask"].all()
    only_legal(env, 0, 1, 0)
    assert env.loop.transfers[0][3] == pytest.approx(1.9e-4)
    _, info = env.reset(options={"flows": flow(env, path, 1.0, 2.1e-4)})
    assert not info["action_mask"][path]


def test_a_fast_link_carries_slow_transfers_side_by_side() -> None:
    env = AllReduceEnv(star([2 * RATE, RATE, RATE], latency=0.0), message_bytes=3e6)
    env.reset()
    only_legal(env, 0, 1, 0)
    only_legal(env, 0, 2, 0)
    assert [row[2:4] for row in env.loop.transfers] == [(RATE, 0.0)] * 2


def test_forced_where_everything_was_declined() -> None:
    env = AllReduceEnv(star([RATE] * 2))
    observation, info = env.reset()
    assert not observation["forced"][0]
    for _ in range(2):
        path = int(np.flatnonzero(info["action_mask"])[0])
        observation, reward, _, _, info = env.step(np.array([path, 2]))
        assert reward == 0.0
    assert observation["forced"][0]
    path = int(np.flatnonzero(info["action_mask"])[0])
    assert env.chunk_mask(path).tolist() in ([1, 0, 0], [0, 1, 0])
    assert env.step(np.array([path, 2]))[4]["illegal"]


@pytest.mark.parametrize("seed", range(8))
def test_an_agent_that_declines_all_it_may_still_ends(seed: int) -> None:
    env = AllReduceEnv(random_heterogeneous(seed, 3, 6), random_flows=1.0)
    _, info = env.reset(seed=seed)
    ended, steps = False, 0
    while not ended:
        path = int(np.flatnonzero(info["action_mask"])[-1])
        mask = env.chunk_mask(path)
        choice = len(mask) - 1 if mask[-1] else int(np.flatnonzero(mask)[0])
        _, _, terminated, truncated, info = env.step(np.array([path, choice]))
        ended, steps = terminated or truncated, steps + 1
    assert terminated
    assert steps < env.max_steps
    check_plan(env)


def test_stuck_loop_says_so() -> None:
    """Two participants with a relay in between that nobody finds worth feeding."""
    env = AllReduceEnv(replace(line(3), is_participant=np.array([True, False, True])))
    env.reset()
    needed = env.loop.network.needed
    network = replace(env.loop.network, useful=np.repeat(needed[:, None], 2, 1))
    loop = EventLoop(network, NO_FLOWS)
    assert not loop.path_mask().any()
    assert loop.advance()
    assert loop.forced
    assert not loop.advance()
