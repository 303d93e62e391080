"""Thirty-two networks, each with its own learning rate and weight decay, each stopping when it overfits.

python examples/fit_with_early_stop.py            writes fit_with_early_stop.png
"""

import sys
import tempfile
from pathlib import Path

import matplotlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wide_compiler
from wide_compiler.training import AdamW, EarlyStop, fit, lane_losses

matplotlib.use("Agg")
import matplotlib.pyplot as plt

lanes, epochs = (8, 30) if "--quick" in sys.argv else (32, 200)


def points(size, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(size, 1, generator=generator) * 4 - 2
    return TensorDataset(x, torch.sin(3 * x) + 0.3 * torch.randn(size, 1, generator=generator))


network = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
torch.manual_seed(0)
wide = wide_compiler.compile(network, torch.zeros(2, 1), n=lanes)
rates = torch.logspace(-3.5, -1.5, lanes)
decays = [10.0 ** -(lane % 4) for lane in range(lanes)]

with tempfile.TemporaryDirectory() as folder:
    history = fit(
        wide,
        AdamW(wide.parameters(), lr=rates, weight_decay=decays),
        lane_losses.mse,
        DataLoader(points(60, seed=1), batch_size=20, shuffle=True),
        epochs=epochs,
        validation=DataLoader(points(200, seed=2), batch_size=200),
        early_stop=EarlyStop(patience=25),
        clip=1.0,
        seed=0,
        checkpoint=Path(folder) / "run",  # kill it and say resume=True: it goes on where it was
    )

print(history)
best = history.best_lane
print(f"best: lane {best}, validation {history.best[best]:.3f} at step {history.best_step[best]}, ", end="")
print(f"learning rate {rates[best]:.1e}, weight decay {decays[best]:.0e}")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
for lane in range(lanes):
    color = plt.cm.viridis(lane / (lanes - 1))
    stop = history.stopped[lane].step if lane in history.stopped else history.steps
    seen = [i for i, step in enumerate(history.validated_at) if step <= stop]
    left.plot([history.validated_at[i] for i in seen], history.validation[seen, lane], color=color, lw=0.8)
    left.plot(history.best_step[lane], history.best[lane], "o", color=color, ms=4)
left.set(
    xlabel="step", ylabel="validation loss", yscale="log", title="every lane until it stops; dots: its best"
)
x = torch.linspace(-2.3, 2.3, 300).unsqueeze(1)
with torch.no_grad():
    curves = wide.eval().shared(x).squeeze(-1)  # with the best weights of each
right.plot(*points(60, seed=1).tensors, "k.", ms=3)
right.plot(x, curves.T, color="0.7", lw=0.6)
right.plot(x, curves[best], color="crimson", label=f"lane {best}, the best")
right.set(xlabel="x", title="what the lanes have learned")
right.legend()
figure.tight_layout()
figure.savefig("fit_with_early_stop.png", dpi=120)
print("picture: fit_with_early_stop.png")
