"""Grid and random search at once: 64 settings on a grid and 64 at random are 128 lanes of one wide model.

python examples/random_and_grid_search.py          writes random_and_grid_search.png
"""

import sys

import matplotlib
import numpy as np
import torch
from torch import nn

import wide_compiler
from wide_compiler.training import AdamW, LogUniform, grid_search, lane_losses, random_search

matplotlib.use("Agg")
import matplotlib.pyplot as plt

QUICK = "--quick" in sys.argv
SIDE, STEPS = (4, 40) if QUICK else (8, 500)

rates, decays = np.logspace(-4, -0.5, SIDE).tolist(), np.logspace(-3, 1, SIDE).tolist()
grid = grid_search(lr=rates, weight_decay=decays)
drawn = random_search(SIDE * SIDE, lr=LogUniform(rates[0], rates[-1]), weight_decay=LogUniform(1e-3, 10))
lrs, weight_decays = grid["lr"] + drawn["lr"], grid["weight_decay"] + drawn["weight_decay"]
n = len(lrs)

# Few examples, noisy labels: without decay the networks learn the noise.
torch.manual_seed(0)
x, x_check = torch.randn(60, 8), torch.randn(1000, 8)
truth = torch.tanh(torch.randn(8, 6)) @ torch.randn(6, 1)
y, y_check = x @ truth + 2.0 * torch.randn(60, 1), x_check @ truth

net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
wide = wide_compiler.compile(net, x[:2], n=n)
optimizer = AdamW(wide.parameters(), lr=lrs, weight_decay=weight_decays)
for _ in range(STEPS):
    optimizer.zero_grad()
    lane_losses.mse(wide.shared(x), y).sum().backward()
    optimizer.step()
with torch.no_grad():
    scores = lane_losses.mse(wide.shared(x_check), y_check).nan_to_num(torch.inf)  # some settings diverge
on_grid, at_random = scores[: SIDE * SIDE], scores[SIDE * SIDE :]
for name, part, first in (("grid", on_grid, 0), ("random", at_random, SIDE * SIDE)):
    lane = first + int(part.argmin())
    print(f"best by {name}: {part.min():.3f} with lr {lrs[lane]:.1e}, weight decay {weight_decays[lane]:.1e}")

figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
shading = {"cmap": "viridis_r", "vmin": float(scores.min()), "vmax": float(scores.quantile(0.9))}
mesh = axes.pcolormesh(decays, rates, on_grid.view(SIDE, SIDE), shading="nearest", **shading)
axes.scatter(drawn["weight_decay"], drawn["lr"], c=at_random, edgecolor="white", s=45, **shading)
best = int(scores.argmin())
axes.scatter(weight_decays[best], lrs[best], marker="*", s=260, color="#e8833a", edgecolor="white", zorder=3)
axes.set(xscale="log", yscale="log", xlabel="weight decay", ylabel="learning rate")
axes.set_title(
    f"{n} settings, one wide model: a grid (squares), at random (dots), the best (star)", fontsize=11
)
figure.colorbar(mesh, label="validation loss")
figure.savefig("random_and_grid_search.png", dpi=120)
print("written to random_and_grid_search.png")
