"""The partitioning policy: message passing over the job's graph, and a score for each degree's after-state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from gnnsched.models.encoder import LinkRound, perceptron
from gnnsched.models.segments import segment_max, segment_mean
from gnnsched.partition.cluster import Cluster
from gnnsched.partition.features import FEATURES
from gnnsched.partition.job_graph import JobGraph
from gnnsched.partition.observation import (
    NETWORK_EDGE_FEATURES,
    NETWORK_NODE_FEATURES,
    SUMMARY_FEATURES,
    job_input,
)

Embedding = Literal["graph", "summary", "none"]

# What an arrival that is done in time, or blocked, counts in training and in the value, and the discount per arrival.
ACCEPTED, BLOCKED, DISCOUNT = 0.2, -0.8, 0.99


@dataclass(frozen=True)
class JobBatch:
    """Graphs of several models, joined: ``nodes`` (n, features), ``edges`` (m, features), ``edge_index`` (2, m),
    ``graph`` (n,) of each node; ``summary`` (models, numbers).
    """

    nodes: Tensor
    edges: Tensor
    edge_index: Tensor
    graph: Tensor
    summary: Tensor

    @property
    def count(self) -> int:
        """Number of models."""
        return len(self.summary)

    def to(self, device: torch.device | str) -> "JobBatch":
        """The same batch on another device."""
        tensors = (self.nodes, self.edges, self.edge_index, self.graph, self.summary)
        return JobBatch(*(tensor.to(device) for tensor in tensors))


def join_jobs(jobs: Sequence[tuple[JobGraph, Cluster]]) -> JobBatch:
    """Several models' graphs, each with the cluster that it runs on, as one batch."""
    inputs = [job_input(graph, cluster) for graph, cluster in jobs]
    shift = np.cumsum([0] + [graph.num_ops for graph, _ in jobs])
    return JobBatch(
        torch.from_numpy(np.concatenate([own.nodes for own in inputs])),
        torch.from_numpy(np.concatenate([own.edges for own in inputs])),
        torch.from_numpy(np.concatenate([graph.edges + s for (graph, _), s in zip(jobs, shift)]).T.copy()),
        torch.from_numpy(np.repeat(np.arange(len(jobs)), np.diff(shift))),
        torch.from_numpy(np.stack([own.summary for own in inputs])),
    )


@dataclass(frozen=True)
class PartitionConfig:
    """Sizes of the policy, and what it knows of a job's ``embedding``: message passing over its graph, its summary
    numbers alone, or nothing.
    """

    width: int = 64
    graph_width: int = 16
    rounds: int = 2
    embedding: Embedding = "graph"


class PartitionPolicy(nn.Module):
    """Scores each legal degree, and the refusal, by what the cluster would be afterwards."""

    def __init__(self, config: PartitionConfig | None = None) -> None:
        super().__init__()
        self.config = config or PartitionConfig()
        inner, width = self.config.graph_width, self.config.width
        if self.config.embedding == "graph":
            self.node_input = perceptron(len(NETWORK_NODE_FEATURES), inner, inner)
            self.edge_input = perceptron(len(NETWORK_EDGE_FEATURES), inner, inner)
            self.rounds = nn.ModuleList(LinkRound(inner) for _ in range(self.config.rounds))
            self.readout = nn.Linear(2 * inner, inner)
        elif self.config.embedding == "summary":
            self.summary = perceptron(len(SUMMARY_FEATURES), width, inner)
        self.first = nn.Linear(len(FEATURES) + inner, width)
        self.second = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)
        self.value_first = nn.Linear(2 * len(FEATURES) + inner, width)
        self.value_second = nn.Linear(width, width)
        self.value = nn.Linear(width, 1)
        with torch.no_grad():
            self.score.weight.mul_(0.1)

    def embed(self, jobs: JobBatch) -> Tensor:
        """Embeddings (models, graph_width) of the jobs' graphs."""
        if self.config.embedding == "none":
            return jobs.nodes.new_zeros((jobs.count, self.config.graph_width))
        if self.config.embedding == "summary":
            return torch.tanh(self.summary(jobs.summary))
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
