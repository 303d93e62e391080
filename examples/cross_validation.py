"""Cross-validation: 8 folds of 7 weight decays are 56 lanes, each on the samples of its own fold.

python examples/cross_validation.py          writes cross_validation.png
"""

import sys

import matplotlib
import torch
from torch import nn

import wide_compiler
from wide_compiler.training import AdamW, folds, lane_losses

matplotlib.use("Agg")
import matplotlib.pyplot as plt

QUICK = "--quick" in sys.argv
FOLDS, STEPS = (4, 40) if QUICK else (8, 400)
DECAYS = [1e-3, 1e-2, 1e-1, 1.0, 3.0, 10.0, 30.0]

torch.manual_seed(0)
x = torch.randn(96, 10)
y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3] + 0.7 * torch.randn(96, 1)

train, test = folds(len(x), FOLDS)  # [folds, samples]
train, test = train.repeat(len(DECAYS), 1), test.repeat(len(DECAYS), 1)  # lane = (decay, fold)
decays = [decay for decay in DECAYS for _ in range(FOLDS)]

net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))
wide = wide_compiler.compile(net, x[:2], n=len(decays), init="copy")  # all from the same weights
optimizer = AdamW(wide.parameters(), lr=5e-3, weight_decay=decays)
for _ in range(STEPS):
    optimizer.zero_grad()
    losses = lane_losses.mse(wide.stacked(x[train]), y[train])
    losses.sum().backward()
    optimizer.step()
with torch.no_grad():
    checked = lane_losses.mse(wide.stacked(x[test]), y[test]).view(len(DECAYS), FOLDS)
fitted = losses.detach().view(len(DECAYS), FOLDS)
for decay, mean, spread in zip(DECAYS, checked.mean(1), checked.std(1), strict=True):
    print(f"weight decay {decay:7.3f}: loss on left-out folds {mean:.3f} +- {spread / FOLDS**0.5:.3f}")

figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
axes.plot(DECAYS, checked, color="#c9d0fa", linewidth=0.8)
error = checked.std(1) / FOLDS**0.5
axes.errorbar(DECAYS, checked.mean(1), error, color="#4c5fd5", linewidth=2, capsize=3, label="left-out folds")
axes.plot(DECAYS, fitted.mean(1), color="#e8833a", label="training samples")
axes.axhline(0.49, color="0.6", linestyle=":", label="the noise in the data")
axes.set(
    xscale="log", xlabel="weight decay", ylabel="loss", title=f"{len(decays)} trainings: {FOLDS} folds each"
)
axes.legend(frameon=False, loc=(0.03, 0.06))
figure.savefig("cross_validation.png", dpi=120)
print("written to cross_validation.png")
