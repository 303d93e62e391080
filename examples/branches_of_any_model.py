"""A transformer with separate query, key and value, and a mixture of experts: what goes together?

python examples/branches_of_any_model.py
"""

import torch
from torch import nn

from wide_compiler.routers import CompileRouter


class Block(nn.Module):
    def __init__(self, dim: int, experts: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.gate = nn.Linear(dim, experts)
        make = lambda: nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))  # noqa: E731
        self.experts = nn.ModuleList(make() for _ in range(experts))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.out(nn.functional.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h)))
        h = self.norm2(x)
        weights = self.gate(h).softmax(-1)
        return x + sum(weights[..., i : i + 1] * expert(h) for i, expert in enumerate(self.experts))


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(50, 32), Block(32, 6), Block(32, 6), nn.Linear(32, 50))
tokens = torch.randint(0, 50, (4, 12))
compiler = CompileRouter.from_module(model, tokens)
print(compiler.compile_towers())
planned = compiler.compile()
print(f"largest difference from the model: {(planned(tokens) - model(tokens)).abs().max():.1e}")
