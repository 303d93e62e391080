"""Sixteen towers with a learned fusion, trained as one collective; which of them carries the answer?

python examples/towers.py
"""

import torch
from torch import nn

from wide_compiler.routers import PreNormTower, WeightedFusion, WideRouter, balance


class Collective(WideRouter):
    def __init__(self, towers: int, dim: int):
        super().__init__("collective")
        self.stem = nn.Linear(2, dim)
        for i in range(towers):
            self.attach(f"tower_{i}", PreNormTower(f"tower_{i}", dim, depth=2))
        self.attach("fusion", WeightedFusion(towers))
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        self.opinions = self.wide_forward(self.stem(x))
        return self.head(self["fusion"](self.opinions))


torch.manual_seed(0)
collective = Collective(16, 32)
collective.prepare_for_compile()
optimizer = torch.optim.Adam(collective.parameters(), lr=3e-3)
for step in range(60):
    x = torch.rand(64, 2) * 6 - 3
    target = torch.sin(x[:, :1]) * torch.cos(x[:, 1:])
    optimizer.zero_grad()
    loss = (collective(x) - target).square().mean()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step + 1}: loss {loss:.4f}")
print(collective.explain())
print(balance(collective, collective.opinions))
