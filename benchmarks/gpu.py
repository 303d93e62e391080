"""The workloads of docs/performance.md on a GPU: `WideConfig.fast()` beside its peers, a result file per row.

    python benchmarks/gpu.py --mode infer --out benchmarks/results/h200
    python benchmarks/gpu.py --mode train --out benchmarks/results/h200
    python benchmarks/gpu.py --warm --mode train      only compile, all rows at once: fills the caches on disk

Each row runs in a process of its own, so that a peer that breaks the GPU's context breaks its own row only.
All candidates of a row are timed interleaved. The floor is what the arithmetic and the memory traffic of the
row take at the rates below, whichever is more: nobody gets there.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch

from wide_compiler.benchmark import peers, training_peers
from wide_compiler.benchmark.document import document
from wide_compiler.benchmark.runner import Options, Point, measure
from wide_compiler.benchmark.workloads import MODELS

# Of an H200: what large kernels reach, in bytes and operations per second.
BANDWIDTH = 4.3e12
FLOAT32_PRODUCTS = 165e12  # on tensor cores, as three products of ten bits each
TF32_CONVOLUTIONS = 400e12

ROWS = [("mlp", 100), ("mlp", 1000), ("deep_mlp", 20), ("big_mlp", 32), ("resblock", 20), ("convnet", 64)]
ROWS += [("resnet18", 10), ("gpt", 8), ("block", 32), ("lstm", 32), ("gru", 32)]
PEERS = ("loop, 16 streams, graph", "loop, one fused Adam, graph", "vmap compiled, graph", "jax jit(vmap)")


def floor_ms(workload, n, batch, train):
    """A bound from below on the milliseconds of one call of all lanes."""
    from torch.utils.flop_counter import FlopCounterMode

    member, x = workload.make(), workload.inputs(batch, torch.device("cpu"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        y = workload.call(member, x)
    operations = counter.get_total_flops()
    if hasattr(member, "rnn"):  # the counter does not know recurrent layers
        weights = sum(w.numel() for name, w in member.rnn.named_parameters() if "weight" in name)
        operations = 2 * weights * batch * x.shape[1]
    convolves = any(isinstance(m, torch.nn.Conv2d) for m in member.modules())
    rate = TF32_CONVOLUTIONS if convolves else FLOAT32_PRODUCTS
    weights = sum(p.numel() for p in member.parameters())
    traffic = 4 * (weights + x.numel() + y.numel())
    if train:  # backward is two forwards; Adam reads four numbers for each weight and writes three
        operations, traffic = 3 * operations, 2 * traffic + 28 * weights
    return 1e3 * n * max(operations / rate, traffic / BANDWIDTH)


def one_row(name, n, train, warm):
    """Measure one row, or only build everything it needs."""
    workload = MODELS[name]
    for module, builder in ((peers, "inference_peers"), (training_peers, "training_peers")):
        all_peers = getattr(module, builder)
        setattr(module, builder, lambda p, f=all_peers: {k: v for k, v in f(p).items() if k in PEERS})
    options = Options(
        train=train, compile=True, peers=True, device=torch.device("cuda"), seconds=0.02 if warm else 0.4
    )
    started = time.perf_counter()
    (row,) = measure(Point(workload, n, workload.batch), options)
    found = {**row.as_dict(), "floor_ms": floor_ms(workload, n, workload.batch, train)}
    line = f"{name:9s} N={n:<5d} {row.mode} ours {row.ms.get('ours', 0):.4f} ms, "
    line += f"{row.speedup or 0:.1f}x the loop"
    if row.best_peer:
        line += f", {row.peer_ratio or 0:.2f}x of {row.best_peer} {row.ms[row.best_peer]:.4f} ms"
    line += f", error {row.error} ok={row.ok} {row.why} [{time.perf_counter() - started:.0f} s]"
    print(line, row.strategy, row.failures, flush=True)
    command = " ".join(["python", *sys.argv])
    return {**document([row], options.device, command, "full"), "rows": [found]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mode", choices=("infer", "train"), default="infer")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200"))
    parser.add_argument("--only", default="", help="rows as name:n, separated by commas")
    parser.add_argument("--warm", action="store_true", help="compile only, all rows at once")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=150, help="seconds for one row")
    options = parser.parse_args()
    train = options.mode == "train"
    if options.row:
        warnings.simplefilter("ignore")
        name, n = options.row.split(":")
        result = one_row(name, int(n), train, options.warm)
        if not options.warm:
            options.out.mkdir(parents=True, exist_ok=True)
            file = options.out / f"{name}_n{n}_{options.mode}.json"
            file.write_text(json.dumps(result, indent=1) + "\n")
        return
    rows = [f"{name}:{n}" for name, n in ROWS if not (train and n == 1000)]
    rows = [row for row in rows if not options.only or row in options.only.split(",")]
    again = [sys.executable, __file__, "--mode", options.mode, "--out", str(options.out)]
    again += ["--warm"] if options.warm else []
    running = []
    for row in rows:
        process = subprocess.Popen([*again, "--row", row], stderr=subprocess.STDOUT)
        if options.warm:
            running.append(process)
        else:
            wait(process, row, options.timeout)
    for process in running:
        wait(process, "warm-up", options.timeout)


def wait(process, row, seconds):
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        print(f"{row}: stopped after {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
