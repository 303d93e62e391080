"""Local workers and Ray actors in turns, and what being watched costs.

    python benchmarks/signals_ray.py --workers 2

Prints one JSON object: microseconds of a small matmul, milliseconds of a training step of an MLP.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

from wide_compiler.benchmark.document import provenance

HIDDEN, ROWS, LAYERS = 256, 256, 3
ROUNDS, STEPS, OPS = 5, 20, 500


def mlp():
    torch.manual_seed(0)
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(HIDDEN, HIDDEN), nn.ReLU())]
    return nn.Sequential(*layers)


def rounds(function, count, finish):
    """Median seconds of one of `count` calls, over rounds that each end with a wait."""
    function()
    finish()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            function()
        finish()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


def training(model, x, forward):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    last = []

    def step():
        loss = forward(model, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last[:] = [loss.detach()]

    return step, lambda: last[0]


def loss_of(model, x):
    return model(x).square().mean()


def signals(workers, ray):
    import wide_compiler.signals as gt

    (gt.ray_workers if ray else gt.cpu_workers)(workers)
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=range(workers))))
    layer = nn.Linear(64, 64, bias=False)
    with gt.signal.context("dp"):
        x = gt.randn(64, 64)
        w = gt.adopt(layer).weight.detach()  # made outside the context: whole on every worker
    last = [x]

    def op():
        last[0] = x @ w

    seconds = rounds(op, OPS, lambda: last[0].cpu())
    with gt.signal.context("dp"):
        data = gt.randn(ROWS, HIDDEN)

    def placed(model, x):
        with gt.signal.context("dp"):
            return loss_of(model, x)

    step, last = training(mlp(), data, placed)
    result = {"us_per_op": seconds * 1e6, "ms_per_step": rounds(step, STEPS, lambda: last().cpu()) * 1e3}
    gt.shutdown()
    return result


def in_turns(workers, turns=3):
    """Local workers and Ray actors, one after the other, several times; the best of each."""
    found = {"local": [], "ray": []}
    for _ in range(turns):
        for kind, results in found.items():
            results.append(signals(workers, kind == "ray"))
    return {
        kind: {name: min(r[name] for r in results) for name in ("us_per_op", "ms_per_step")}
        for kind, results in found.items()
    }


OBSERVER = """
import os, sys
from wide_compiler.observe import attach
path = attach.choose(int(sys.argv[1]))[1]
for line in sys.stdin:
    stream = attach.frames(path)
    next(stream)
    print("on", flush=True)
    os.set_blocking(0, False)
    for frame in stream:
        if sys.stdin.readline():
            break
    os.set_blocking(0, True)
    stream.close()
    print("off", flush=True)
"""


def watched(workers, turns=25):
    """Milliseconds of a step while nobody looks and while somebody does, in turns: the medians, and that of
    the ratios of neighbours."""
    import wide_compiler.signals as gt

    gt.cpu_workers(workers)
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=range(workers))))
    with gt.signal.context("dp"):
        data = gt.randn(ROWS, HIDDEN)

    def placed(model, x):
        with gt.signal.context("dp"):
            return loss_of(model, x)

    step, last = training(mlp(), data, placed)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    observer = subprocess.Popen([sys.executable, "-c", OBSERVER, str(os.getpid())], **pipes)
    times = {"nobody looks": [], "watched": []}
    for _ in range(turns):
        for kind, found in times.items():
            if kind == "watched":
                observer.stdin.write("on\n")
                observer.stdin.flush()
                assert observer.stdout.readline() == "on\n"
            found.append(rounds(step, STEPS, lambda: last().cpu()) * 1e3)
            if kind == "watched":
                observer.stdin.write("off\n")
                observer.stdin.flush()
                assert observer.stdout.readline() == "off\n"
    observer.kill()
    gt.shutdown()
    ratios = [on / off for off, on in zip(*times.values(), strict=True)]
    return {kind: statistics.median(found) for kind, found in times.items()} | {
        "ratio": statistics.median(ratios)
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {**provenance(torch.device("cpu")), "load": os.getloadavg()[0]}
    result["watched, ms per step"] = watched(options.workers)
    for workers in sorted({1, options.workers}):
        result[f"{workers} workers"] = in_turns(workers)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
