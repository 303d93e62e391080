"""Signals beside eager PyTorch and plain SPMD DTensor under torchrun, in one run.

    python benchmarks/signals.py --workers 4          CPU
    python benchmarks/signals.py --workers 1 --gpu    one GPU
    python benchmarks/signals.py --workers 2 --ray    local workers and Ray actors in turns, and being watched

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


def mlp(device="cpu"):
    torch.manual_seed(0)
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(HIDDEN, HIDDEN), nn.ReLU())]
    return nn.Sequential(*layers).to(device)


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


def training(model, x, forward, before_update=lambda model: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    last = []

    def step():
        loss = forward(model, x)
        optimizer.zero_grad()
        loss.backward()
        before_update(model)
        optimizer.step()
        last[:] = [loss.detach()]

    return step, lambda: last[0]


def loss_of(model, x):
    return model(x).square().mean()


def eager(device):
    x = torch.randn(64, 64, device=device)
    synchronize = torch.cuda.synchronize if device != "cpu" else lambda: None
    op = rounds(lambda: x @ x, OPS, synchronize)
    step, last = training(mlp(device), torch.randn(ROWS, HIDDEN, device=device), loss_of)
    return {"us_per_op": op * 1e6, "ms_per_step": rounds(step, STEPS, lambda: last().cpu()) * 1e3}


def signals(workers, gpu, ray=False):
    import wide_compiler.signals as gt

    start = gt.gpu_workers if gpu else gt.cpu_workers
    start(workers) if not ray else gt.ray_workers(workers, address="local")
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
            results.append(signals(workers, False, kind == "ray"))
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


def watched(workers, turns=5):
    """Milliseconds of a step while nobody looks and while somebody does, in turns; the best of each."""
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
    return {kind: min(found) for kind, found in times.items()}


def spmd():
    """What each rank runs under torchrun; rank 0 prints."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = distribute_tensor(torch.randn(64, 64), mesh, [Shard(0)])
    w = distribute_tensor(torch.randn(64, 64), mesh, [Replicate()])
    op = rounds(lambda: x @ w, OPS, lambda: (x @ w).full_tensor())
    model = distribute_module(mlp(), mesh)
    data = distribute_tensor(torch.randn(ROWS, HIDDEN), mesh, [Shard(0)])

    def sum_gradients(model):  # as data-parallel training does: once
        for p in model.parameters():
            p.grad = p.grad.redistribute(placements=p.placements)

    step, last = training(model, data, loss_of, sum_gradients)
    seconds = rounds(step, STEPS, lambda: last().full_tensor())
    if dist.get_rank() == 0:
        print(json.dumps({"us_per_op": op * 1e6, "ms_per_step": seconds * 1e3}), flush=True)
    dist.destroy_process_group()


def torchrun(workers):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, f"--nproc-per-node={workers}", __file__, "--spmd"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"the peer under torchrun ended with {done.returncode}:\n{done.stderr}")
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--ray", action="store_true", help="Ray actors beside local workers")
    parser.add_argument("--spmd", action="store_true", help="run as one rank of the peer")
    options = parser.parse_args()
    if options.spmd:
        spmd()
        return
    torch.set_num_threads(1)
    if options.ray:
        result = {**provenance(torch.device("cpu")), "load": os.getloadavg()[0]}
        result["watched, ms per step"] = watched(options.workers)
        for workers in sorted({1, options.workers}):
            result[f"{workers} workers"] = in_turns(workers)
        print(json.dumps(result, indent=2))
        return
    result = {
        **provenance(torch.device("cuda" if options.gpu else "cpu")),
        "load": os.getloadavg()[0],
        "mlp": f"{LAYERS} x Linear({HIDDEN}), {ROWS} rows, SGD",
        "eager": eager("cuda" if options.gpu else "cpu"),
        "signals, 1 worker": signals(1, options.gpu),
    }
    if options.workers > 1:
        if not options.gpu:
            result[f"plain SPMD DTensor, torchrun, {options.workers} ranks"] = torchrun(options.workers)
        result[f"signals, {options.workers} workers"] = signals(options.workers, options.gpu)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
