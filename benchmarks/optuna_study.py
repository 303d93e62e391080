"""An Optuna study trial by trial, and the same study with 16 trials at a time as lanes.

    python benchmarks/optuna_study.py          on CUDA if there is a device, else on one CPU thread

Both ways get the same suggestions (a random sampler of one seed), the same first weights and the same
batches, so every trial must end with the same value. Trial by trial is a plain PyTorch loop with
torch.optim.AdamW. The two are run in turns in one process; times include compiling and measuring. Writes
benchmarks/results/optuna_study_<device>.json.
"""

import argparse
import json
import time
from pathlib import Path

import optuna
import torch
from torch import nn

from wide_compiler.benchmark.document import provenance
from wide_compiler.initialize import reinitialize
from wide_compiler.integrations.optuna import optimize
from wide_compiler.training import AdamW, lane_losses

WIDTH, FEATURES, CLASSES = 64, 20, 5


def network():
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    )


def make_batches(size, batch, seed, device):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, FEATURES, generator=generator)
    y = (x[:, :CLASSES] + x[:, CLASSES : 2 * CLASSES] * x[:, 2 * CLASSES : 3 * CLASSES]).argmax(1)
    x, y = x.to(device), y.to(device)
    return [(x[i : i + batch], y[i : i + batch]) for i in range(0, size, batch)]


def suggest(trial):
    return {
        "lr": trial.suggest_float("lr", 1e-4, 1e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1e-4, 1e-1, log=True),
        "beta1": trial.suggest_float("beta1", 0.8, 0.95),
    }


def new_study():
    return optuna.create_study(
        sampler=optuna.samplers.RandomSampler(seed=1), pruner=optuna.pruners.NopPruner()
    )


def one_by_one(options, train, validation, device):
    def objective(trial):
        hyper = suggest(trial)
        with torch.random.fork_rng():
            torch.manual_seed(trial.number)
            model = network()
            torch.manual_seed(trial.number)
            reinitialize(model)
        model.to(device)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            hyper["lr"],
            betas=(hyper["beta1"], 0.999),
            weight_decay=hyper["weight_decay"],
            foreach=True,
        )
        for epoch in range(options.epochs):
            for x, y in train:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            with torch.no_grad():
                values = [(nn.functional.cross_entropy(model(x), y).double(), len(x)) for x, y in validation]
            value = float(sum(v * n for v, n in values) / sum(n for _, n in values))
            trial.report(value, epoch + 1)
        return value

    study = new_study()
    study.optimize(objective, n_trials=options.trials)
    return study


def in_lanes(options, train, validation, device):
    study = new_study()
    search = optimize(
        study,
        suggest,
        model=network().to(device),
        sample=train[0][0][:2],
        optimizer=AdamW,
        loss=lane_losses.cross_entropy,
        data=train,
        validation=validation,
        n_trials=options.trials,
        lanes=options.lanes,
        epochs=options.epochs,
    )
    assert search.refilled == options.trials - options.lanes
    return study


def timed(way, *arguments):
    wall, processor = time.perf_counter(), time.process_time()
    study = way(*arguments)
    return study, (time.perf_counter() - wall, time.process_time() - processor)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, validation = make_batches(2048, 32, 0, device), make_batches(512, 512, 1, device)
    seconds = {"trial by trial": [], "lanes": []}
    differences = []
    for _ in range(options.rounds):
        alone, took = timed(one_by_one, options, train, validation, device)
        seconds["trial by trial"].append(took)
        wide, took = timed(in_lanes, options, train, validation, device)
        seconds["lanes"].append(took)
        assert [t.params for t in wide.trials] == [t.params for t in alone.trials]
        differences.append(
            max(abs(a.value - b.value) / a.value for a, b in zip(alone.trials, wide.trials, strict=True))
        )
        assert wide.best_trial.number == alone.best_trial.number
    pairs = list(zip(*seconds.values(), strict=True))
    size = f"{options.epochs} epochs of {len(train)} steps"
    result = {
        "what": f"{options.trials} trials, {options.lanes} lanes, {size}, MLP of width {WIDTH}",
        **provenance(device),
        "optuna": optuna.__version__,
        "seconds": {name: [round(wall, 3) for wall, _ in values] for name, values in seconds.items()},
        "processor_seconds": {name: [round(p, 3) for _, p in values] for name, values in seconds.items()},
        "ratios": [round(a[0] / b[0], 2) for a, b in pairs],
        # What others do on the machine at the same time hardly touches these.
        "processor_ratios": [round(a[1] / b[1], 2) for a, b in pairs],
        "best_value": {"trial by trial": alone.best_value, "lanes": wide.best_value},
        "best_trial": {"trial by trial": alone.best_trial.number, "lanes": wide.best_trial.number},
        "largest_relative_difference_of_a_trials_value": max(differences),
    }
    print(json.dumps(result, indent=2))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"optuna_study_{device.type}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
