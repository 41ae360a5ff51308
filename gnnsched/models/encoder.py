"""Message passing over servers, switches and in-flight flows."""

import torch
from torch import Tensor, nn

from gnnsched.models.features import EDGE_FEATURES, NODE_FEATURES, GraphBatch
from gnnsched.models.segments import segment_max, segment_mean


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two layers with a smooth non-linearity."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))


class LinkRound(nn.Module):
    """One round: along links and against them, mean and max of messages; then edge states from their ends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.forth = perceptron(3 * width, width, width)
        self.back = perceptron(3 * width, width, width)
        self.update_node = perceptron(5 * width, width, width)
        self.update_edge = perceptron(3 * width, width, width)
        self.node_norm = nn.LayerNorm(width)
        self.edge_norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, edges: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """``nodes`` (n, width), ``edges`` (m, width), ``edge_index`` (2, m); returns both, updated."""
        source, target = edge_index
        ends = torch.cat([nodes[source], nodes[target], edges], 1)
        gathered = [nodes]
        for messages, receiver in ((self.forth(ends), target), (self.back(ends), source)):
            gathered.append(segment_mean(messages, receiver, len(nodes)))
            gathered.append(segment_max(messages, receiver, len(nodes)))
        nodes = self.node_norm(nodes + self.update_node(torch.cat(gathered, 1)))
        ends = torch.cat([nodes[source], nodes[target], edges], 1)
        return nodes, self.edge_norm(edges + self.update_edge(ends))


class Encoder(nn.Module):
    """States of nodes (n, width) and edges (m, width) of a batch after ``rounds`` rounds."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.node_input = perceptron(len(NODE_FEATURES), width, width)
        self.edge_input = perceptron(len(EDGE_FEATURES), width, width)
        self.rounds = nn.ModuleList(LinkRound(width) for _ in range(rounds))

    def forward(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        nodes, edges = self.node_input(batch.nodes), self.edge_input(batch.edges)
        for layer in self.rounds:
            nodes, edges = layer(nodes, edges, batch.edge_index)
        return nodes, edges
