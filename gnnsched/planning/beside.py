"""Planning beside in-flight flows, and for servers that are ready late: how the mirrored half meets real time.

The reduce half comes first on the clock but is planned backwards, from a guess of its length. The plan gives the trees
and the order; its times are found forwards, around the flows. Where the guess was off, it is planned again with the
better one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.decode.decoder import Episode, Instance
from gnnsched.collective.flows import Flows, backwards, from_moment, join_flows, on_links
from gnnsched.collective.flows_bound import all_gather_bound_under
from gnnsched.collective.mirror import mirror
from gnnsched.collective.retiming import retime
from gnnsched.collective.schedule import Schedule, Transfers, join_transfers
from gnnsched.planning.halves import Halves
from gnnsched.topology import Topology

# The reduce half is planned at most so often, and no more once its length is that near to the guess.
ROUNDS, AGREEMENT = 3, 0.01


def retimed(schedule: Schedule) -> Schedule:
    """The shortest of ``schedule``'s retimings: in its order or with overtaking, at planned rates or at any."""
    found = (retime(schedule, keep, cap) for keep, cap in ((True, True), (True, False), (False, False)))
    return min(found, key=lambda timed: timed.makespan)


def plan_beside(
    sampling: Halves,
    topology: Topology,
    roots: NDArray[np.int32],
    flows: Flows,
    ready: NDArray[np.float64] | None,
    planner: Mapping[str, Any],
    target: float = 0.0,
) -> tuple[Schedule, NDArray[np.float64]]:
    """The best schedule of ``sampling``'s samples beside ``flows``, and the makespans of its samples in seconds.

    ``roots`` (C,): node index of each chunk's root. ``ready`` (num_nodes,): seconds from when on each server's own
    contribution is there; None: from time 0 on. ``target``: makespan (s) that is good enough. Sample i stands for the
    best reduce half and the i-th broadcast half.
    """
    message_bytes = sampling.message_bytes
    empty = Schedule(topology, message_bytes, roots, Transfers.none(), dict(planner), flows, ready)
    # A plan is to leave a late server alone until it is ready: as if all its links outwards were taken.
    in_the_way = flows if ready is None else join_flows(flows, _until_ready(topology, ready))
    opposite = topology.opposite
    network = topology if opposite is not None else topology.reversed()

    def reduction(instance: Instance, episode: Episode) -> tuple[float, Schedule]:
        schedule = retimed(replace(empty, transfers=mirror(topology, instance.transfers(episode.state))))
        return schedule.makespan, schedule

    guess = all_gather_bound_under(topology.reversed(), message_bytes, in_the_way)
    best = None
    for _ in range(ROUNDS):
        half = sampling.draw(network, reduction, 0.0, backwards(in_the_way, opposite, guess))
        if best is None or half.value < best.value:
            best = half
        if abs(half.value - guess) <= AGREEMENT * guess:
            break
        guess = half.value
    assert best is not None
    reduced = best

    def whole(instance: Instance, episode: Episode) -> tuple[float, Schedule]:
        broadcast = instance.transfers(episode.state)
        later = replace(broadcast, start=broadcast.start + reduced.value, end=broadcast.end + reduced.value)
        schedule = retimed(replace(empty, transfers=join_transfers(reduced.best.transfers, later)))
        return schedule.makespan, schedule

    half = sampling.draw(topology, whole, target, from_moment(flows, reduced.value))
    return half.best, half.values


def _until_ready(topology: Topology, ready: NDArray[np.float64]) -> Flows:
    """Flows that take all of the links out of servers until they are ready."""
    links = np.flatnonzero(ready[topology.link_source] > 0.0)
    return on_links(
        links, topology.bandwidth[links], np.zeros(len(links)), ready[topology.link_source[links]]
    )
