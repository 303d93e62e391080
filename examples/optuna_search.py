"""An Optuna search in which sixteen trials train at once; a pruned trial makes room for the next.

pip install 'wide_compiler[optuna,plots]'
python examples/optuna_search.py                  writes optuna_search.png
"""

import sys

import matplotlib
import optuna
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from wide_compiler.integrations.optuna import optimize
from wide_compiler.training import AdamW, lane_losses

matplotlib.use("Agg")
import matplotlib.pyplot as plt

trials, lanes, epochs = (12, 4, 3) if "--quick" in sys.argv else (96, 16, 15)


def spirals(size, seed):
    """Three arms, two coordinates: which arm is a point on?"""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(0, 3, (size,), generator=generator)
    radius = torch.rand(size, generator=generator)
    angle = 4 * radius + arm * 2.1 + 0.25 * torch.randn(size, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), arm)


def suggest(trial):
    return {
        "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-4, 1.0, log=True),
        "beta1": trial.suggest_float("beta1", 0.5, 0.98),
    }


def error_rate(output, target):
    return (output.argmax(-1) != target).float().mean(1)


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=lanes, n_warmup_steps=2),
)
search = optimize(
    study,
    suggest,
    model=nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)),
    sample=torch.zeros(2, 2),
    optimizer=lambda parameters: AdamW(parameters),
    loss=lane_losses.cross_entropy,
    metric=error_rate,
    data=DataLoader(spirals(600, seed=1), batch_size=50, shuffle=True),
    validation=DataLoader(spirals(600, seed=2), batch_size=600),
    n_trials=trials,
    lanes=lanes,
    epochs=epochs,
)
states = [trial.state.name for trial in study.trials]
complete, pruned = states.count("COMPLETE"), states.count("PRUNED")
print(f"{trials} trials, {lanes} at a time: {complete} complete, {pruned} pruned")
used = sum(len(trial.intermediate_values) for trial in study.trials)
print(f"{used} epochs of trials in {search.epochs} epochs of lanes; {search.refilled} lanes refilled")
settings = ", ".join(f"{name} {value:.3g}" for name, value in study.best_params.items())
print(f"best: trial {study.best_trial.number}, error {study.best_value:.1%}, {settings}")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
for trial in study.trials:
    pruned = trial.state.name == "PRUNED"
    curve = list(trial.intermediate_values.values())
    left.plot(
        range(1, len(curve) + 1),
        curve,
        color="0.8" if pruned else "tab:blue",
        lw=0.7,
        zorder=1 + (not pruned),
    )
left.set(xlabel="epoch of the trial", ylabel="validation error", title="trials; grey: pruned")
done = [trial for trial in study.trials if trial.value is not None]
dots = right.scatter(
    [trial.params["lr"] for trial in done],
    [trial.params["weight_decay"] for trial in done],
    c=[trial.value for trial in done],
    cmap="viridis_r",
)
right.plot(study.best_params["lr"], study.best_params["weight_decay"], "r*", ms=14)
right.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="weight decay", title="star: the best")
figure.colorbar(dots, ax=right, label="validation error")
figure.tight_layout()
figure.savefig("optuna_search.png", dpi=120)
print("picture: optuna_search.png")
