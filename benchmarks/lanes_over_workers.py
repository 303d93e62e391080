"""A population over workers: values, instructions and time beside one process; a search that loses a worker.

    python benchmarks/lanes_over_workers.py

Prints one JSON object. Time ratios are of one run, interleaved.
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
from torch import nn

import wide_compiler
import wide_compiler.signals as gt
from wide_compiler.benchmark.document import provenance
from wide_compiler.signals import runtime
from wide_compiler.training import Adam, fit


def net():
    return nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))


def loss(output, target):
    return (output - target).square().mean((1, 2))


def batches(count, rows):
    generator = torch.Generator().manual_seed(1)
    xs = [torch.randn(rows, 16, generator=generator) for _ in range(count)]
    return [(x, x.square().sum(1, keepdim=True).sin()) for x in xs]


def placed(models, workers):
    """The wide model on so many workers; 0: in this process."""
    if not workers:
        return wide_compiler.compile(models, torch.randn(2, 16))
    gt.register_config("population", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=range(workers))))
    with gt.signal.context("population"):
        return wide_compiler.compile(models, torch.randn(2, 16))


def adam(wide):
    return Adam(wide.parameters(), lr=torch.logspace(-4, -2, wide.n))


def table(lanes, steps, rounds):
    """Losses, instructions and seconds of 0 (this process), 1, 2 and 4 workers."""
    torch.manual_seed(0)
    models = [net() for _ in range(lanes)]
    data = batches(steps, 64)
    gt.cpu_workers(4)
    kinds = (0, 1, 2, 4)
    wides = {k: placed(models, k) for k in kinds}
    optimizers = {k: adam(wides[k]) for k in kinds}
    losses = {k: fit(wides[k], optimizers[k], loss, data, epochs=1, progress=False).losses for k in kinds}
    times = {k: [] for k in kinds}
    before = gt.debug.worker_stats()
    for _ in range(rounds):
        for k in kinds:
            start = time.perf_counter()
            fit(wides[k], optimizers[k], loss, data, epochs=1, progress=False)
            times[k].append((time.perf_counter() - start) / steps)
    after = gt.debug.worker_stats()
    best = {k: min(t) for k, t in times.items()}
    count = lambda stats, name: sum(s["instructions"].get(name, 0) for s in stats)  # noqa: E731
    collectives = {
        name: sum(s[name] for s in after) - sum(s[name] for s in before)
        for name in before[0]
        if name in ("all_gathers", "all_reduces", "reduce_scatters", "all_to_alls")
    }
    gt.shutdown()
    return {
        "lanes": lanes,
        "largest_relative_difference": {
            k: float(((losses[k] - losses[0]).abs() / losses[0].abs()).max()) for k in kinds[1:]
        },
        "ms_per_step": {k: round(1e3 * t, 2) for k, t in best.items()},
        "median_ms_per_step": {k: round(1e3 * statistics.median(t), 2) for k, t in times.items()},
        "two_workers_to_one": round(best[2] / best[1], 2),
        "forward_calls": count(after, "lanes") - count(before, "lanes"),
        "backward_calls": count(after, "lanes_backward") - count(before, "lanes_backward"),
        "steps": rounds * steps * (1 + 2 + 4),
        "collectives": collectives,
        "what_the_collectives_do": "fit looks at the sum of the losses of each step, and gathers them",
    }


def search(settings, killed):
    """A search by `fit` over four workers, each step a checkpoint; one worker is killed on the way."""
    torch.manual_seed(0)
    models = [net() for _ in range(settings)]
    deaths: list[Exception] = []
    with tempfile.TemporaryDirectory() as folder:
        while True:
            gt.cpu_workers(4)
            wide = placed(models, 4)

            def kill(moment, deaths=deaths):
                if killed and not deaths and moment.event == "step" and moment.step == 7:
                    os.kill(runtime.engine().pool.pids[2], 9)

            try:
                history = fit(
                    *(wide, adam(wide), loss, batches(5, 32)),
                    epochs=4, seed=0, checkpoint=folder, resume="auto", callbacks=[kill], progress=False,
                )  # fmt: skip
                break
            except gt.WorkerDied as error:
                deaths.append(error)
                gt.shutdown()
    gt.shutdown()
    return history, len(deaths)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "provenance": provenance(torch.device("cpu")),
        "population": table(options.lanes, options.steps, options.rounds),
    }
    (whole, _), (interrupted, deaths) = search(64, False), search(64, True)
    result["search"] = {
        "settings": 64,
        "workers_killed": deaths,
        "same_table": bool(torch.equal(whole.losses, interrupted.losses)),
        "largest_difference": float((whole.losses - interrupted.losses).abs().max()),
        "best_lane": [whole.best_lane, interrupted.best_lane],
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
