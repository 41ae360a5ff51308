"""Random legal play, flows by hand, and a referee for finished plans."""

import numpy as np

from gnnsched.collective.flows import Flows
from gnnsched.collective.mirror import allreduce_from_broadcast
from gnnsched.collective.verify import verify
from gnnsched.envs.allreduce import AllReduceEnv
from gnnsched.topology import Topology

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


def flow(env: AllReduceEnv, path: int, share: float, until: float, since: float = 0.0) -> Flows:
    """One flow over a candidate path at ``share`` of its ordinary rate."""
    paths = env.instance.paths
    links = paths.links[paths.start[path] : paths.start[path + 1]]
    return Flows(
        np.array([0, len(links)]),
        links,
        np.array([share * paths.rate[path]]),
        np.array([float(since)]),
        np.array([float(until)]),
    )


def path_between(env: AllReduceEnv, source: int, target: int) -> int:
    paths = env.instance.paths
    return int(np.flatnonzero((paths.source == source) & (paths.target == target))[0])


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
            begin, end = plan.start[i] + offset, plan.start[i] + offset + work[i]
            offset += topology.latency[link]
            crossing = [
                j
                for j in range(env.flows.num_flows)
                if link in env.flows.links[env.flows.start[j] : env.flows.start[j + 1]]
            ]
            # More is taken than before only where something begins.
            begins = [begin, *(since for since in env.flows.since[crossing] if begin < since < end)]
            for moment in [begin + 1e-9 * env.bound for begin in begins]:
                taken = sum(
                    env.flows.rate[j] for j in crossing if env.flows.since[j] <= moment < env.flows.until[j]
                )
                for j in range(len(plan)):
                    before = 0.0
                    for other in plan.path_links[plan.path_start[j] : plan.path_start[j + 1]]:
                        begin = plan.start[j] + before
                        taken += plan.rate[j] * (other == link and begin <= moment < begin + work[j])
                        before += topology.latency[other]
                assert taken <= topology.bandwidth[link] * (1 + 1e-9)


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
