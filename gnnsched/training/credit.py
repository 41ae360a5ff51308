"""Credit for decisions: how much longer the plan took than the network's cuts allowed when they were made.

A cut is a set of servers. While chunks are missing in it, the time of the plan is at least now plus the bytes that
must still enter over what can enter; the largest such value is a potential that rises whenever a critical link idles
or carries what its far side has already. What the plan took beyond the potential at an event is the cost of the
decisions from there on; costs that earlier events had caused are left out (potential-based shaping, Ng et al. 1999).
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, maximum_flow

from gnnsched.collective.decode.decoder import Episode, Instance
from gnnsched.collective.decode.paths import Paths
from gnnsched.collective.decode.state import COMMITTED
from gnnsched.topology import Topology

# Cuts far from critical do not matter: those whose own bound is below this part of the largest are left out.
LEAST_SHARE = 0.25
_FULL = 1 << 20

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


class Cuts(NamedTuple):
    """K sets of the S servers: ``inside`` (K, S), and ``capacity`` (K,), bytes/s that can enter each."""

    inside: NDArray[np.bool_]
    capacity: Floats


def find_cuts(topology: Topology, paths: Paths) -> Cuts:
    """Single servers, servers of one switch, and what hangs together over links above each bandwidth."""
    number = np.full(topology.num_nodes, -1, np.int64)
    number[paths.nodes] = np.arange(paths.num_servers)
    found: set[tuple[int, ...]] = {(s,) for s in range(paths.num_servers)}
    source, target = topology.link_source, topology.link_target
    for switch in np.flatnonzero(topology.is_switch):
        found.add(tuple(sorted({int(number[s]) for s in source[target == switch] if number[s] >= 0})))
    for threshold in np.unique(topology.bandwidth):
        kept = topology.bandwidth > threshold * (1.0 + 1e-9)
        graph = coo_array((kept[kept], (source[kept], target[kept])), shape=(topology.num_nodes,) * 2)
        _, label = connected_components(graph, directed=False)
        for group in range(int(label.max()) + 1):
            found.add(tuple(sorted(int(s) for s in number[label == group] if s >= 0)))
    participant = topology.is_participant[paths.nodes]
    sets = []
    for servers in sorted(found):
        inside = np.zeros(paths.num_servers, bool)
        inside[list(servers)] = True
        if (inside & participant).any() and (~inside & participant).any():
            sets.append(inside)
    capacity = np.array([_entering(topology, paths.nodes[inside], paths.nodes[~inside]) for inside in sets])
    stacked = np.array(sets).reshape(len(sets), paths.num_servers)
    missing = (~stacked & participant).sum(1)
    bound = np.divide(missing, capacity, out=np.full(len(sets), np.inf), where=capacity > 0.0)
    kept = np.isfinite(bound) & (bound >= LEAST_SHARE * bound[np.isfinite(bound)].max(initial=0.0))
    return Cuts(stacked[kept], capacity[kept])


def _entering(topology: Topology, inside: NDArray[np.int32], outside: NDArray[np.int32]) -> float:
    """Largest flow (bytes/s) from the servers outside to those inside, switches wherever they serve it best."""
    size = topology.num_nodes + 2
    unit = float(topology.bandwidth.max()) / 4096.0
    tail = np.concatenate((topology.link_source, np.full(len(outside), size - 2), inside))
    head = np.concatenate((topology.link_target, outside, np.full(len(inside), size - 1)))
    units = np.concatenate(
        (np.rint(topology.bandwidth / unit), np.full(len(outside) + len(inside), float(_FULL)))
    ).astype(np.int32)
    graph = coo_array((units, (tail, head)), shape=(size, size)).tocsr()
    return float(maximum_flow(graph, size - 2, size - 1).flow_value) * unit


@njit(cache=True)
def _potentials(
    inside: NDArray[np.bool_],
    capacity: Floats,
    chunk_bytes: float,
    roots: NDArray[np.int32],
    event_time: Floats,
    chunk: NDArray[np.int32],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    rate: Floats,
    end: Floats,
    event: Longs,
    by_end: Longs,
) -> tuple[Floats, Floats]:
    """Potential (s) before each event and the part of all deliveries decided before it; transfers by event."""
    cuts = len(inside)
    chunks = len(roots)
    have = np.zeros((cuts, chunks), np.bool_)
    missing = np.full(cuts, float(chunks))
    for k in range(cuts):
        for c in range(chunks):
            if inside[k, roots[c]]:
                have[k, c] = True
                missing[k] -= 1.0
    flowing = np.zeros(cuts)
    until = np.zeros(cuts)
    potential = np.zeros(len(event_time))
    progress = np.zeros(len(event_time))
    done = np.zeros(len(chunk), np.bool_)
    added, ended = 0, 0
    for e in range(len(event_time)):
        now = event_time[e]
        while added < len(chunk) and event[added] <= e:
            for k in range(cuts):
                if inside[k, target[added]]:
                    if not have[k, chunk[added]]:
                        have[k, chunk[added]] = True
                        missing[k] -= 1.0
                    if not inside[k, source[added]]:
                        flowing[k] += rate[added]
                        until[k] += rate[added] * end[added]
            done[added] = True
            added += 1
        while ended < len(chunk) and end[by_end[ended]] <= now and done[by_end[ended]]:
            i = by_end[ended]
            for k in range(cuts):
                if inside[k, target[i]] and not inside[k, source[i]]:
                    flowing[k] -= rate[i]
                    until[k] -= rate[i] * end[i]
            ended += 1
        most = 0.0
        for k in range(cuts):
            if missing[k] > 0.0:
                value = (missing[k] * chunk_bytes + until[k] - flowing[k] * now) / capacity[k]
                most = max(most, value)
        potential[e] = now + most
        progress[e] = added / max(len(chunk), 1)
    return potential, progress


def potentials(instance: Instance, cuts: Cuts, episode: Episode) -> tuple[Floats, Floats]:
    """Per event of a recorded episode, before its decisions: the potential in seconds, and the progress 0 to 1."""
    state, paths = episode.state, instance.paths
    slots = np.flatnonzero(state.slot_state == COMMITTED)
    slots = slots[np.argsort(state.slot_event[slots], kind="stable")]
    path = state.slot_path[slots]
    # What holds a link is the transfer without its way.
    end = state.slot_end[slots] - paths.latency[path]
    return _potentials(
        cuts.inside,
        cuts.capacity,
        instance.chunk_bytes,
        instance.roots,
        episode.tape.event_time,
        state.slot_chunk[slots],
        paths.source[path],
        paths.target[path],
        state.slot_rate[slots],
        end,
        # Events count from one; those before the current one have been decided.
        state.slot_event[slots],
        np.argsort(end, kind="stable"),
    )
