import copy
import os
import subprocess
import sys
import warnings
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import gnnsched.envs
from gnnsched.collective.decode.problem import NO_FLOWS, Flows
from gnnsched.collective.mirror import allreduce_from_broadcast
from gnnsched.collective.verify import verify
from gnnsched.envs.allreduce import AllReduceEnv
from gnnsched.envs.event_loop import EventLoop
from gnnsched.topology import InputError, Topology
from gnnsched.topology.formats import dump_topology
from gnnsched.topology.generators import bcube, dcell, random_heterogeneous, star, torus

RATE = 1e9


def legal_action(env: AllReduceEnv, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random path inside the mask and a random choice inside the chunk mask that it has."""
    paths = np.flatnonzero(mask)
    path = int(paths[int(rng.random() * len(paths))])
    choices = np.flatnonzero(env.chunk_mask(path))
    return np.array([path, choices[int(rng.random() * len(choices))]])


def play(env: AllReduceEnv, rng: np.random.Generator, **reset: object) -> tuple[float, int, dict]:
    """A random legal episode: return, steps, last info."""
    _, info = env.reset(**reset)  # type: ignore[arg-type]
    total, steps, ended = 0.0, 0, False
    while not ended:
        _, reward, terminated, truncated, info = env.step(legal_action(env, info["action_mask"], rng))
        assert not info["illegal"]
        total, steps, ended = total + reward, steps + 1, terminated or truncated
    assert terminated, info.get("truncated_because")
    return total, steps, info


def flow(env: AllReduceEnv, path: int, share: float, until: float) -> Flows:
    """One flow over a candidate path at ``share`` of its ordinary rate."""
    paths = env.instance.paths
    links = paths.links[paths.start[path] : paths.start[path + 1]]
    return Flows(
        np.array([0, len(links)]), links, np.array([share * paths.rate[path]]), np.array([float(until)])
    )


def path_between(env: AllReduceEnv, source: int, target: int) -> int:
    paths = env.instance.paths
    return int(np.flatnonzero((paths.source == source) & (paths.target == target))[0])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"topology": star([RATE] * 3), "chunks_per_server": 3, "random_flows": 0.5},
        {"topology": dcell(2, 1), "random_flows": 1.0, "window": 0.0, "floor": 2.0},
        {"topology": random_heterogeneous(3, 3, 5), "message_bytes": 1e4},
    ],
)
def test_check_env_passes(arguments: dict) -> None:
    env = gymnasium.make(gnnsched.envs.ALL_REDUCE, **arguments)
    with warnings.catch_warnings():
        # times have no natural upper limit
        warnings.filterwarnings("ignore", message=".*maximum value is infinity.*")
        warnings.filterwarnings("error", category=DeprecationWarning)
        check_env(env.unwrapped)


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


def check_plan(env: AllReduceEnv) -> None:
    """The finished plan, mirrored into an AllReduce, is right, and leaves the flows their share of links."""
    plan, topology = env.transfers(), env.topology
    schedule = allreduce_from_broadcast(
        topology, env.message_bytes, env.instance.root_nodes, lambda _: plan, {"name": "random"}
    )
    verdict = verify(schedule)
    assert verdict.ok, verdict.fault
    work = env.instance.chunk_bytes / plan.rate
    for i in range(len(plan)):
        offset = 0.0
        for link in plan.path_links[plan.path_start[i] : plan.path_start[i + 1]]:
            moment = plan.start[i] + offset + 1e-9 * env.bound
            offset += topology.latency[link]
            taken = 0.0
            for j in range(len(env.flows.rate)):
                if link in env.flows.links[env.flows.start[j] : env.flows.start[j + 1]]:
                    taken += env.flows.rate[j] * (moment < env.flows.until[j])
            for j in range(len(plan)):
                before = 0.0
                for other in plan.path_links[plan.path_start[j] : plan.path_start[j + 1]]:
                    begin = plan.start[j] + before
                    taken += plan.rate[j] * (other == link and begin <= moment < begin + work[j])
                    before += topology.latency[other]
            assert taken <= topology.bandwidth[link] * (1 + 1e-9)


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


def line(servers: int) -> Topology:
    ends = [(i, i + 1) for i in range(servers - 1)] + [(i + 1, i) for i in range(servers - 1)]
    return Topology.from_arrays(
        "line",
        [f"s{i}" for i in range(servers)],
        [False] * servers,
        [s for s, _ in ends],
        [d for _, d in ends],
        [RATE] * len(ends),
        [0.0] * len(ends),
    )


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
    env = AllReduceEnv(star([RATE] * 2, latency=latency), message_bytes=2e6, window=1.0)
    path = path_between(env, 0, 1)
    # the window is the longest path's latency, 2e-4 s
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


def test_illegal_actions_change_nothing_and_end_at_the_limit() -> None:
    env = AllReduceEnv(star([RATE] * 3), max_steps=4)
    before, _ = env.reset()
    path = path_between(env, 0, 1)
    for step in range(4):
        # server 0 does not have chunk 2
        observation, reward, terminated, truncated, info = env.step(np.array([path, 2]))
        assert info["illegal"]
        assert reward == 0.0
        assert not terminated
        assert data_equivalence(observation, before, exact=True)
        assert truncated == (step == 3)
    assert info["truncated_because"] == "step limit of 4 reached"
    with pytest.raises(InputError, match="call reset first"):
        env.step(np.array([path, 0]))


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


@pytest.mark.parametrize(
    "action", [[0], [0, 0, 0], [99, 0], [-1, 0], [0, 5], [0.0, 1.0], ["a", "b"], [[0, 0]]]
)
def test_action_outside_the_space_is_refused(action: list) -> None:
    env = AllReduceEnv()
    env.reset()
    with pytest.raises(InputError, match="action"):
        env.step(np.array(action))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topology": star([RATE])}, "fewer than two participants"),
        ({"message_bytes": 0.0}, "message_bytes"),
        ({"message_bytes": float("nan")}, "message_bytes"),
        ({"chunks_per_server": 0}, "chunks per server"),
        ({"random_flows": 1.5}, "random_flows"),
        ({"window": -1.0}, "window"),
        ({"floor": 0.0}, "floor"),
        ({"most_flows": 0}, "most_flows"),
        ({"topology": "no-such-file.json"}, "no-such-file"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        AllReduceEnv(**arguments)
    assert "\n" not in str(refused.value)


def test_bad_flows_and_options_are_refused() -> None:
    env = AllReduceEnv(star([RATE] * 3), most_flows=1)
    good = flow(env, 0, 0.5, 1.0)
    twice = Flows(
        np.array([0, 2, 4]), np.tile(good.links, 2), np.repeat(good.rate, 2), np.repeat(good.until, 2)
    )
    for flows, message in [
        (good._replace(rate=np.array([2 * RATE])), "more than its bandwidth"),
        (good._replace(rate=np.array([-1.0])), "rate"),
        (good._replace(until=np.array([np.inf])), "ends at"),
        (good._replace(links=good.links + 100), "link outside"),
        (good._replace(links=good.links[::-1]), "follow one another"),
        (good._replace(start=np.array([0])), "unequal length"),
        (twice, "room for 1"),
    ]:
        with pytest.raises(InputError, match=message):
            env.reset(options={"flows": flows})
    with pytest.raises(InputError, match='"flow"'):
        env.reset(options={"flow": good})


def test_topology_from_a_file(tmp_path: os.PathLike) -> None:
    path = os.path.join(tmp_path, "net.json")
    dump_topology(star([RATE] * 3), path)
    by_file, by_object = AllReduceEnv(path), AllReduceEnv(star([RATE] * 3))
    assert data_equivalence(by_file.reset()[0], by_object.reset()[0], exact=True)


_THREE_RESETS = """
import hashlib
from gnnsched.envs.allreduce import AllReduceEnv
env = AllReduceEnv(random_flows=0.8)
env.reset(seed=99)
digest = hashlib.sha256()
for seed in (5, None, None):
    observation, info = env.reset(seed=seed)
    digest.update(repr([(k, v.tolist()) for k, v in sorted(observation.items())]).encode())
    print(digest.hexdigest())
"""


def test_three_resets_after_one_seed_are_equal_across_processes() -> None:
    outputs = []
    for hash_seed in ("0", "1"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(
            [sys.executable, "-c", _THREE_RESETS], env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(run.stdout.split())
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) == 3
    # and here, after other episodes
    env = AllReduceEnv(random_flows=0.8)
    play(env, np.random.default_rng(0), seed=1)
    first = [env.reset(seed=5)[0], env.reset()[0], env.reset()[0]]
    second = [env.reset(seed=5)[0], env.reset()[0], env.reset()[0]]
    assert all(data_equivalence(a, b, exact=True) for a, b in zip(first, second))


def test_registration_loads_nothing_heavy() -> None:
    code = (
        "import sys, gymnasium, gnnsched.envs as e; assert e.ALL_REDUCE in gymnasium.registry; "
        "sys.exit(any(m in sys.modules for m in ('numba', 'scipy', 'torch')))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_vector_environment_with_explicit_autoreset_has_no_fake_transitions() -> None:
    """Under SAME_STEP each transition belongs to its action's episode; returns are those of single runs."""
    topology = star([RATE] * 3)
    vector = SyncVectorEnv(
        [lambda: gymnasium.make(gnnsched.envs.ALL_REDUCE, topology=topology)] * 2,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    single = AllReduceEnv(topology)
    rng = np.random.default_rng(0)
    _, infos = vector.reset(seed=0)
    actions: list[list[np.ndarray]] = [[], []]
    returns = [0.0, 0.0]
    episodes = 0
    for _ in range(60):
        members = [env.unwrapped for env in vector.envs]
        action = np.stack(
            [legal_action(env, env.loop.path_mask(), rng) for env in members]  # type: ignore[arg-type]
        )
        _, rewards, terminated, truncated, infos = vector.step(action)
        assert not truncated.any()
        for i in range(2):
            actions[i].append(action[i])
            returns[i] += rewards[i]
            if terminated[i]:
                assert not infos["final_info"]["illegal"][i]
                single.reset()
                replayed = [single.step(a) for a in actions[i]]
                assert replayed[-1][2]
                assert not any(step[2] for step in replayed[:-1])
                assert returns[i] == pytest.approx(sum(step[1] for step in replayed))
                final = (
                    {k: v[i] for k, v in infos["final_obs"].items()}
                    if isinstance(infos["final_obs"], dict)
                    else infos["final_obs"][i]
                )
                assert data_equivalence(final, replayed[-1][0])
                actions[i], returns[i] = [], 0.0
                episodes += 1
    assert episodes >= 4
    vector.close()


def test_unequal_networks_do_not_batch_silently() -> None:
    with pytest.raises(Exception, match="observation space"):
        SyncVectorEnv([lambda: AllReduceEnv(star([RATE] * 3)), lambda: AllReduceEnv(star([RATE] * 4))])
