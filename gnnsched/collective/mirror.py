"""From a broadcast plan to a whole AllReduce: the reduce half is the broadcast half, backwards in time."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnsched.collective.schedule import BROADCAST, REDUCE, Schedule, Transfers, join_transfers
from gnnsched.topology import Topology


def mirror(topology: Topology, plan: Transfers) -> Transfers:
    """The reduce transfers that ``plan``, an all-gather from time 0, turns into when played backwards.

    ``plan`` was made on ``topology`` where that has opposite links, else on ``topology.reversed()``.
    Source and target change places, a path is walked from its end over the opposite links (over the same
    link indices where the plan was made on the reversed network), and a transfer from start to end becomes
    one from H - end to H - start, H being the plan's makespan. On every link the times in use are the
    mirrored ones moved by that link's latency, the same for all its transfers, so a plan within the
    bandwidths stays within them.

    Returns transfers in order of their start.
    """
    makespan = float(plan.end.max()) if len(plan) else 0.0
    start = makespan - plan.end
    order = np.argsort(start, kind="stable")
    lengths = np.diff(plan.path_start)[order]
    path_start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    # Entry k of the new path is the k-th link from the end of the old one.
    last = np.repeat(plan.path_start[1:][order] - 1, lengths)
    links = plan.path_links[last - (np.arange(len(last)) - np.repeat(path_start[:-1], lengths))]
    if topology.opposite is not None:
        links = topology.opposite[links]
    return Transfers(
        phase=np.full(len(plan), REDUCE, np.uint8),
        chunk=plan.chunk[order],
        source=plan.target[order],
        target=plan.source[order],
        path_start=path_start,
        path_links=links.astype(np.int32),
        rate=plan.rate[order],
        start=start[order],
        end=makespan - plan.start[order],
    )


def join_halves(
    topology: Topology,
    message_bytes: float,
    roots: NDArray[np.int32],
    reduce_plan: Transfers,
    broadcast_plan: Transfers,
    planner: Mapping[str, Any],
) -> Schedule:
    """The AllReduce that mirrors ``reduce_plan`` and then runs ``broadcast_plan``.

    Both are all-gather plans from time 0 out of the same ``roots`` (node index per chunk):
    ``broadcast_plan`` on ``topology``, ``reduce_plan`` as ``mirror`` expects it. They may be the same object.
    """
    reduce = mirror(topology, reduce_plan)
    turn = float(reduce.end.max()) if len(reduce) else 0.0
    later = replace(
        broadcast_plan,
        phase=np.full(len(broadcast_plan), BROADCAST, np.uint8),
        start=broadcast_plan.start + turn,
        end=broadcast_plan.end + turn,
    )
    both = join_transfers(reduce, later)
    return Schedule(topology, float(message_bytes), np.asarray(roots, np.int32), both, dict(planner))


def allreduce_from_broadcast(
    topology: Topology,
    message_bytes: float,
    roots: NDArray[np.int32],
    plan_for: Callable[[Topology], Transfers],
    planner: Mapping[str, Any],
) -> Schedule:
    """The AllReduce on ``topology`` whose halves are the all-gather plans that ``plan_for`` makes.

    ``plan_for(network)`` returns an all-gather of all chunks from ``roots`` on ``network``, from time 0, all
    of it in the broadcast phase. It is called once where each link has an opposite of equal bandwidth and
    latency, and a second time with ``topology.reversed()`` for the reduce half where some link has none.
    """
    broadcast_plan = plan_for(topology)
    reduce_plan = broadcast_plan if topology.opposite is not None else plan_for(topology.reversed())
    return join_halves(topology, message_bytes, roots, reduce_plan, broadcast_plan, planner)
