"""Population-based training: again and again the worst quarter of 64 lanes takes over from the best.

What takes over also changes its learning rate a little. Nobody writes down a schedule: the lanes find one.
Beside it, random search with the same 64 settings and the same number of steps. This is one seed;
benchmarks/population.py compares ten.

python examples/population_based_training.py          writes population_based_training.png
"""

import sys

import matplotlib
import torch
from torch import nn

import wide_compiler
from wide_compiler.training import (
    SGD,
    LogUniform,
    Population,
    exploit_and_explore,
    lane_losses,
    random_search,
)

matplotlib.use("Agg")
import matplotlib.pyplot as plt

QUICK = "--quick" in sys.argv
LANES, STEPS, TURN = (16, 60, 20) if QUICK else (64, 1500, 100)


def examples(count, seed):
    x = 2 * torch.rand(count, 6, generator=torch.Generator().manual_seed(seed)) - 1
    y = torch.sin(3 * x[:, 0]) * x[:, 1] + torch.cos(4 * x[:, 2] * x[:, 3]) + x[:, 4] - x[:, 5] ** 2
    return x, (y + 0.2 * torch.randn(count, generator=torch.Generator().manual_seed(seed + 1))).unsqueeze(1)


(x, y), (x_check, y_check) = examples(1500, seed=1), examples(500, seed=3)


def train(by_population):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    wide = wide_compiler.compile(net, x[:2], n=LANES)
    optimizer = SGD(wide.parameters(), momentum=0.9, **random_search(LANES, lr=LogUniform(3e-4, 0.3)))
    population = Population(wide, optimizer)
    losses, rates = [], []
    for step in range(STEPS):
        rows = torch.randint(len(x), (16,))
        optimizer.zero_grad()
        lane_losses.mse(wide.shared(x[rows]), y[rows]).sum().backward()
        optimizer.step()
        if step % 20 == 19 or step + 1 == STEPS:
            with torch.no_grad():
                losses.append(lane_losses.mse(wide.shared(x_check), y_check))
            rates.append(optimizer.lane_values("lr"))
        if by_population and step % TURN == TURN - 1 and step + 1 < STEPS:
            exploit_and_explore(population, losses[-1], {"lr": 1.5})
    return torch.stack(losses), torch.stack(rates)


losses, rates = train(by_population=True)
alone, _ = train(by_population=False)
best, best_alone = losses.nan_to_num(9e9).min(1).values, alone.nan_to_num(9e9).min(1).values
print(
    f"best loss after {STEPS} steps of {LANES} lanes: {best[-1]:.4f}, by random search {best_alone[-1]:.4f}"
)

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
steps = torch.arange(1, len(losses) + 1) * 20
left.plot(steps, losses, color="#c9d0fa", linewidth=0.6)
left.plot(steps, best_alone, color="#e8833a", label="best of random search")
left.plot(steps, best, color="#4c5fd5", linewidth=2, label="best of the population")
left.axhline(0.04, color="0.6", linestyle=":", label="the noise in the data")
left.set(yscale="log", ylim=(0.03, 2), xlabel="step", ylabel="validation loss", title="The lanes learn")
left.legend(frameon=False)
right.plot(steps, rates, color="#c9d0fa", linewidth=0.6)
right.plot(
    steps, rates.log().median(1).values.exp(), color="#4c5fd5", linewidth=2, label="median of the lanes"
)
right.set(yscale="log", xlabel="step", ylabel="learning rate", title="and find a schedule")
right.legend(frameon=False)
figure.savefig("population_based_training.png", dpi=120)
print("written to population_based_training.png")
