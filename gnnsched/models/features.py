"""An instance as tensors: relative features of nodes, edges, paths and server pairs. No ids, no absolute sizes."""

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnsched.collective.decode.decoder import Instance

NODE_FEATURES = (
    "is_server",
    "is_switch",
    "is_flow",
    "is_participant",
    "log_bandwidth_in",
    "log_bandwidth_out",
    "log_degree",
    "log_mean_duration_out",
    "log_mean_duration_in",
    "flow_rate_share",
    "flow_time_left",
    "log_chunks_per_server",
    "latency_share",
    "flow_starts_in",
)
EDGE_FEATURES = (
    "is_link",
    "is_flow_tie",
    "log_bandwidth",
    "log_load",
    "log_packed_load",
    "latency_share",
    "flow_rate_share",
    "mean_share_taken",
)
PATH_FEATURES = (
    "log_duration",
    "log_load",
    "log_rate",
    "hops",
    "log_price",
    "log_tree_share",
    "duration_excess",
    "log_share_left",
)
PAIR_FEATURES = ("log_duration", "log_load")


@dataclass(frozen=True)
class GraphBatch:
    """One or several instances as tensors, joined by pointers without padding.

    n nodes (servers, switches and flows of all instances), m edges, P paths, Q server pairs. ``edge_index`` (2, m):
    source and target node; ``path_source``, ``path_target`` (P,): node; ``hop_edge``, ``hop_path`` (hops,): the
    edges of paths; ``pair_source``, ``pair_target`` (Q,): node. ``path_pointer``, ``pair_pointer`` and ``node_pointer``
    (instances + 1,) cut the columns into instances.
    """

    nodes: Tensor
    edges: Tensor
    edge_index: Tensor
    paths: Tensor
    path_source: Tensor
    path_target: Tensor
    hop_edge: Tensor
    hop_path: Tensor
    pairs: Tensor
    pair_source: Tensor
    pair_target: Tensor
    path_pointer: Tensor
    pair_pointer: Tensor
    node_pointer: Tensor

    def to(self, device: torch.device | str) -> "GraphBatch":
        """The same batch on another device."""
        return GraphBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def without_flows(batch: GraphBatch) -> GraphBatch:
    """The batch as if no flow were in flight: their nodes stay, unconnected and without features."""
    nodes, edges = batch.nodes.clone(), batch.edges.clone()
    nodes[nodes[:, NODE_FEATURES.index("is_flow")] > 0.0] = 0.0
    for name in ("flow_rate_share", "mean_share_taken"):
        edges[:, EDGE_FEATURES.index(name)] = 0.0
    paths = batch.paths.clone()
    paths[:, PATH_FEATURES.index("log_share_left")] = 0.0
    kept = edges[:, EDGE_FEATURES.index("is_flow_tie")] == 0.0
    number = torch.cumsum(kept, 0) - 1
    return replace(
        batch,
        nodes=nodes,
        edges=edges[kept],
        edge_index=batch.edge_index[:, kept],
        paths=paths,
        hop_edge=number[batch.hop_edge],
    )


def without_trees(batch: GraphBatch) -> GraphBatch:
    """The batch as if no trees had been packed."""
    edges, paths = batch.edges.clone(), batch.paths.clone()
    edges[:, EDGE_FEATURES.index("log_packed_load")] = 0.0
    for name in ("log_price", "log_tree_share"):
        paths[:, PATH_FEATURES.index(name)] = 0.0
    return replace(batch, edges=edges, paths=paths)


def _centred_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logs less their mean; a zero (of a node without links, say) gets the floor and moves nobody else's."""
    positive = values > 0.0
    if not positive.any():
        return np.zeros(len(values))
    logs = np.log(values, out=np.full(len(values), -np.inf), where=positive)
    return np.clip(logs - logs[positive].mean(), -8.0, 8.0)


def graph_of(instance: Instance) -> GraphBatch:
    """Tensors of one instance, in-flight flows included as nodes tied to the nodes of their path."""
    topology, paths, problem = instance.topology, instance.paths, instance.problem
    nodes, links = topology.num_nodes, topology.num_links
    flows = instance.flows.num_flows
    source, target = topology.link_source.astype(np.int64), topology.link_target.astype(np.int64)
    usual = float(np.exp(np.log(topology.bandwidth).mean())) if links else 1.0
    chunk_seconds = instance.chunk_bytes / usual
    latency_share = np.log1p(10.0 * topology.latency / chunk_seconds)

    node = np.zeros((nodes + flows, len(NODE_FEATURES)))
    node[:nodes, 0] = ~topology.is_switch
    node[:nodes, 1] = topology.is_switch
    node[nodes:, 2] = 1.0
    node[:nodes, 3] = topology.is_participant
    if links:
        node[:nodes, 4] = _centred_log(np.bincount(target, topology.bandwidth, nodes).astype(float))
        node[:nodes, 5] = _centred_log(np.bincount(source, topology.bandwidth, nodes).astype(float))
        node[:nodes, 6] = _centred_log(np.bincount(target, minlength=nodes).astype(float))
    duration = np.exp(problem.log_duration)
    finite = np.isfinite(duration)
    shown = np.where(finite, duration, 0.0)
    out_mean = shown.sum(1) / np.maximum(finite.sum(1), 1)
    in_mean = shown.sum(0) / np.maximum(finite.sum(0), 1)
    node[paths.nodes, 7] = _centred_log(out_mean)
    node[paths.nodes, 8] = _centred_log(in_mean)
    node[:, 11] = np.log2(instance.chunks_per_server) / 4.0
    node[:, 12] = latency_share.mean() if links else 0.0

    crossed = instance.flows.crossing
    now: NDArray[np.float64] = np.zeros(links)
    mean_share = np.zeros(links)
    if flows:
        begun = instance.flows.rate * (instance.flows.since <= 0.0)
        np.add.at(now, instance.flows.links, begun[crossed])
        # Over the time that the plan takes at least.
        mean_share = instance.taken_seconds / max(instance.least_end, 1e-300)
    edge = np.zeros((links, len(EDGE_FEATURES)))
    edge[:, 0] = 1.0
    edge[:, 2] = _centred_log(topology.bandwidth)
    through = np.bincount(paths.links, np.repeat(1.0, len(paths.links)), links) / np.maximum(
        topology.bandwidth, 1e-300
    )
    edge[:, 3] = _centred_log(through + through.mean() * 0.01)
    edge[:, 4] = np.log(np.maximum(instance.packed_load / instance.time_scale, 1e-3))
    edge[:, 5] = latency_share
    edge[:, 6] = now / topology.bandwidth
    edge[:, 7] = mean_share
    edge_index = np.stack([source, target])
    if flows:
        # A flow is tied, both ways, to the nodes that its links touch.
        first = np.concatenate([source[instance.flows.links], target[instance.flows.links]])
        ties = np.unique(np.stack([np.tile(crossed, 2) + nodes, first]), axis=1)
        tie = np.zeros((ties.shape[1], len(EDGE_FEATURES)))
        tie[:, 1] = 1.0
        least = np.full(flows, np.inf)
        np.minimum.at(least, crossed, topology.bandwidth[instance.flows.links])
        share = instance.flows.rate / least
        tie[:, 6] = share[ties[0] - nodes]
        edge_index = np.concatenate([edge_index, ties, ties[::-1]], 1)
        edge = np.concatenate([edge, tie, tie])
        node[nodes:, 9] = share
        # Flows without end last as long as one that is ten times as long as the plan.
        until, since = (
            np.minimum(moment / instance.time_scale, 10.0)
            for moment in (instance.flows.until, instance.flows.since)
        )
        node[nodes:, 10] = np.log1p(10.0 * until) / 2.0
        node[nodes:, 13] = np.log1p(10.0 * since) / 2.0

    lasting = paths.latency + instance.chunk_bytes / paths.rate
    used = np.bincount(problem.tree_path[problem.tree_path >= 0], minlength=paths.num_paths)
    path = np.stack(
        [
            _centred_log(lasting),
            np.clip(problem.path_log_load, -8.0, 8.0),
            _centred_log(paths.rate),
            np.diff(paths.start) / 4.0,
            np.clip(problem.log_price - problem.log_price.mean(), -8.0, 8.0)
            if paths.num_paths
            else problem.log_price,
            np.log((used + 0.1) / (used.mean() + 0.1)) if paths.num_paths else used.astype(float),
            np.log(lasting) - problem.log_duration[paths.source, paths.target],
            _log_share_left(instance, mean_share),
        ],
        1,
    )
    pair_source, pair_target = np.nonzero(finite & ~np.eye(len(finite), dtype=bool))
    pair_load = problem.log_load[pair_source, pair_target]
    pair = np.stack([_centred_log(duration[pair_source, pair_target]), np.clip(pair_load, -8.0, 8.0)], 1)

    def real(array: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.float32))

    def index(array: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int64))

    return GraphBatch(
        real(node),
        real(edge),
        index(edge_index),
        real(path),
        index(paths.nodes[paths.source]),
        index(paths.nodes[paths.target]),
        index(paths.links),
        index(np.repeat(np.arange(paths.num_paths), np.diff(paths.start))),
        real(pair),
        index(paths.nodes[pair_source]),
        index(paths.nodes[pair_target]),
        torch.tensor([0, paths.num_paths]),
        torch.tensor([0, len(pair_source)]),
        torch.tensor([0, nodes + flows]),
    )


def _log_share_left(instance: Instance, mean_share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of the part of its ordinary rate that each path has left on the mean, at most 0."""
    paths = instance.paths
    if not paths.num_paths:
        return np.zeros(0)
    left = (instance.topology.bandwidth * (1.0 - mean_share))[paths.links]
    least = np.minimum.reduceat(left, paths.start[:-1])
    return np.log(np.clip(least / paths.rate, 0.02, 1.0))


def join(graphs: list[GraphBatch]) -> GraphBatch:
    """Several instances as one batch; results equal those of single runs."""
    node_shift = np.cumsum([0] + [len(g.nodes) for g in graphs])
    edge_shift = np.cumsum([0] + [len(g.edges) for g in graphs])
    path_shift = np.cumsum([0] + [len(g.paths) for g in graphs])
    pair_shift = np.cumsum([0] + [len(g.pairs) for g in graphs])

    def plain(name: str) -> Tensor:
        return torch.cat([getattr(g, name) for g in graphs])

    def moved(name: str, shift: NDArray[np.int64], dim: int = 0) -> Tensor:
        return torch.cat([getattr(g, name) + int(s) for g, s in zip(graphs, shift)], dim)

    return GraphBatch(
        plain("nodes"),
        plain("edges"),
        moved("edge_index", node_shift, 1),
        plain("paths"),
        moved("path_source", node_shift),
        moved("path_target", node_shift),
        moved("hop_edge", edge_shift),
        moved("hop_path", path_shift),
        plain("pairs"),
        moved("pair_source", node_shift),
        moved("pair_target", node_shift),
        torch.from_numpy(path_shift),
        torch.from_numpy(pair_shift),
        torch.from_numpy(node_shift),
    )
