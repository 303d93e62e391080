"""Long runs by one command.

PYTHONPATH=src:tests python -m signals.soak kills --times 50     a worker dies at random points, restart
PYTHONPATH=src:tests python -m signals.soak steps --times 5000   nothing grows over a long training
"""

import argparse
import gc
import os
import random
import tempfile
import threading
import time

import torch
from torch import nn

import wide_compiler.signals as gt
from signals.placed import signal
from wide_compiler.signals import runtime
from wide_compiler.workers.local import alive


def setting():
    torch.manual_seed(0)
    model = gt.adopt(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    return model, torch.optim.Adam(model.parameters(), lr=0.05), gt.tensor(torch.randn(6, 4))


def steps(model, optimizer, x, count, after=lambda i: None):
    losses = []
    for i in range(count):
        with gt.signal.context("dp"):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after(i)
    return losses


def gone(pids, seconds=120.0):
    """Have these processes ended? Those of Ray close their connections a moment before."""
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


def kills(times):
    """Each time: checkpoint, kill a worker at a random moment, hear of it, restart, same losses."""
    signal("dp", [0, 1])
    expected = steps(*setting(), 16)
    rng = random.Random(0)
    slowest = 0.0
    for k in range(times):
        model, optimizer, x = setting()
        done = steps(model, optimizer, x, 6)
        with tempfile.TemporaryDirectory() as folder:
            gt.checkpoint(folder, model=model, optimizer=optimizer)
            pids, victim = list(runtime.engine().pool.pids), rng.randrange(2)
            killed = []

            def kill(pid=pids[victim], killed=killed):
                os.kill(pid, 9)
                killed.append(time.monotonic())

            timer = threading.Timer(rng.random() * 0.3, kill)
            timer.start()
            try:
                while True:
                    steps(model, optimizer, x, 1)
            except gt.WorkerDied as error:
                slowest = max(slowest, time.monotonic() - killed[0])
                assert error.worker == victim, error
            assert gone(pids)
            gt.restart(folder, model=model, optimizer=optimizer)
            assert done + steps(model, optimizer, x, 10) == expected
        print(f"{k + 1} deaths, every one named; slowest heard of after {slowest:.2f} s", flush=True)


def long_training(times, window=500):
    """Train `times` steps; after each window nothing may have grown since the first."""
    signal("dp", [0, 1])
    model, optimizer, x = setting()
    first, memories = None, []
    for done in range(window, times + 1, window):
        steps(model, optimizer, x, window)
        gc.collect()
        live = [(s["live_tensors"], s["templates"]) for s in gt.debug.worker_stats()]
        books = gt.debug.bookkeeping()
        memories.append([_resident(pid) for pid in (os.getpid(), *runtime.engine().pool.pids)])
        print(f"{done} steps: live {live} {books} controller and workers {memories[-1]} MiB", flush=True)
        kept = (live, books["plans"], books["ranges"], books["dead"], books["answers"])
        first = first or kept
        assert kept == first
        assert books["in_flight"] < 20
    growth = [b - a for a, b in zip(memories[0], memories[-1], strict=True)]
    assert max(growth) <= 16, (memories[0], memories[-1])
    return live


def _resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmRSS"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["kills", "steps"])
    parser.add_argument("--times", type=int, required=True)
    options = parser.parse_args()
    gt.cpu_workers(2)
    (kills if options.what == "kills" else long_training)(options.times)


if __name__ == "__main__":
    main()
