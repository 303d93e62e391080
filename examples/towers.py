"""Sixteen towers with a learned fusion, trained as one collective; which of them carries the answer?

python examples/towers.py          writes towers.png
"""

import sys

import matplotlib
import torch
from torch import nn

from wide_compiler.routers import PreNormTower, WeightedFusion, WideRouter, balance

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STEPS = 20 if "--quick" in sys.argv else 400


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


def target_of(x):
    return torch.sin(x[:, :1]) * torch.cos(x[:, 1:])


torch.manual_seed(0)
collective = Collective(16, 32)
collective.prepare_for_compile()
optimizer = torch.optim.Adam(collective.parameters(), lr=3e-3)
for step in range(STEPS):
    x = torch.rand(64, 2) * 6 - 3
    optimizer.zero_grad()
    loss = (collective(x) - target_of(x)).square().mean()
    loss.backward()
    optimizer.step()
    if step % 100 == 99:
        print(f"step {step + 1}: loss {loss:.4f}")
print(collective.explain())
report = balance(collective, collective.opinions)
print(report)

axis = torch.linspace(-3, 3, 80)
field = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).view(-1, 2)
with torch.no_grad():
    learned = collective(field)
figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
shading = {"cmap": "PuOr", "vmin": -1, "vmax": 1, "rasterized": True}
for axes, values, title in zip(panels, (target_of(field), learned), ("target", "learned"), strict=False):
    axes.pcolormesh(axis, axis, values.view(80, 80), **shading)
    axes.set(title=title, aspect="equal", xticks=[], yticks=[])
panels[2].bar(
    range(16), [tower.share for tower in report.towers], color="#4c5fd5", label="share of the output"
)
panels[2].plot(
    collective["fusion"].logits.softmax(0).detach(), "o", color="#e8833a", label="weight of the fusion"
)
panels[2].set_xticks(range(0, 16, 3))
panels[2].axhline(1 / 16, color="0.6", linestyle=":")
panels[2].set(xlabel="tower", title="16 towers, one group of lanes", ylim=(0, 0.15))
panels[2].legend(frameon=False, fontsize=8, loc="upper right")
figure.savefig("towers.png", dpi=110)
print("written to towers.png")
