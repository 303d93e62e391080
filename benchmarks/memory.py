"""Peak memory of inference beside the loop's, with and without chunks of lanes.

    python benchmarks/memory.py                on CUDA if there is a device, else on the CPU

Peaks are above what is held before the call; on a CPU they are those of PyTorch's allocations. Writes
benchmarks/results/memory_<device>.json.
"""

import argparse
import json
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.benchmark.document import provenance
from wide_compiler.benchmark.problem import Problem
from wide_compiler.benchmark.workloads import MODELS

ROWS = [("mlp", 32, 32), ("convnet", 8, 8), ("resblock", 8, 8), ("gpt", 4, 2), ("lstm", 8, 4)]


def peak_bytes(call, cuda):
    """The most that a call holds at once beyond what was held before it, its result included."""
    call()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = call()
        torch.cuda.synchronize()
        del kept
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = call()
    del kept
    held = most = 0
    for event in sorted(_allocations(profiler), key=lambda e: e[0]):
        held += event[1]
        most = max(most, held)
    return most


def _allocations(profiler):
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            yield event.start_ns(), event.nbytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    rows = []
    print(f"{'model':10s} {'N':>3s} {'B':>3s} {'loop MB':>9s} {'wide':>7s} {'chunks of 1':>12s} {'of 2':>6s}")
    with torch.no_grad():
        for name, n, batch in ROWS:
            problem = Problem.of(MODELS[name], n, batch, device, False)
            for member in problem.members:
                member.eval()
            lanes = list(zip(problem.members, problem.x.unbind(0), strict=True))
            loop = peak_bytes(lambda lanes=lanes: [m(x) for m, x in lanes], cuda)
            ratios = {}
            for label, chunk in (("wide", None), ("chunks of 1", 1), ("chunks of 2", 2)):
                config = WideConfig(chunk_lanes=chunk, strategy="wide" if chunk is None else None)
                wide = wide_compiler.compile(problem.members, problem.x[0], config=config)
                ratios[label] = peak_bytes(lambda w=wide, x=problem.x: w.stacked(x), cuda) / loop
            rows.append({"model": name, "n": n, "batch": batch, "loop_bytes": loop, "ratios": ratios})
            shown = "x ".join(f"{ratio:.2f}" for ratio in ratios.values())
            print(f"{name:10s} {n:3d} {batch:3d} {loop / 1e6:9.2f} {shown}x", flush=True)
    content = {
        **provenance(device),
        "memory": rows,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"memory_{device.type}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
