"""Lower bounds on the time of an AllReduce, and the two bandwidths that its time is quoted as.

algbw and busbw are defined as nccl-tests define them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from gnnsched.collective.all_gather_bound import all_gather_bound, reduce_scatter_bound, rs_ag_bound
from gnnsched.collective.allreduce_lp import allreduce_lp_bound
from gnnsched.collective.flows import NO_FLOWS, Flows
from gnnsched.collective.flows_bound import rs_ag_bound_under
from gnnsched.topology import Topology

__all__ = [
    "Bounds",
    "algorithm_bandwidth",
    "all_gather_bound",
    "allreduce_lp_bound",
    "bounds",
    "bus_bandwidth",
    "latency_bound",
    "reduce_scatter_bound",
    "rs_ag_bound",
]


@dataclass(frozen=True)
class Bounds:
    """Seconds. ``bound_s`` = the larger of ``rs_ag_s`` and ``latency_s``; all 0 for one participant.

    ``rs_ag_s`` binds every plan that reduces each chunk to an equal share of roots and then broadcasts it;
    ``lp_bound_s`` every plan, in bandwidth alone. It is None where it was not solved: ``lp_note`` says why.
    """

    bound_s: float
    rs_ag_s: float
    latency_s: float
    lp_bound_s: float | None
    lp_note: str | None


def bounds(
    topology: Topology,
    message_bytes: float,
    lp_time_limit: float = 2.0,
    flows: Flows = NO_FLOWS,
    ready: NDArray[np.float64] | None = None,
) -> Bounds:
    """All bounds for ``message_bytes`` on ``topology``; the LP gets ``lp_time_limit`` seconds.

    Beside in-flight ``flows``, or where servers are ``ready`` late (num_nodes,), ``rs_ag_s`` is that of
    ``rs_ag_bound_under`` and the LP is not solved: it knows no time.
    """
    latency = latency_bound(topology)
    if flows.num_flows or (ready is not None and ready.any()):
        rs_ag = rs_ag_bound_under(topology, message_bytes, flows, ready)
        return Bounds(
            max(rs_ag, latency), rs_ag, latency, None, "it knows no flows in flight and no late servers"
        )
    rs_ag = rs_ag_bound(topology, message_bytes)
    lp_bound, note = allreduce_lp_bound(topology, message_bytes, lp_time_limit, rs_ag)
    return Bounds(max(rs_ag, latency), rs_ag, latency, lp_bound, note)


def latency_bound(topology: Topology) -> float:
    """The largest, over ordered pairs of participants, of the least latency between them, in seconds."""
    participants = topology.participants
    if len(participants) < 2:
        return 0.0
    # Parallel links: the quickest one counts. csr_array would add them up.
    order = np.lexsort((topology.latency, topology.link_target, topology.link_source))
    s, d = topology.link_source[order], topology.link_target[order]
    quickest = np.concatenate(([True], (s[1:] != s[:-1]) | (d[1:] != d[:-1])))
    nodes = topology.num_nodes
    graph = csr_array(
        (topology.latency[order][quickest], (s[quickest], d[quickest])),
        shape=(nodes, nodes),
    )
    return float(dijkstra(graph, indices=participants)[:, participants].max())


def algorithm_bandwidth(message_bytes: float, makespan: float) -> float | None:
    """algbw: M / makespan in bytes/s; None for a makespan of 0."""
    return message_bytes / makespan if makespan > 0 else None


def bus_bandwidth(message_bytes: float, makespan: float, participants: int) -> float | None:
    """busbw: algbw * 2(N-1)/N, comparable with a link's bandwidth; None for one participant."""
    algbw = algorithm_bandwidth(message_bytes, makespan)
    return None if algbw is None or participants < 2 else algbw * 2 * (participants - 1) / participants
