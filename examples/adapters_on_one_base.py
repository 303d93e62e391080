"""Many adapters on one frozen base: the base is one object in all lanes, so it runs once for all of them.

64 adapters learn 64 tasks, with 64 learning rates of their own.

python examples/adapters_on_one_base.py          writes adapters_on_one_base.png
"""

import sys

import matplotlib
import numpy as np
import torch
from torch import nn

import wide_compiler
from wide_compiler.training import AdamW, lane_losses

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STEPS = 20 if "--quick" in sys.argv else 200

torch.manual_seed(0)
base = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU()).requires_grad_(False)
models = [nn.Sequential(base, nn.Linear(256, 4)) for _ in range(64)]
wide = wide_compiler.compile(models, torch.randn(1, 32))

x = torch.randn(128, 32)
tasks = torch.einsum("bi,nic->nbc", x, torch.randn(64, 32, 4)).argmax(-1)  # [64, 128]: a task for each lane
rates = np.logspace(-5, 0, 64).tolist()
optimizer = AdamW(wide.parameters(), lr=rates)  # the frozen base is left out by itself
history = []
for step in range(STEPS):
    optimizer.zero_grad()
    losses = lane_losses.cross_entropy(wide.shared(x), tasks)
    losses.sum().backward()
    optimizer.step()
    history.append(losses.detach())
    if step % 50 == 49:
        print(f"step {step + 1}: losses of 64 adapters from {losses.min():.3f} to {losses.max():.3f}")
print(wide.explain())

figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
table = torch.stack(history)
colours = plt.get_cmap("viridis")(np.linspace(0, 0.95, 64))
for lane in range(64):
    axes.plot(table[:, lane], color=colours[lane], linewidth=0.8)
axes.set(yscale="log", ylim=(1e-3, 10), xlabel="step", ylabel="loss", title="64 adapters on one frozen base")
scale = plt.cm.ScalarMappable(matplotlib.colors.LogNorm(rates[0], rates[-1]), "viridis")
figure.colorbar(scale, ax=axes, label="learning rate")
figure.savefig("adapters_on_one_base.png", dpi=120)
print("written to adapters_on_one_base.png")
