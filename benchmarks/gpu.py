"""The workloads of docs/performance.md on a GPU: `WideConfig.fast()` beside its peers.

    python benchmarks/gpu.py --mode infer --out benchmarks/results/h200_infer.json
    python benchmarks/gpu.py --mode train --out benchmarks/results/h200_train.json
    python benchmarks/gpu.py --warm --mode train      only compile, all rows at once: fills the caches on disk
    python benchmarks/gpu.py --profile --only mlp:100 where the time of a row goes, ours and its peers'

All candidates of a row are timed interleaved. A process measures row after row; if one breaks the GPU's
context, another goes on behind it. The floor is what the arithmetic and the memory traffic of the row take at
the rates below, whichever is more: nobody gets there.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch

from wide_compiler.benchmark import peers
from wide_compiler.benchmark.document import document
from wide_compiler.benchmark.ours import our_candidates
from wide_compiler.benchmark.problem import Problem
from wide_compiler.benchmark.runner import Options, Point, measure
from wide_compiler.benchmark.workloads import MODELS

# Of an H200: what large kernels reach, in bytes and operations per second.
BANDWIDTH = 4.3e12
FLOAT32_PRODUCTS = 165e12  # on tensor cores, as three products of ten bits each
TF32_CONVOLUTIONS = 400e12
PROFILED_CALLS = 20

ROWS = [("mlp", 100), ("mlp", 1000), ("deep_mlp", 20), ("big_mlp", 32), ("resblock", 20), ("convnet", 64)]
ROWS += [("resnet18", 10), ("gpt", 8), ("block", 32), ("lstm", 32), ("gru", 32)]
# The strongest peers of each row; all of them are measured by `wide_compiler benchmark --peers`.
GRAPH = "vmap compiled, graph"
STREAMS, FUSED, JAX = "loop, 16 streams, graph", "loop, one fused Adam, graph", "jax jit(vmap)"
PEERS = {
    "infer": {
        "mlp:1000": (GRAPH, JAX),
        "big_mlp:32": (GRAPH, JAX),
        "lstm:32": (STREAMS,),
        "gru:32": (STREAMS,),
    },
    "train": dict.fromkeys(("gpt:8", "block:32", "lstm:32", "gru:32"), (FUSED,)),
}
# What others were measured at elsewhere on the same GPU and cannot be run here: milliseconds.
ELSEWHERE = {
    "infer": {"lstm:32": ("WideCompiler 0.7", 0.331), "gru:32": ("WideCompiler 0.7", 0.266)},
    "train": {},
}


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


def parts_of(row, mode):
    """A row's workload, number of lanes, whether it trains, and the peers that are measured beside it."""
    name, n = row.split(":")
    return MODELS[name], int(n), mode == "train", PEERS[mode].get(row, (GRAPH,))


def one_row(row, mode, warm):
    """Measure one row, or only build everything it needs."""
    workload, n, train, wanted = parts_of(row, mode)
    all_peers = peers.peers_of
    peers.peers_of = lambda p: {k: v for k, v in all_peers(p).items() if k in wanted}
    options = Options(
        train=train, compile=True, peers=True, device=torch.device("cuda"), seconds=0.02 if warm else 0.4
    )
    started = time.perf_counter()
    try:
        (found,) = measure(Point(workload, n, workload.batch), options)
    finally:
        peers.peers_of = all_peers
    line = f"{row:11s} {mode} ours {found.ms.get('ours', 0):.4f} ms, {found.speedup or 0:.1f}x the loop"
    if found.best_peer:
        line += f", {found.peer_ratio or 0:.2f}x of {found.best_peer} {found.ms[found.best_peer]:.4f} ms"
    line += f", error {found.error} ok={found.ok} {found.why} [{time.perf_counter() - started:.0f} s]"
    print(line, found.strategy[:150], found.failures, flush=True)
    floor = floor_ms(workload, n, workload.batch, train)
    return found, {**found.as_dict(), "floor_ms": floor, "elsewhere": ELSEWHERE[mode].get(row)}


def profile_row(row, mode):
    """The kernels of one call, of each candidate of a row."""
    from torch.profiler import ProfilerActivity, profile

    workload, n, train, wanted = parts_of(row, mode)
    with torch.set_grad_enabled(train):
        problem = Problem.of(workload, n, workload.batch, torch.device("cuda"), train)
        others = peers.peers_of(problem)
        builds = our_candidates(problem, True, None) | {k: v for k, v in others.items() if k in wanted}
        for label, build in builds.items():
            candidate = build()
            for _ in range(5):
                candidate.call()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as found:
                for _ in range(PROFILED_CALLS):
                    candidate.call()
                torch.cuda.synchronize()
            kernels = [e for e in found.key_averages() if e.self_device_time_total]
            calls = PROFILED_CALLS * candidate.repeats
            whole = sum(e.self_device_time_total for e in kernels) / calls
            print(f"{row} {mode} {label}: {whole:.1f} us in kernels; {candidate.strategy()}")
            for e in sorted(kernels, key=lambda e: -e.self_device_time_total)[:14]:
                print(f"  {e.self_device_time_total / calls:8.2f} us {e.count / calls:6.1f}x {e.key[:100]}")


def run_rows(rows, mode, out, warm):
    """Row after row; the file is written anew after each, with those that were there."""
    for row in rows:
        print(f"begin {row}", flush=True)
        try:
            found, content = one_row(row, mode, warm)
        except Exception as error:
            print(f"{row}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            if "CUDA" in str(error):
                raise SystemExit(1) from error
            continue
        if not warm:
            before = json.loads(out.read_text())["rows"] if out.exists() else []
            kept = [r for r in before if (r["name"], r["n"]) != (found.name, found.n)]
            command = f"python benchmarks/gpu.py --mode {mode}"
            page = {**document([found], torch.device("cuda"), command, "full"), "rows": [*kept, content]}
            del page["crossover"]
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(page, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mode", choices=("infer", "train"), default="infer")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--only", default="", help="rows as name:n, separated by commas")
    parser.add_argument("--warm", action="store_true", help="compile only, all rows at once")
    parser.add_argument("--profile", action="store_true", help="list the kernels instead")
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for everything")
    options = parser.parse_args()
    out = options.out or Path(__file__).parent / "results" / f"h200_{options.mode}.json"
    if options.rows:
        warnings.simplefilter("ignore")
        run_rows(options.rows.split(","), options.mode, out, options.warm)
        return
    rows = [f"{name}:{n}" for name, n in ROWS if not (options.mode == "train" and n == 1000)]
    rows = [row for row in rows if not options.only or row in options.only.split(",")]
    if options.profile:
        warnings.simplefilter("ignore")
        for row in rows:
            profile_row(row, options.mode)
        return
    again = [sys.executable, __file__, "--mode", options.mode, "--out", str(out)]
    deadline = time.monotonic() + options.timeout
    if options.warm:
        running = [subprocess.Popen([*again, "--warm", "--rows", row]) for row in rows]
        for process in running:
            stop_at(process, deadline)
        return
    while rows and time.monotonic() < deadline:
        process = subprocess.Popen([*again, "--rows", ",".join(rows)], stdout=subprocess.PIPE, text=True)
        begun = []
        for line in process.stdout:
            if line.startswith("begin "):
                begun.append(line.split()[1])
            else:
                print(line, end="", flush=True)
        process.wait()
        rows = rows[len(begun) :] if begun else []


def stop_at(process, deadline):
    try:
        process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    main()
