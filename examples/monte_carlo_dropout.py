"""Monte Carlo dropout: fifty stochastic passes of one network as fifty lanes, each with a seed of its own.

python examples/monte_carlo_dropout.py          writes monte_carlo_dropout.png
"""

import sys

import matplotlib
import torch
from torch import nn

import wide_compiler

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STEPS = 50 if "--quick" in sys.argv else 600

torch.manual_seed(0)
network = nn.Sequential(
    nn.Linear(1, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1)
)
network.append(nn.Linear(64, 1))
x = torch.cat([torch.linspace(-2, -0.5, 100), torch.linspace(0.5, 2, 100)]).unsqueeze(1)
y = torch.sin(3 * x) + 0.1 * torch.randn_like(x)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for _ in range(STEPS):
    optimizer.zero_grad()
    (network(x) - y).square().mean().backward()
    optimizer.step()

# The same weights in every lane, dropout on: lanes differ by what they draw alone.
wide = wide_compiler.compile(network.train(), x[:1], n=50, init="copy").seed(0)
field = torch.linspace(-3.5, 3.5, 211)
with torch.no_grad():
    samples = wide.shared(field.unsqueeze(1)).squeeze(-1)  # [50, points]
mean, spread = samples.mean(0), samples.std(0)
for i in range(0, 211, 30):
    bar = "#" * int(20 * spread[i])
    print(f"x = {field[i]:5.1f}   mean {mean[i]:6.2f}   uncertainty {spread[i]:5.2f}   {bar}")

figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
axes.plot(field, samples[:20].T, color="#c9d0fa", linewidth=0.5)
axes.fill_between(field, mean - 2 * spread, mean + 2 * spread, color="#4c5fd5", alpha=0.18, linewidth=0)
axes.plot(field, mean, color="#4c5fd5", linewidth=2, label="mean of 50 passes, two deviations")
axes.scatter(x, y, color="#e8833a", s=5, label="data")
axes.set(ylim=(-2.5, 2.5), title="Fifty passes with dropout on: unsure where there is no data")
axes.legend(frameon=False, loc="upper center")
figure.savefig("monte_carlo_dropout.png", dpi=120)
print("written to monte_carlo_dropout.png")
