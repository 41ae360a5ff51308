"""The partitioning policy: message passing over the job's graph, and a score for each degree's after-state."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gnnsched.models.encoder import LinkRound, perceptron
from gnnsched.models.segments import segment_max, segment_mean
from gnnsched.partition.features import FEATURES
from gnnsched.partition.job_graph import JobGraph
from gnnsched.partition.observation import EDGE_FEATURES, NODE_FEATURES, edge_features, node_features

# What an arrival that is done in time, or blocked, counts in training and in the value, and the discount per arrival.
ACCEPTED, BLOCKED, DISCOUNT = 0.2, -0.8, 0.99


@dataclass(frozen=True)
class JobBatch:
    """Graphs of several models, joined: ``nodes`` (n, 5), ``edges`` (m, 2), ``edge_index`` (2, m), ``graph`` (n,)."""

    nodes: Tensor
    edges: Tensor
    edge_index: Tensor
    graph: Tensor
    count: int

    def to(self, device: torch.device | str) -> "JobBatch":
        """The same batch on another device."""
        nodes, edges, edge_index, graph = (
            tensor.to(device) for tensor in (self.nodes, self.edges, self.edge_index, self.graph)
        )
        return JobBatch(nodes, edges, edge_index, graph, self.count)


def join_jobs(graphs: Sequence[JobGraph]) -> JobBatch:
    """Several models' graphs as one batch."""
    shift = np.cumsum([0] + [graph.num_ops for graph in graphs])
    return JobBatch(
        torch.from_numpy(np.concatenate([node_features(graph) for graph in graphs])),
        torch.from_numpy(np.concatenate([edge_features(graph) for graph in graphs])),
        torch.from_numpy(np.concatenate([graph.edges + s for graph, s in zip(graphs, shift)]).T.copy()),
        torch.from_numpy(np.repeat(np.arange(len(graphs)), np.diff(shift))),
        len(graphs),
    )


@dataclass(frozen=True)
class PartitionConfig:
    """Sizes of the policy; ``rounds`` 0 leaves the job's graph out."""

    width: int = 64
    graph_width: int = 16
    rounds: int = 2


class PartitionPolicy(nn.Module):
    """Scores each legal degree, and the refusal, by what the cluster would be afterwards."""

    def __init__(self, config: PartitionConfig | None = None) -> None:
        super().__init__()
        self.config = config or PartitionConfig()
        inner, width = self.config.graph_width, self.config.width
        self.node_input = perceptron(len(NODE_FEATURES), inner, inner)
        self.edge_input = perceptron(len(EDGE_FEATURES), inner, inner)
        self.rounds = nn.ModuleList(LinkRound(inner) for _ in range(self.config.rounds))
        self.readout = nn.Linear(2 * inner, inner)
        self.first = nn.Linear(len(FEATURES) + inner, width)
        self.second = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)
        self.value_first = nn.Linear(2 * len(FEATURES) + inner, width)
        self.value_second = nn.Linear(width, width)
        self.value = nn.Linear(width, 1)
        with torch.no_grad():
            self.score.weight.mul_(0.1)

    def embed(self, jobs: JobBatch) -> Tensor:
        """Embeddings (models, graph_width) of the jobs' graphs; zeros without message passing."""
        if not self.config.rounds:
            return jobs.nodes.new_zeros((jobs.count, self.config.graph_width))
        nodes, edges = self.node_input(jobs.nodes), self.edge_input(jobs.edges)
        for layer in self.rounds:
            nodes, edges = layer(nodes, edges, jobs.edge_index)
        pooled = (segment_mean(nodes, jobs.graph, jobs.count), segment_max(nodes, jobs.graph, jobs.count))
        return torch.tanh(self.readout(torch.cat(pooled, 1)))

    def forward(self, rows: Tensor, mask: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (b, D + 1) and value (b,) of decisions.

        ``rows`` (b, D + 1, features) and ``mask`` (b, D + 1) as ``features.observe`` fills them; ``embedding`` (b,
        graph_width) of each decision's job.
        """
        # Most degrees cannot be placed on a busy cluster: only the legal ones are scored. What depends on the job alone
        # is computed once per decision.
        inputs = len(FEATURES)
        job = nn.functional.linear(embedding, self.first.weight[:, inputs:], self.first.bias)
        hidden = nn.functional.linear(rows[mask], self.first.weight[:, :inputs]) + job[mask.nonzero()[:, 0]]
        hidden = nn.functional.silu(self.second(nn.functional.silu(hidden)))
        logits = rows.new_full(mask.shape, -torch.inf).masked_scatter(mask, self.score(hidden).squeeze(-1))
        log_probability = logits.log_softmax(-1)
        share = mask.to(rows.dtype).unsqueeze(-1)
        mean = (rows * share).sum(1) / share.sum(1)
        seen = torch.cat((rows[:, 0], mean, embedding), 1)
        hidden = nn.functional.silu(self.value_first(seen))
        value = self.value(nn.functional.silu(self.value_second(hidden))).squeeze(-1)
        return log_probability, value
