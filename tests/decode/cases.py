"""Small instances, random scores, and a tape's choices followed through the plain event loop."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gnnsched.collective.all_gather_bound import all_gather_bound
from gnnsched.collective.decode.choice import MOST_WAIT_GAIN, Scores
from gnnsched.collective.decode.decoder import Decoding, Episode, Instance
from gnnsched.collective.decode.problem import CHUNK_FEATURES, NEARNESS_HEADS, PATH_FEATURES
from gnnsched.collective.decode.state import WHOLE
from gnnsched.collective.flows import NO_FLOWS
from gnnsched.envs.allreduce import AllReduceEnv
from gnnsched.envs.flows import draw_flows
from gnnsched.topology import Topology


def random_scores(
    instance: Instance, rng: np.random.Generator, take: float = 0.0, spread: float = 1.0
) -> Scores:
    """Scores of no use; a larger ``take`` makes "none" rarer."""
    paths, servers = instance.paths.num_paths, instance.paths.num_servers
    chunk = rng.normal(0.0, 0.4 * spread, (paths, len(CHUNK_FEATURES)))
    chunk[:, 0] += take
    attention = rng.random((NEARNESS_HEADS, servers, servers))
    return Scores(
        rng.normal(0.0, spread, (paths, len(PATH_FEATURES))),
        chunk,
        rng.normal(0.0, 0.4 * spread, (paths, len(CHUNK_FEATURES))),
        attention / attention.sum(1, keepdims=True),
    )


def instance_and_env(
    topology: Topology,
    message_bytes: float,
    chunks_per_server: int,
    decoding: Decoding,
    flows_from: np.random.Generator | None = None,
) -> tuple[Instance, AllReduceEnv]:
    """The same all-gather for the compiled loop and for the plain one, at its first event."""
    env = AllReduceEnv(
        topology, message_bytes, chunks_per_server, window=decoding.window, floor=decoding.floor
    )
    flows = NO_FLOWS
    if flows_from is not None:
        horizon = all_gather_bound(topology, message_bytes)
        flows = draw_flows(topology, env.instance.paths, 3, horizon, flows_from)
    instance = Instance(topology, message_bytes, chunks_per_server, paths=env.instance.paths, flows=flows)
    env.reset(options={"flows": flows})
    return instance, env


class Decision(NamedTuple):
    """What a policy sees and what the tape says: K legal paths and their features at the start of the event.

    ``legal`` (K,), ``features`` (K, path features); ``path``: the one picked; ``candidates`` (k,): chunks that it
    may take; ``known`` bool (S, C): who holds or awaits what at this moment; ``phi`` (k, chunk features)
    with the nearness columns left 0; ``progress``; ``idle``: none is allowed; ``chunk``: taken, -1 for none.
    """

    legal: np.ndarray
    features: np.ndarray
    path: int
    candidates: np.ndarray
    known: np.ndarray
    phi: np.ndarray
    progress: float
    idle: bool
    chunk: int


def wait_gain(instance: Instance, env: AllReduceEnv, path: int) -> float:
    """Log of how much longer a chunk takes at what the path has now than at its ordinary rate as soon as it has that.

    Candidates for the moment are now and the ends of all bookings and flows on the path; the first that serves is
    taken.
    """
    loop, paths = env.loop, instance.paths
    whole = float(paths.rate[path])
    if loop.rate[path] >= whole * WHOLE:
        return 0.0
    hops = range(paths.start[path], paths.start[path + 1])
    ends = [
        end - paths.offset[k]
        for k in hops
        for end in [*(end for end, _ in loop.bookings[paths.links[k]]), *loop.falls[paths.links[k]]]
    ]
    seconds = loop.network.tolerance + instance.chunk_bytes / whole
    for moment in sorted([loop.now, *(end for end in ends if end > loop.now)]):
        left = [
            loop.left(
                int(paths.links[k]),
                moment + paths.offset[k] + loop.network.tolerance,
                moment + paths.offset[k] + seconds,
            )
            for k in hops
        ]
        if min(left) >= whole * WHOLE:
            break
    now = paths.latency[path] + instance.chunk_bytes / loop.rate[path]
    later = moment - loop.now + paths.latency[path] + instance.chunk_bytes / whole
    return float(np.clip(np.log(now / later), -MOST_WAIT_GAIN, MOST_WAIT_GAIN))


def decisions(instance: Instance, env: AllReduceEnv, episode: Episode) -> Iterator[Decision]:
    """Follow an episode recorded without augmentation through the environment, one decision at a time.

    The features are computed as their names in collective.decode.problem say, from the environment's state.
    """
    pr, loop = instance.problem, env.loop
    paths = instance.paths
    servers, chunks = loop.arrival.shape
    initial = loop.missing
    event = -1
    for path, chunk in zip(episode.tape.picks.tolist(), episode.tape.choices.tolist()):
        if loop.event != event:
            event = loop.event
            holders_then = np.isfinite(loop.arrival).sum(0)
            progress = 1.0 - loop.missing / initial
            need_then = loop.wants.sum(1)
            mean_need = need_then.mean()
            at_start: dict[int, list[float]] = {}
            for p in np.flatnonzero(loop.path_mask()).tolist():
                s, d = paths.source[p], paths.target[p]
                useful = np.flatnonzero(loop.holds[s] & loop.wants[d])
                of_tree = [
                    c for c in useful if pr.tree_path[d, c] >= 0 and paths.source[pr.tree_path[d, c]] == s
                ]
                at_start[p] = [
                    1.0,
                    progress,
                    float(np.log(holders_then[useful] / servers).min()),
                    float(np.log(1 + len(useful))),
                    float(np.log(loop.rate[p] / paths.rate[p])),
                    max([float(pr.tail[d, c]) for c in of_tree], default=0.0),
                    float(np.log((need_then[d] + 1) / (mean_need + 1))),
                ]
        legal = np.flatnonzero(loop.path_mask())
        known = np.isfinite(loop.arrival)
        s, d = int(paths.source[path]), int(paths.target[path])
        candidates = np.flatnonzero(loop.chunk_mask(path))
        duration = np.log(paths.latency[path] + instance.chunk_bytes / loop.rate[path])
        phi = np.zeros((len(candidates), len(CHUNK_FEATURES)))
        phi[:, CHUNK_FEATURES.index("wait_gain")] = wait_gain(instance, env, path)
        for row, c in zip(phi, candidates):
            holders = np.flatnonzero(known[:, c])
            row[0] = 1.0
            row[1] = np.log(np.isfinite(loop.arrival[:, c]).sum() / servers)
            row[6] = duration - pr.log_duration[holders, d].min()
            row[7] = pr.path_log_load[path] - pr.log_load[holders, d].min()
            row[8] = np.log((loop.wants[d].sum() + 1) / (mean_need + 1))
            row[9] = np.log(1 + len(candidates))
            row[10] = episode.state.random[c]
            planned = pr.tree_path[d, c]
            if planned >= 0:
                row[11] = float(paths.source[planned] == s)
                row[12] = pr.log_price[path] - pr.log_price[planned]
                row[13] = pr.tail[d, c]
        yield Decision(
            legal,
            np.array([at_start[p] for p in legal.tolist()]),
            path,
            candidates,
            known,
            phi,
            progress,
            not loop.forced,
            chunk,
        )
        _, _, ended, _, info = env.step(np.array([path, chunk if chunk >= 0 else chunks]))
        assert not info["illegal"]
        if ended:
            return
