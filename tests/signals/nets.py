"""Small networks in two stages (`second(first(x))`), with their losses and data: float64, a few rows."""

import torch
import torch.nn.functional as F
from torch import nn


class Staged(nn.Module):
    def forward(self, x):
        return self.second(self.first(x))


class Mlp(Staged):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 16), nn.Linear(16, 4)

    def first(self, x):
        return torch.tanh(self.inner(x))

    def second(self, hidden):
        return self.outer(hidden)

    @staticmethod
    def loss(out, y):
        return F.mse_loss(out, y)

    @staticmethod
    def data(rows):
        return torch.randn(rows, 6, dtype=torch.float64), torch.randn(rows, 4, dtype=torch.float64)


class Tied(Mlp):
    """One weight in both stages."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 6)
        self.outer.weight = self.inner.weight

    @staticmethod
    def data(rows):
        return torch.randn(rows, 6, dtype=torch.float64), torch.randn(rows, 6, dtype=torch.float64)


class Cnn(Staged):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(36, 3)

    def first(self, x):
        return F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)

    def second(self, hidden):
        return self.head(hidden.flatten(1))

    @staticmethod
    def loss(out, y):
        return F.cross_entropy(out, y)

    @staticmethod
    def data(rows):
        return torch.randn(rows, 2, 6, 6, dtype=torch.float64), torch.randint(0, 3, (rows,))


class Transformer(Staged):
    """Token and position embeddings, one encoder layer, an output layer that is tied to the tokens."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Parameter(torch.randn(5, 8) * 0.1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.tokens.weight

    def first(self, ids):
        return self.tokens(ids) + self.positions

    def second(self, hidden):
        return self.out(self.layer(hidden))

    @staticmethod
    def loss(out, y):
        return F.cross_entropy(out.flatten(0, -2), y.flatten())

    @staticmethod
    def data(rows):
        return torch.randint(0, 11, (rows, 5)), torch.randint(0, 11, (rows, 5))


NETS = {"mlp": Mlp, "cnn": Cnn, "transformer": Transformer, "tied": Tied}
