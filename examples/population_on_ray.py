"""A population over the workers of a Ray cluster: 64 networks, each with its own learning rate.

python examples/population_on_ray.py                  writes population_on_ray.png
python examples/population_on_ray.py 10.0.0.1:6379    the same on that cluster

Needs: pip install 'wide_compiler[ray]'. Without an address the script starts a Ray of its own on this machine
and ends it again.
"""

import sys

import matplotlib
import torch
from torch import nn

import wide_compiler
import wide_compiler.signals as gt
from wide_compiler.training import Adam, fit, lane_losses

matplotlib.use("Agg")
import matplotlib.pyplot as plt

QUICK = "--quick" in sys.argv
LANES, EPOCHS, WORKERS = (8, 2, 2) if QUICK else (64, 30, 2)


def main() -> None:
    addresses = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    gt.ray_workers(WORKERS, address=addresses[0] if addresses else "local")
    shard = gt.ShardConfig(axis=0, workers=list(range(WORKERS)))
    gt.register_config("population", gt.SignalConfig(shard=shard))

    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x.square().sum(1, keepdim=True).sin()
    models = [nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)) for _ in range(LANES)]
    with gt.signal.context("population"):
        wide = wide_compiler.compile(models, x[:2])  # lanes are cut over the workers
    rates = torch.logspace(-4, -1, LANES)
    batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, 256, 64)]
    history = fit(wide, Adam(wide.parameters(), lr=rates), lane_losses.mse, batches, epochs=EPOCHS)

    best = int(history.losses[-4:].mean(0).argmin())
    where = best * WORKERS // LANES
    print(f"best lane: {best}, learning rate {rates[best]:.1e}, trained by worker {where}")
    stats = gt.debug.worker_stats()
    print("instructions run by each worker:", [sum(one["instructions"].values()) for one in stats])
    gt.shutdown()

    by_epoch = history.losses.view(EPOCHS, -1, LANES).mean(1)
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for lane in range(LANES):
        worker = lane * WORKERS // LANES
        colour = ("#4c5fd5", "#e8833a")[worker]
        label = f"on worker {worker}" if lane in (0, LANES - 1) else None
        axes.plot(by_epoch[:, lane], color=colour, linewidth=2 if lane == best else 0.6, label=label)
    axes.set(xlabel="epoch", ylabel="loss", title=f"{LANES} networks over {WORKERS} Ray workers")
    axes.legend(frameon=False)
    figure.savefig("population_on_ray.png", dpi=110)
    print("written to population_on_ray.png")


if __name__ == "__main__":
    main()
