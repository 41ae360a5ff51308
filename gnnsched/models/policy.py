"""The hierarchical policy: encoder, low-level path head, high-level subgroup head, nearness attention."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gnnsched.collective.decode.choice import Scores
from gnnsched.collective.decode.decoder import Instance
from gnnsched.collective.decode.linear import PRIOR_CHUNK, PRIOR_PATH
from gnnsched.collective.decode.problem import CHUNK_FEATURES, NEARNESS_HEADS
from gnnsched.collective.decode.problem import PATH_FEATURES as EVENT_FEATURES
from gnnsched.models.encoder import Encoder, perceptron
from gnnsched.models.features import (
    PAIR_FEATURES,
    PATH_FEATURES,
    GraphBatch,
    graph_of,
    without_flows,
    without_trees,
)
from gnnsched.models.segments import segment_log_softmax, segment_max, segment_mean
from gnnsched.topology import InputError

Module = TypeVar("Module", bound=nn.Module)

# Features of paths and chunks at an event that come from the packed trees.
PACKED = frozenset({"longest_tail", "in_packed_tree", "packed_price", "packed_tail"})


def _apart_from(names: Sequence[str], left_out: Collection[str]) -> Tensor:
    """A factor per name: 0 for what is left out."""
    return torch.tensor([float(name not in left_out) for name in names])


@dataclass(frozen=True)
class PolicyConfig:
    """Sizes of the policy; ``rounds`` 0 leaves message passing out (features only), ``flows`` False in-flight flows,
    ``guidance`` False what is known from the packed trees.
    """

    width: int = 32
    rounds: int = 3
    attention_width: int = 8
    flows: bool = True
    guidance: bool = True


@dataclass(frozen=True)
class PolicyOutput:
    """Scores of a whole batch as tensors: ``path`` (P, path features), ``chunk`` and ``chunk_progress`` (P, chunk
    features), ``attention`` (Q, heads) with each target's entries summing to 1, ``nodes`` (n, width): embeddings.
    """

    path: Tensor
    chunk: Tensor
    chunk_progress: Tensor
    attention: Tensor
    nodes: Tensor


class Policy(nn.Module):
    """Maps a batch of instances to the linear score functions that the compiled decoder evaluates.

    The outputs start near the prior that the linear scorer was tuned from: the heads' last layers start small.
    """

    def __init__(self, config: PolicyConfig | None = None) -> None:
        super().__init__()
        self.config = config or PolicyConfig()
        width, inner = self.config.width, self.config.attention_width
        self.encoder = Encoder(width, self.config.rounds)
        view = 4 * width + len(PATH_FEATURES)
        self.path_head = perceptron(view, width, len(EVENT_FEATURES))
        self.chunk_head = perceptron(view, 2 * width, 2 * len(CHUNK_FEATURES))
        self.path_base = nn.Parameter(torch.tensor(PRIOR_PATH, dtype=torch.float32))
        self.chunk_base = nn.Parameter(torch.tensor(PRIOR_CHUNK, dtype=torch.float32))
        self.query = nn.Linear(width, NEARNESS_HEADS * inner, bias=False)
        self.key = nn.Linear(width, NEARNESS_HEADS * inner, bias=False)
        self.pair_weight = nn.Parameter(torch.tensor([[-1.0, 0.0], [-3.0, 0.0]]))
        assert len(PAIR_FEATURES) == self.pair_weight.shape[1]
        with torch.no_grad():
            for head in (self.path_head, self.chunk_head):
                last = head[-1]
                assert isinstance(last, nn.Linear)
                last.weight.mul_(0.1)
                last.bias.zero_()
            self.query.weight.mul_(0.1)

    def forward(self, batch: GraphBatch) -> PolicyOutput:
        """Encode the batch once and read both heads off it."""
        if not self.config.flows:
            batch = without_flows(batch)
        if not self.config.guidance:
            batch = without_trees(batch)
        nodes, edges = self.encoder(batch)
        hops = edges[batch.hop_edge]
        count = len(batch.paths)
        view = torch.cat(
            [
                nodes[batch.path_source],
                nodes[batch.path_target],
                segment_mean(hops, batch.hop_path, count),
                segment_max(hops, batch.hop_path, count),
                batch.paths,
            ],
            1,
        )
        path = self.path_base + self.path_head(view)
        constant, slope = (self.chunk_base + self.chunk_head(view)).split(len(CHUNK_FEATURES), 1)
        if not self.config.guidance:
            path = path * _apart_from(EVENT_FEATURES, PACKED).to(path)
            constant, slope = (
                part * _apart_from(CHUNK_FEATURES, PACKED).to(part) for part in (constant, slope)
            )
        inner = self.config.attention_width
        query = self.query(nodes).view(-1, NEARNESS_HEADS, inner)[batch.pair_target]
        key = self.key(nodes).view(-1, NEARNESS_HEADS, inner)[batch.pair_source]
        logits = (query * key).sum(-1) / inner**0.5 + batch.pairs @ self.pair_weight.T
        attention = segment_log_softmax(logits, batch.pair_target, len(nodes)).exp()
        return PolicyOutput(path, constant, slope, attention, nodes)

    @torch.no_grad()
    def scores(self, instance: Instance) -> Scores:
        """Scores of one instance for the decoder (numpy, double precision)."""
        batch = graph_of(instance).to(next(self.parameters()).device)
        return split_scores(self(batch), batch, [instance])[0]


def on_device(policy: Module, device: str) -> Module:
    """The policy moved to ``device``. Raises InputError where this machine, or torch, has no such device."""
    try:
        return policy.to(device)
    except (RuntimeError, AssertionError):
        raise InputError(f"device {device!r}: not available here; use cpu") from None


def _server_of(instance: Instance) -> np.ndarray:
    number = np.full(instance.topology.num_nodes, -1, np.int64)
    number[instance.paths.nodes] = np.arange(instance.paths.num_servers)
    return number


def split_scores(output: PolicyOutput, batch: GraphBatch, instances: list[Instance]) -> list[Scores]:
    """A batch's outputs as decoder scores per instance."""
    path, chunk, slope, attention = (
        tensor.detach().cpu().double().numpy()
        for tensor in (output.path, output.chunk, output.chunk_progress, output.attention)
    )
    pair_source, pair_target = batch.pair_source.cpu().numpy(), batch.pair_target.cpu().numpy()
    result = []
    for i, instance in enumerate(instances):
        paths = slice(int(batch.path_pointer[i]), int(batch.path_pointer[i + 1]))
        pairs = slice(int(batch.pair_pointer[i]), int(batch.pair_pointer[i + 1]))
        number, shift = _server_of(instance), int(batch.node_pointer[i])
        servers = instance.paths.num_servers
        dense = np.zeros((NEARNESS_HEADS, servers, servers))
        s, d = number[pair_source[pairs] - shift], number[pair_target[pairs] - shift]
        dense[:, s, d] = attention[pairs].T
        result.append(
            Scores(
                np.ascontiguousarray(path[paths]),
                np.ascontiguousarray(chunk[paths]),
                np.ascontiguousarray(slope[paths]),
                dense,
            )
        )
    return result


def join_gradients(
    output: PolicyOutput, batch: GraphBatch, instances: list[Instance], gradients: list[Scores]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The transpose of ``split_scores``: the decoder's gradients per instance as tensors like the outputs."""
    pair_source, pair_target = batch.pair_source.cpu().numpy(), batch.pair_target.cpu().numpy()
    attention = np.zeros(tuple(output.attention.shape))
    for i, (instance, gradient) in enumerate(zip(instances, gradients)):
        pairs = slice(int(batch.pair_pointer[i]), int(batch.pair_pointer[i + 1]))
        number, shift = _server_of(instance), int(batch.node_pointer[i])
        s, d = number[pair_source[pairs] - shift], number[pair_target[pairs] - shift]
        attention[pairs] = gradient.attention[:, s, d].T

    def tensor(arrays: np.ndarray, like: Tensor) -> Tensor:
        return torch.from_numpy(arrays).to(like.device, like.dtype)

    return (
        tensor(np.concatenate([g.path for g in gradients]), output.path),
        tensor(np.concatenate([g.chunk for g in gradients]), output.chunk),
        tensor(np.concatenate([g.chunk_progress for g in gradients]), output.chunk_progress),
        tensor(attention, output.attention),
    )
