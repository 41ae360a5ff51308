"""A training job as a graph: the forward profile, and the mirrored graph of one training step."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class JobProfile:
    """The n forward ops of a model: seconds of their forward and backward pass, bytes, and the m data edges.

    ``edges`` (m, 2): source and target op, counted from 0. ``lines`` and ``file``: where each op was read, if it was.
    """

    name: str
    op_names: tuple[str, ...]
    forward_time: Floats
    backward_time: Floats
    activation_bytes: Floats
    parameter_bytes: Floats
    edges: Longs
    lines: tuple[int, ...] = ()
    file: str = ""

    @property
    def num_ops(self) -> int:
        return len(self.op_names)

    def find_cycle(self) -> tuple[int, int] | None:
        """An edge (source, target) on a cycle, None where the graph has no cycle."""
        order = _fifo_topological_order(self.num_ops, self.edges)
        left = set(range(self.num_ops)) - set(order.tolist())
        into: dict[int, tuple[int, int]] = {}
        for tail, head in self.edges.tolist():
            if tail in left and head in left:
                into[head] = (tail, head)
        if not into:
            return None
        # Every op that is left has a predecessor that is left: walking back must come round.
        seen: set[int] = set()
        node = next(iter(into))
        while node not in seen:
            seen.add(node)
            node = into[node][0]
        return into[node]


def _fifo_topological_order(count: int, edges: Longs) -> Longs:
    """Ops in the order of a first-in-first-out queue, by id where several are ready at once; short if cyclic."""
    waiting = np.bincount(edges[:, 1], minlength=count)
    children: list[list[int]] = [[] for _ in range(count)]
    for tail, head in edges.tolist():
        children[tail].append(head)
    queue = [i for i in range(count) if waiting[i] == 0]
    for node in queue:
        for child in children[node]:
            waiting[child] -= 1
            if waiting[child] == 0:
                queue.append(child)
    return np.array(queue, np.int64)


@dataclass(frozen=True, eq=False)
class JobGraph:
    """One training step of a model: 2n ops, forward ones 0..n-1, the backward partner of op i at 2n - 1 - i.

    ``compute`` (2n,) seconds and ``memory`` (2n,) bytes of whole ops; ``edges`` (2m + 1, 2): forward ones, their
    mirror images, and the one that joins the last forward op to its partner; ``edge_bytes`` (2m + 1,). ``steps``:
    training steps of the job.
    """

    profile: JobProfile
    compute: Floats
    memory: Floats
    edges: Longs
    edge_bytes: Floats
    steps: int = field(default=50)

    @property
    def name(self) -> str:
        return self.profile.name

    @property
    def num_ops(self) -> int:
        return len(self.compute)

    @property
    def num_forward(self) -> int:
        return self.profile.num_ops

    @property
    def step_time(self) -> float:
        """Seconds of one training step on one worker."""
        return float(self.compute.sum())

    @property
    def sequential_time(self) -> float:
        """Seconds of the whole job on one worker, JCT_seq."""
        return self.steps * self.step_time

    @property
    def total_memory(self) -> float:
        """Bytes of all ops."""
        return float(self.memory.sum())

    @property
    def total_edge_bytes(self) -> float:
        """Bytes over all edges of the unpartitioned graph."""
        return float(self.edge_bytes.sum())

    @cached_property
    def forward_order(self) -> Longs:
        """Forward ops in the first-in-first-out topological order in which they are placed."""
        return _fifo_topological_order(self.num_forward, self.profile.edges)

    @cached_property
    def depth(self) -> Longs:
        """(2n,): ops on the shortest path from op 0 to each op, both counted; 0 where there is none."""
        children: list[list[int]] = [[] for _ in range(self.num_ops)]
        for tail, head in self.edges.tolist():
            children[tail].append(head)
        depth = np.zeros(self.num_ops, np.int64)
        depth[0] = 1
        queue = [0]
        for node in queue:
            for child in children[node]:
                if depth[child] == 0:
                    depth[child] = depth[node] + 1
                    queue.append(child)
        return depth


def mirrored(profile: JobProfile, steps: int = 50) -> JobGraph:
    """The graph of one training step: each forward op has a backward partner, each edge its mirror image.

    An op needs its activations' and parameters' bytes in both passes; an edge carries the activations of its source.
    """
    last = 2 * profile.num_ops - 1
    forward = profile.edges
    joining = np.array([[profile.num_ops - 1, profile.num_ops]])
    edges = np.concatenate((forward, last - forward[:, ::-1], joining))
    activation = np.concatenate((profile.activation_bytes, profile.activation_bytes[::-1]))
    half = profile.activation_bytes + profile.parameter_bytes
    return JobGraph(
        profile,
        compute=np.concatenate((profile.forward_time, profile.backward_time[::-1])),
        memory=np.concatenate((half, half[::-1])),
        edges=edges,
        edge_bytes=activation[edges[:, 0]],
        steps=steps,
    )
