"""Models with branches, written as anybody would write them."""

import torch
from torch import nn

from wide_compiler.routers import WideRouter

from .towers import Mlp


class Mixture(nn.Module):
    """Experts with a dense gate."""

    def __init__(self, experts=4):
        super().__init__()
        self.gate = nn.Linear(6, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)) for _ in range(experts)
        )

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Branched(nn.Module):
    """A stem, three branches of convolutions, a head; norms that learn from what they see."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        for name in ("left", "middle", "right"):
            setattr(
                self,
                name,
                nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
            )
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        parts = [self.left(x), self.middle(x * 2), self.right(x)]
        return self.head(torch.cat(parts, 1).mean((2, 3)))


class Features(nn.Module):
    """An encoder for each feature, on a column of its own."""

    def __init__(self, features=5):
        super().__init__()
        self.encoders = nn.ModuleDict(
            {f"f{i}": nn.Sequential(nn.Linear(1, 8), nn.Tanh()) for i in range(features)}
        )
        self.head = nn.Linear(8 * features, 2)

    def forward(self, x):
        parts = [encoder(x[:, i : i + 1]) for i, encoder in enumerate(self.encoders.values())]
        return self.head(torch.cat(parts, -1))


class BasicConv(nn.Module):
    def __init__(self, cin, cout, **options):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(cin, cout, bias=False, **options), nn.BatchNorm2d(cout, eps=0.001)

    def forward(self, x):
        return nn.functional.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    """As in the zoo of every vision library: branches of different depth, a few of their layers alike."""

    def __init__(self):
        super().__init__()
        self.branch1x1 = BasicConv(6, 4, kernel_size=1)
        self.branch5x5_1, self.branch5x5_2 = (
            BasicConv(6, 4, kernel_size=1),
            BasicConv(4, 5, kernel_size=5, padding=2),
        )
        self.branch3x3_1 = BasicConv(6, 4, kernel_size=1)
        self.branch3x3_2 = BasicConv(4, 4, kernel_size=3, padding=1)
        self.branch3x3_3 = BasicConv(4, 4, kernel_size=3, padding=1)
        self.branch_pool = BasicConv(6, 4, kernel_size=1)

    def forward(self, x):
        pooled = nn.functional.avg_pool2d(x, 3, 1, 1)
        b3 = self.branch3x3_3(self.branch3x3_2(self.branch3x3_1(x)))
        parts = [self.branch1x1(x), self.branch5x5_2(self.branch5x5_1(x)), b3, self.branch_pool(pooled)]
        return torch.cat(parts, 1)


class SelfAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, 2, d // 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(dim), SelfAttention(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Blocks in a row, each with separate query, key and value."""

    def __init__(self, layers=2, dim=8):
        super().__init__()
        self.embed = nn.Embedding(11, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.head = nn.Linear(dim, 11)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Inner(WideRouter):
    def forward(self, x):
        return torch.stack(list(self.wide_forward(x).values())).mean(0)


class NestedRouters(nn.Module):
    """Two collectives side by side."""

    def __init__(self):
        super().__init__()
        for name in ("first", "second"):
            router = Inner(name)
            for i in range(3):
                router.attach(f"tower_{i}", Mlp(f"tower_{i}"))
            setattr(self, name, router)

    def forward(self, x):
        return self.first(x) + 2 * self.second(x)


class Siamese(nn.Module):
    """One encoder called twice, on inputs that do not know of each other."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, a, b):
        return (self.encoder(a) - self.encoder(b)).square().sum(-1)


class Chain(nn.Module):
    """Alike layers that wait for each other."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Crossed(nn.Module):
    """a2 waits for b1 and b2 for a1: the firsts may go together and so may the seconds."""

    def __init__(self):
        super().__init__()
        self.a1, self.a2, self.b1, self.b2 = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        a, b = self.a1(x), self.b1(x + 1)
        return self.a2(b.relu()), self.b2(a.relu())


class Unwritten(nn.Module):
    """Between two alike layers the input is written in place: their order matters."""

    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        h = self.stem(x).tanh()
        first = self.a(h)
        h.mul_(3)
        return first + self.b(h)


class OnValues(nn.Module):
    """Branches on the numbers themselves, so no graph holds."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        if x.sum() > 0:
            return self.a(x) + self.b(x)
        return self.a(x) - self.b(x)
