"""A deep ensemble: 32 networks, each on a resampling of the data of its own, agree where there is data.

python examples/deep_ensemble.py          writes deep_ensemble.png
"""

import math
import sys

import matplotlib
import torch
from torch import nn

import wide_compiler
from wide_compiler.training import AdamW, lane_losses

matplotlib.use("Agg")
import matplotlib.pyplot as plt

QUICK = "--quick" in sys.argv
LANES, STEPS = (8, 60) if QUICK else (32, 600)

torch.manual_seed(0)
turn = torch.rand(300) * 3 * math.pi + 0.6  # two spirals
side = torch.randint(0, 2, (300,))
x = torch.stack([turn.cos(), turn.sin()], 1) * (turn * (1 - 2 * side)).unsqueeze(1) / 5
x += 0.06 * torch.randn_like(x)
y = side

net = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
wide = wide_compiler.compile(net, x[:2], n=LANES)
optimizer = AdamW(wide.parameters(), lr=1e-2)
own = torch.randint(len(x), (LANES, len(x)))  # every lane draws its own data, with repeats
for step in range(STEPS):
    optimizer.zero_grad()
    losses = lane_losses.cross_entropy(wide.stacked(x[own]), y[own])
    losses.sum().backward()
    optimizer.step()
    if step % 200 == 199:
        print(f"step {step + 1}: losses from {losses.min():.3f} to {losses.max():.3f}")

axis = torch.linspace(-2.6, 2.6, 120)
field = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).view(-1, 2)
with torch.no_grad():
    each = wide.shared(field).softmax(-1)[..., 1]  # [N, points]
mean = each.mean(0)
doubt = each.std(0)
print(f"members disagree by {doubt.mean():.3f} over the field")

figure, panels = plt.subplots(1, 3, figsize=(12, 4), layout="constrained", sharex=True, sharey=True)
pictures = (
    ("one member", each[0], "PuOr"),
    ("the mean of all", mean, "PuOr"),
    ("where they disagree", doubt, "Greys"),
)
for axes, (title, values, colours) in zip(panels, pictures, strict=True):
    top = 1.0 if colours == "PuOr" else float(doubt.max())
    axes.pcolormesh(axis, axis, values.view(120, 120), cmap=colours, vmin=0, vmax=top, rasterized=True)
    axes.scatter(*x.T, c=y, cmap="PuOr", s=9, edgecolor="white", linewidth=0.3)
    axes.set(title=title, aspect="equal", xticks=[], yticks=[])
figure.savefig("deep_ensemble.png", dpi=120)
print("written to deep_ensemble.png")
