"""Message passing over servers, switches and in-flight flows."""

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from gnnsched.models.features import EDGE_FEATURES, NODE_FEATURES, GraphBatch


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two layers with a smooth non-linearity."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))


class LinkRound(MessagePassing):
    """One round: along links and against them, mean and max of messages; then edge states from their ends."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr=["mean", "max"], node_dim=0)
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
        size = (len(nodes), len(nodes))
        along = self.propagate(edge_index, content=self.forth(ends), size=size)
        against = self.propagate(edge_index.flip(0), content=self.back(ends), size=size)
        nodes = self.node_norm(nodes + self.update_node(torch.cat([nodes, along, against], 1)))
        ends = torch.cat([nodes[source], nodes[target], edges], 1)
        return nodes, self.edge_norm(edges + self.update_edge(ends))

    def message(self, content: Tensor) -> Tensor:
        """Messages are made per edge before aggregation."""
        return content


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
