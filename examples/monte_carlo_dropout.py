"""Monte Carlo dropout: fifty stochastic passes of one network as fifty lanes, each with a seed of its own.

python examples/monte_carlo_dropout.py
"""

import torch
from torch import nn

import wide_compiler

torch.manual_seed(0)
network = nn.Sequential(
    nn.Linear(1, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1)
)
network.append(nn.Linear(64, 1))
x = torch.linspace(-2, 2, 256).unsqueeze(1)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
for _ in range(200):
    optimizer.zero_grad()
    (network(x) - torch.sin(3 * x)).square().mean().backward()
    optimizer.step()

# The same weights in every lane, dropout on: lanes differ by what they draw alone.
wide = wide_compiler.compile(network.train(), x[:1], n=50, init="copy").seed(0)
with torch.no_grad():
    samples = wide.shared(torch.linspace(-4, 4, 9).unsqueeze(1)).squeeze(-1)
for at, mean, spread in zip(torch.linspace(-4, 4, 9), samples.mean(0), samples.std(0), strict=True):
    print(f"x = {at:5.1f}   mean {mean:6.2f}   uncertainty {spread:5.2f}   {'#' * int(20 * spread)}")
