"""What one script spends on many workers: processor time per op, messages, checkpoints.

    python benchmarks/signals_scale.py --workers 2 8 32 64 --out FILE

Workers that outnumber the cores share them, so wall time would measure the workers; the script's own CPU
time (all of its threads) is what grows with their number. The step is a small MLP's, data parallel.
"""

import argparse
import json
import os
import tempfile
import time

import torch
from torch import nn

import wide_compiler.signals as gt
from wide_compiler.benchmark.document import provenance
from wide_compiler.signals import runtime

STEPS = 20
CHECKPOINT_BYTES = 64 << 20


def counted(pool):
    """Count what goes to the workers and comes from them."""
    counts = {"messages sent": 0, "bytes sent": 0, "messages heard": 0}
    post, hear = pool.post, pool.on_message

    def posting(worker, data):
        counts["messages sent"] += 1
        counts["bytes sent"] += len(data)
        post(worker, data)

    def hearing(worker, message):
        counts["messages heard"] += 1
        hear(worker, message)

    pool.post, pool.on_message = posting, hearing
    return counts


def measure(workers, compiled):
    """One number of workers: a training step issued op by op, or as one message (`gt.step`)."""
    gt.cpu_workers(workers)
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=range(workers))))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    gt.adopt(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    with gt.signal.context("dp"):
        x = gt.randn(4 * workers, 8)

    def step():
        with gt.signal.context("dp"):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step = gt.step(step) if compiled else step
    for _ in range(6):
        step()
    engine = runtime.engine()
    engine.synchronize()
    counts = counted(engine.pool)
    recorded, start, cpu = engine.recorded, time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        step()
    engine.flush()
    issued = time.process_time() - cpu
    engine.synchronize()
    cpu = time.process_time() - cpu
    wall = time.perf_counter() - start
    result = {
        "ops in a step": (engine.recorded - recorded) / STEPS,
        "script's ms per step, until issued": issued * 1e3 / STEPS,
        "script's ms per step, until done": cpu * 1e3 / STEPS,
        "wall ms per step": wall * 1e3 / STEPS,
        **{f"{kind} per step": count / STEPS for kind, count in counts.items()},
    }
    gt.shutdown()
    gt.clear_configs()
    return result


def checkpoint(workers, folder):
    """Megabytes a second of `gt.checkpoint`, of a tensor that is cut over the workers."""
    gt.cpu_workers(workers)
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=range(workers))))
    with gt.signal.context("dp"):
        x = gt.randn(CHECKPOINT_BYTES // 4 // 1024, 1024)
    runtime.engine().synchronize()
    start = time.perf_counter()
    gt.checkpoint(folder)
    seconds = time.perf_counter() - start
    del x
    gt.shutdown()
    gt.clear_configs()
    return CHECKPOINT_BYTES / 1e6 / seconds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8, 32, 64])
    parser.add_argument("--out", help="a JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {**provenance(torch.device("cpu")), "load before": os.getloadavg()[0]}
    for workers in options.workers:
        row = {"op by op": measure(workers, False), "gt.step": measure(workers, True)}
        if workers <= 8:
            with tempfile.TemporaryDirectory() as folder:
                row["checkpoint, MB/s"] = checkpoint(workers, folder)
        result[f"{workers} workers"] = row
        print(workers, json.dumps(row, indent=1), flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
