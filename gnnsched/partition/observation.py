"""What the environment shows of a job and of the pool that it comes from: PAC-ML's features, all from 0 to 1.

And what the network sees beyond them: how long ops and messages take on the cluster at hand, beside the job's step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnsched.partition.cluster import Cluster, collective_time
from gnnsched.partition.job_graph import JobGraph

NODE_FEATURES = ("compute", "is_max_compute", "memory", "is_max_memory", "depth")
EDGE_FEATURES = ("size", "is_max_size")
NETWORK_NODE_FEATURES = (*NODE_FEATURES, "log_compute_of_step", "log_transfer_of_step")
NETWORK_EDGE_FEATURES = (*EDGE_FEATURES, "log_transfer_of_step")
SUMMARY_FEATURES = (
    "log_ops",
    "log_edges",
    *(
        f"{what}_{name}"
        for what in ("mean", "median")
        for name in (*NETWORK_NODE_FEATURES, *NETWORK_EDGE_FEATURES)
    ),
    "log_node_transfers_of_step",
    "log_edge_transfers_of_step",
)
GRAPH_FEATURES = (
    "ops",
    "edges",
    "sequential_time",
    "limit",
    "beta_in_pool",
    "beta",
    "memory",
    "edge_bytes",
    "training_steps",
    "mean_compute",
    "median_compute",
    "mean_memory",
    "median_memory",
    "mean_edge_size",
    "median_edge_size",
    "busy_workers",
    "running_jobs",
)
LEAST_BETA = 0.1

Singles = NDArray[np.float32]


def _share(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values / max(float(values.max(initial=0.0)), 1e-300)


def node_features(graph: JobGraph) -> NDArray[np.float32]:
    """(2n, 5): compute, memory and depth over their largest, and where the largest are."""
    compute, memory = _share(graph.compute), _share(graph.memory)
    columns = (compute, compute == 1.0, memory, memory == 1.0, _share(graph.depth.astype(float)))
    return np.stack(columns, 1).astype(np.float32)


def edge_features(graph: JobGraph) -> NDArray[np.float32]:
    """(2m + 1, 2): bytes over the largest edge's, and where the largest are."""
    size = _share(graph.edge_bytes)
    return np.stack((size, size == 1.0), 1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class JobInput:
    """A job on a cluster as the network sees it: ``nodes`` (2n, 7), ``edges`` (2m + 1, 3) and ``summary`` (24,)."""

    nodes: Singles
    edges: Singles
    summary: Singles


def job_input(graph: JobGraph, cluster: Cluster) -> JobInput:
    """Beside the published features, parts of the step's time on one worker: an op's, and an AllReduce's of its bytes
    between two workers; the like of each edge's bytes. ``summary``: numbers of the whole graph that know nothing of
    which op is where.
    """
    pairs = cluster.blocks(2).workers
    own = _of_step(graph.compute / graph.step_time)
    transfers, messages = (
        np.array([collective_time(pairs[0], size, cluster) if len(pairs) else 0.0 for size in sizes])
        / graph.step_time
        for sizes in (graph.memory, graph.edge_bytes)
    )
    nodes: NDArray[np.float64] = np.column_stack((node_features(graph), own, _of_step(transfers)))
    edges: NDArray[np.float64] = np.column_stack((edge_features(graph), _of_step(messages)))
    summary = np.concatenate(
        (
            np.log2([graph.num_ops, len(graph.edges)]) / 8.0,
            *(values.mean(0) for values in (nodes, edges)),
            *(np.median(values, 0) for values in (nodes, edges)),
            _of_step(np.array([transfers.sum(), messages.sum()])),
        )
    )
    return JobInput(nodes.astype(np.float32), edges.astype(np.float32), summary.astype(np.float32))


def _of_step(part: NDArray[np.float64]) -> NDArray[np.float64]:
    """A part of the step's time, of which a thousandth can matter: 0.1 for that, 1 for all of it."""
    return np.log2(1.0 + 1000.0 * part) / 10.0


class Pool:
    """The models that jobs are drawn from, by which a job's numbers are scaled: 0 the least of all, 1 the largest."""

    def __init__(self, models: Sequence[JobGraph]) -> None:
        sequential = [model.sequential_time for model in models]
        columns: dict[str, list[float]] = {
            "ops": [model.num_ops for model in models],
            "edges": [len(model.edges) for model in models],
            "sequential_time": sequential,
            "limit": [LEAST_BETA * min(sequential), max(sequential)],
            "beta_in_pool": [LEAST_BETA, 1.0],
            "memory": [model.total_memory for model in models],
            "edge_bytes": [model.total_edge_bytes for model in models],
            "training_steps": [model.steps for model in models],
        }
        self._range = {name: (min(values), max(values)) for name, values in columns.items()}

    def graph_features(
        self, graph: JobGraph, beta: float, busy_workers: float, running_jobs: float
    ) -> NDArray[np.float32]:
        """(17,); ``busy_workers`` and ``running_jobs`` as parts of the number of workers."""
        compute, memory, size = _share(graph.compute), _share(graph.memory), _share(graph.edge_bytes)
        values = {
            "ops": self._scaled("ops", graph.num_ops),
            "edges": self._scaled("edges", len(graph.edges)),
            "sequential_time": self._scaled("sequential_time", graph.sequential_time),
            "limit": self._scaled("limit", beta * graph.sequential_time),
            "beta_in_pool": self._scaled("beta_in_pool", beta),
            "beta": beta,
            "memory": self._scaled("memory", graph.total_memory),
            "edge_bytes": self._scaled("edge_bytes", graph.total_edge_bytes),
            "training_steps": self._scaled("training_steps", graph.steps),
            "mean_compute": compute.mean(),
            "median_compute": np.median(compute),
            "mean_memory": memory.mean(),
            "median_memory": np.median(memory),
            "mean_edge_size": size.mean(),
            "median_edge_size": np.median(size),
            "busy_workers": busy_workers,
            "running_jobs": running_jobs,
        }
        return np.array([values[name] for name in GRAPH_FEATURES], np.float32)

    def _scaled(self, name: str, value: float) -> float:
        least, most = self._range[name]
        # What is the same for all models is 1.
        return 1.0 if most <= least else float(np.clip((value - least) / (most - least), 0.0, 1.0))
