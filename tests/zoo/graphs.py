"""Graph networks: edge lists with every scatter there is, and batched dense adjacency matrices."""

import torch
import torch.nn.functional as F
from torch import nn

from .case import zoo_case

NODES, EDGES = 9, 20


def edge_list_inputs(batch):
    """One graph: node features [NODES, 8] and edge_index [2, EDGES]; the batch size plays no part."""
    return (torch.randn(NODES, 8), torch.randint(0, NODES, (2, EDGES))), {}


def edge_feature_inputs(batch):
    """One graph with a feature vector on every edge."""
    (nodes, edge_index), _ = edge_list_inputs(batch)
    return (nodes, edge_index), {"edge_attr": torch.randn(EDGES, 4)}


def dense_graph_inputs(batch):
    """A batch of symmetric 0/1 adjacency matrices with self-loops."""
    upper = torch.triu(torch.rand(batch, 7, 7) > 0.6, diagonal=1)
    adjacency = upper | upper.transpose(1, 2) | torch.eye(7, dtype=torch.bool)
    return (torch.randn(batch, 7, 8), adjacency.float()), {}


class SumConv(nn.Module):
    """Sum of neighbours by `index_add_` into a zeros tensor, and a self connection."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.neighbour = nn.Linear(inputs, outputs, bias=False)
        self.itself = nn.Linear(inputs, outputs)

    def forward(self, x, edge_index):
        source, target = edge_index
        gathered = torch.zeros_like(x)
        gathered.index_add_(0, target, x[source])
        return self.itself(x) + self.neighbour(gathered)


@zoo_case("graph_index_add_inplace", edge_list_inputs, "no_batch")
class SumGNN(nn.Module):
    """Two convolutions and a graph read-out."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([SumConv(8, 16), SumConv(16, 16)])
        self.head = nn.Linear(16, 3)

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = F.relu(conv(x, edge_index))
        return self.head(x.mean(dim=0, keepdim=True))


@zoo_case("graph_scatter_add_gcn", edge_list_inputs, "no_batch")
class ScatterGCN(nn.Module):
    """GCN with symmetric degree normalisation, by `scatter_add`."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 4)])

    def propagate(self, x, source, target):
        count = x.shape[0]
        degree = x.new_zeros(count).scatter_add(0, target, x.new_ones(target.shape[0])) + 1
        scale = degree.pow(-0.5)
        messages = x[source] * (scale[source] * scale[target]).unsqueeze(-1)
        index = target.unsqueeze(-1).expand(-1, x.size(1))
        return torch.zeros_like(x).scatter_add(0, index, messages) + x / degree[:, None]

    def forward(self, x, edge_index):
        source, target = edge_index[0], edge_index[1]
        x = F.relu(self.propagate(self.layers[0](x), source, target))
        return F.log_softmax(self.propagate(self.layers[1](x), source, target), dim=1)


@zoo_case("graph_sage_scatter_reduce", edge_list_inputs, "no_batch")
class SageGNN(nn.Module):
    """GraphSAGE: neighbours picked by `index_select`, reduced to their mean, then to their maximum."""

    def __init__(self):
        super().__init__()
        self.mean_layer, self.max_layer = nn.Linear(16, 16), nn.Linear(32, 5)

    def neighbours(self, x, edge_index, reduce):
        messages = torch.index_select(x, 0, edge_index[0])
        index = edge_index[1].view(-1, 1).expand_as(messages)
        out = torch.zeros(x.size(0), x.size(1), dtype=x.dtype, device=x.device)
        return out.scatter_reduce(0, index, messages, reduce=reduce, include_self=False)

    def forward(self, x, edge_index):
        x = torch.tanh(self.mean_layer(torch.cat([x, self.neighbours(x, edge_index, "mean")], dim=-1)))
        x = F.normalize(x, p=2.0, dim=-1)
        return self.max_layer(torch.cat([x, self.neighbours(x, edge_index, "amax")], dim=-1))


@zoo_case("graph_message_passing_edges", edge_feature_inputs, "no_batch")
class EdgeMessagePassing(nn.Module):
    """Messages from both ends and the edge, summed by `torch.zeros(...).index_add`, read by a GRU cell."""

    def __init__(self):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(8 + 8 + 4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.update = nn.GRUCell(8, 8)
        self.edge_head = nn.Linear(16, 1)

    def forward(self, x, edge_index, edge_attr):
        source, target = edge_index.unbind(0)
        for _ in range(2):
            messages = self.message(torch.cat([x[source], x[target], edge_attr], dim=1))
            summed = torch.zeros(x.shape, dtype=x.dtype, device=x.device).index_add(0, target, messages)
            x = self.update(summed, x)
        scores = self.edge_head(torch.cat([x[source], x[target]], dim=-1)).squeeze(-1)
        return {"nodes": x, "edges": torch.sigmoid(scores)}


@zoo_case("graph_dense_gcn", dense_graph_inputs)
class DenseGCN(nn.Module):
    """Batched GCN on adjacency matrices, normalised by degree."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(8, 8) / 8**0.5) for _ in range(2))
        self.head = nn.Linear(8, 2)

    def forward(self, x, adjacency):
        scale = adjacency.sum(-1).clamp(min=1).rsqrt()
        normalised = scale[:, :, None] * adjacency * scale[:, None, :]
        for weight in self.weights:
            x = F.relu(torch.bmm(normalised, x @ weight))
        return self.head(x.sum(dim=1))


@zoo_case("graph_dense_gat", dense_graph_inputs)
class DenseGAT(nn.Module):
    """Two attention heads; whoever is no neighbour is masked out of the softmax."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 2 * 6, bias=False)
        self.source_score = nn.Parameter(torch.randn(2, 6) * 0.3)
        self.target_score = nn.Parameter(torch.randn(2, 6) * 0.3)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, adjacency):
        B, N, _ = x.shape
        h = self.project(x).view(B, N, 2, 6)
        source = torch.einsum("bnhd,hd->bhn", h, self.source_score)
        target = torch.einsum("bnhd,hd->bhn", h, self.target_score)
        scores = F.leaky_relu(target.unsqueeze(-1) + source.unsqueeze(-2), 0.2)
        scores = scores.masked_fill(adjacency.unsqueeze(1) == 0, float("-inf"))
        attention = self.dropout(torch.softmax(scores, dim=-1))
        return F.elu(torch.einsum("bhij,bjhd->bihd", attention, h)).reshape(B, N, -1)
