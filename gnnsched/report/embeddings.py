"""The policy's view of a network at several moments of a schedule, for TensorBoard's projector."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from gnnsched.collective.decode.decoder import Instance
from gnnsched.collective.decode.paths import candidate_paths
from gnnsched.collective.flows import Flows
from gnnsched.collective.schedule import PHASES, Schedule
from gnnsched.models.features import graph_of
from gnnsched.planning import schedule_with
from gnnsched.topology import InputError, Topology
from gnnsched.topology.units import format_bandwidth

if TYPE_CHECKING:
    from gnnsched.models.policy import Policy

# Percent of the makespan: two moments of the reduce phase and two of the broadcast phase; also TensorBoard's steps.
MOMENTS = (10, 35, 60, 85)
KINDS = ("server", "switch", "flow")
HEADER = ("topology", "kind", "id", "degree", "bandwidth", "phase")


@dataclass
class Embeddings:
    """Rows of one kind of node at one moment: ``vectors`` (rows, width) and ``metadata`` as in ``HEADER``."""

    vectors: list[NDArray[np.float32]] = field(default_factory=list)
    metadata: list[list[str]] = field(default_factory=list)


def in_flight(schedule: Schedule, moment: float) -> tuple[NDArray[np.int64], Flows]:
    """Transfers that are being sent at ``moment`` (s), and the flows they are from then on."""
    t = schedule.transfers
    sent = t.start + schedule.chunk_bytes / t.rate
    now = np.flatnonzero((t.start <= moment) & (moment < sent))
    lengths = np.diff(t.path_start)[now]
    start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    position = np.arange(start[-1]) - np.repeat(start[:-1] - t.path_start[now], lengths)
    return now, Flows(start, t.path_links[position], t.rate[now], np.zeros(len(now)), sent[now] - moment)


def embeddings_at(
    policy: "Policy", schedule: Schedule, chunks_per_server: int, percent: float
) -> Iterator[tuple[str, NDArray[np.float32], list[str]]]:
    """(kind, vector, metadata) of every server, switch and in-flight flow at ``percent`` of the makespan.

    The network is encoded with the transfers in flight then as flow nodes. Degree is the number of links out of a
    node, or of those that a flow crosses; bandwidth the sum over the links out, or the flow's rate; phase that of
    the moment.
    """
    topology, t = schedule.topology, schedule.transfers
    moment = schedule.makespan * percent / 100.0
    now, flows = in_flight(schedule, moment)
    instance = Instance(
        topology, schedule.message_bytes, chunks_per_server, 0, candidate_paths(topology), flows
    )
    with torch.no_grad():
        vectors = policy(graph_of(instance).to(next(policy.parameters()).device)).nodes.cpu().numpy()
    broadcasting = t.start[t.phase == PHASES.index("broadcast")]
    phase = PHASES[int(len(broadcasting) > 0 and moment >= broadcasting.min())]
    degree = np.bincount(topology.link_source, minlength=topology.num_nodes)
    speed = np.bincount(topology.link_source, topology.bandwidth, topology.num_nodes)
    for node, identity in enumerate(topology.node_ids):
        kind = "switch" if topology.is_switch[node] else "server"
        yield (
            kind,
            vectors[node],
            _row(topology, kind, str(identity), int(degree[node]), float(speed[node]), phase),
        )
    for number, i in enumerate(now.tolist()):
        name = f"chunk {t.chunk[i]}: {topology.node_ids[t.source[i]]} -> {topology.node_ids[t.target[i]]}"
        hops = int(flows.start[number + 1] - flows.start[number])
        yield (
            "flow",
            vectors[topology.num_nodes + number],
            _row(topology, "flow", name, hops, float(t.rate[i]), PHASES[t.phase[i]]),
        )


def _row(topology: Topology, kind: str, name: str, degree: int, bandwidth: float, phase: str) -> list[str]:
    cells = (topology.name, kind, name, str(degree), format_bandwidth(bandwidth), phase)
    # The projector's files have a row per line and a tab between columns; a user's id may hold either.
    return [" ".join(cell.split()) or "-" for cell in cells]


def write_embeddings(
    policy: "Policy",
    topologies: Sequence[Topology],
    logdir: str | os.PathLike[str],
    message_bytes: float = 2**30,
    chunks_per_server: int = 4,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> dict[tuple[str, int], int]:
    """Plan each network with ``policy`` and log its embeddings; the number of points per (tag, step).

    A tag is a kind of ``KINDS``, a step a moment of ``MOMENTS``; the points of all networks stand together. What
    does not occur at a moment has no entry. Raises InputError where ``logdir`` cannot be written to.
    """
    try:
        Path(logdir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{logdir}: cannot be made ({error.strerror}); choose another folder") from None
    found = {(kind, percent): Embeddings() for percent in MOMENTS for kind in KINDS}
    for topology in topologies:
        if progress is not None:
            progress(topology.name)
        schedule = schedule_with(
            "policy", topology, message_bytes, chunks_per_server, 1, seed, policy
        ).schedule
        for percent in MOMENTS:
            for kind, vector, metadata in embeddings_at(policy, schedule, chunks_per_server, percent):
                found[kind, percent].vectors.append(vector)
                found[kind, percent].metadata.append(metadata)
    found = {key: own for key, own in found.items() if own.metadata}
    _log(found, logdir)
    return {key: len(own.metadata) for key, own in found.items()}


def _log(found: dict[tuple[str, int], Embeddings], logdir: str | os.PathLike[str]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    try:
        # Writing over an earlier run's entries prints a warning; stdout is for the command's own output.
        with SummaryWriter(str(logdir)) as writer, contextlib.redirect_stdout(sys.stderr):
            for (kind, percent), own in found.items():
                writer.add_embedding(
                    np.stack(own.vectors),
                    metadata=own.metadata,
                    metadata_header=list(HEADER),
                    tag=kind,
                    global_step=percent,
                )
    except OSError as error:
        raise InputError(f"{logdir}: cannot be written ({error.strerror}); choose another folder") from None
