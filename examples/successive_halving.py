"""Successive halving: 64 settings begin, the worse half goes after each round, one is left.

Half the lanes run twice as long, so all rounds cost about the same. The wide model shrinks with its lanes.

python examples/successive_halving.py          writes successive_halving.png
"""

import sys

import matplotlib
import torch
from torch import nn

import wide_compiler
from wide_compiler.training import AdamW, LogUniform, Population, halve, lane_losses, random_search

matplotlib.use("Agg")
import matplotlib.pyplot as plt

QUICK = "--quick" in sys.argv
LANES, FIRST = (8, 8) if QUICK else (64, 16)

torch.manual_seed(0)
x = torch.rand(1200, 2) * 4 - 2
y = ((x[:, 0] * x[:, 1] > 0) ^ (x.square().sum(1) > 2)).long()
x_check, y_check, x, y = x[800:], y[800:], x[:800], y[:800]

net = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
wide = wide_compiler.compile(net, x[:2], n=LANES)
settings = random_search(LANES, seed=1, lr=LogUniform(1e-5, 0.3), weight_decay=LogUniform(1e-4, 1.0))
optimizer = AdamW(wide.parameters(), **settings)
population = Population(wide, optimizer)

names = list(range(LANES))  # which setting a lane has
curves: dict[int, list[tuple[int, float]]] = {name: [] for name in names}
step, length, lane_steps = 0, FIRST, 0
while True:
    for _ in range(length):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        lane_losses.cross_entropy(wide.shared(x[rows]), y[rows]).sum().backward()
        optimizer.step()
        step, lane_steps = step + 1, lane_steps + wide.n
        if step % max(4, length // 16) == 0:
            with torch.no_grad():
                checked = lane_losses.cross_entropy(wide.shared(x_check), y_check)
            for name, loss in zip(names, checked.tolist(), strict=True):
                curves[name].append((step, loss))
    best = settings["lr"][names[int(checked.argmin())]]
    print(f"step {step:4d}: {wide.n:2d} lanes, best loss {checked.min():.3f}, with lr {best:.1e}")
    if wide.n == 1:
        break
    names = [names[lane] for lane in halve(population, checked)]
    length *= 2
print(f"{lane_steps} steps of a lane; all {LANES} to the end would be {LANES * step}")

figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
for name, curve in curves.items():
    won = name == names[0]
    axes.plot(*zip(*curve, strict=True), color="#4c5fd5" if won else "#b9bfe8", linewidth=2 if won else 0.7)
    axes.plot(*curve[-1], marker="o", color="#4c5fd5" if won else "#e8833a", markersize=5 if won else 2.5)
axes.set(xscale="log", xlabel="step", ylabel="validation loss", ylim=(0, 1.2))
axes.set_title(f"{LANES} settings, halved until one is left: lr {settings['lr'][names[0]]:.1e}")
figure.savefig("successive_halving.png", dpi=120)
print("written to successive_halving.png")
