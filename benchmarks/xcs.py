"""xcs against plain Python: how much faster, and is it ever slower?

    python benchmarks/xcs.py                   all three parts; writes benchmarks/results/xcs.json
    python benchmarks/xcs.py speed             the cases with a bar
    python benchmarks/xcs.py patterns          every pattern of the table, warm: never slower than 5% + 5 us
    python benchmarks/xcs.py first             every pattern, its first call
    python benchmarks/xcs.py speed --only mlp  the cases with this in their name

Calls of both sides take turns, and ratios of their medians count, not times. What neither waits nor uses
several cores is timed by the CPU time of its thread, so that other work on the machine counts less. How
patterns are timed is said in xcs_table.py.
"""

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from xcs_table import first, patterns

from wide_compiler.benchmark.document import provenance
from wide_compiler.xcs import jit, module

RESULTS = Path(__file__).parent / "results" / "xcs.json"
TURN = 0.03  # seconds: a call right after the other side's finds the caches full of that one's work


def interleaved(calls, seconds, least=7, clock=time.thread_time):
    """Median seconds per call of each, which take turns of some calls."""
    times = {name: [] for name in calls}
    began = time.perf_counter()
    gc.collect()
    gc.disable()
    try:
        while time.perf_counter() - began < seconds or min(map(len, times.values())) < least:
            for name, call in calls.items():
                turn = time.perf_counter()
                while time.perf_counter() - turn < TURN:
                    start = clock()
                    call()
                    times[name].append(clock() - start)
    finally:
        gc.enable()
    return {name: statistics.median(t) for name, t in times.items()}


@module
class Scorer:
    weights: np.ndarray
    bias: float = 0.0

    def __call__(self, embedding: np.ndarray) -> float:
        return float(embedding @ self.weights + self.bias)


WEIGHTS = np.random.default_rng(0).normal(size=64)


def score_rows(rows):
    scorer = Scorer(weights=WEIGHTS)
    return [scorer(row) for row in rows]


def normalise(x):
    return x / np.linalg.norm(x)


def normalise_rows(rows):
    return [normalise(row) for row in rows]


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def softmax_rows(rows):
    return [softmax(row) for row in rows]


def standardise(x):
    return (x - x.mean()) / x.std()


def standardise_rows(rows):
    return [standardise(row) for row in rows]


def fetch(x):
    time.sleep(0.02)
    return x


def fetch_all(xs):
    return [fetch(x) for x in xs]


def fetch_loop(xs):
    out = []
    for x in xs:
        out.append(fetch(x))
    return out


def three_statements(a, b, c):
    first = fetch(a)
    second = fetch(b)
    third = fetch(c)
    return first, second, third


def one_module(model, xs):
    return [model(x) for x in xs]


def many_modules(models, x):
    with torch.no_grad():
        return [m(x) for m in models]


def mlp(first, hidden, last):
    return nn.Sequential(nn.Linear(first, hidden), nn.ReLU(), nn.Linear(hidden, last))


def rows_of(n):
    return [np.random.default_rng(i).normal(size=64) for i in range(n)]


def speed_cases():
    """name: (function, arguments, the bar, calls before timing, clock)"""
    torch.manual_seed(0)
    rows = rows_of(10_000)
    frozen = mlp(64, 128, 64).requires_grad_(False)
    small, large = [mlp(16, 32, 4) for _ in range(32)], [mlp(64, 128, 64) for _ in range(32)]
    wall, cpu = time.perf_counter, time.thread_time
    return {
        "scorer, 10,000 rows in a list": (score_rows, (rows,), 4, 4, cpu),
        "softmax, 10,000 rows": (softmax_rows, (rows,), 4, 4, cpu),
        "normalise, 10,000 rows": (normalise_rows, (rows,), 4, 4, cpu),
        "standardise, 10,000 rows": (standardise_rows, (rows,), 4, 4, cpu),
        "waiting comprehension, 16 items": (fetch_all, (list(range(16)),), 12, 2, wall),
        "waiting loop, 32 items": (fetch_loop, (list(range(32)),), 12, 2, wall),
        "three waiting statements": (three_statements, (1, 2, 3), 2.8, 2, wall),
        "one module, 512 tensors": (one_module, (frozen, [torch.randn(64) for _ in range(512)]), 6, 4, cpu),
        "32 MLPs 16-32-4, one input": (many_modules, (small, torch.randn(8, 16)), 3, 3000, cpu),
        "32 MLPs 64-128-64, one input": (many_modules, (large, torch.randn(8, 64)), 0, 2500, cpu),
    }


def speed(options):
    print(f"{'case':36s} {'plain ms':>9s} {'jit ms':>9s} {'times':>7s} {'bar':>5s}  by")
    cases = {name: case for name, case in speed_cases().items() if options.only in name}
    return [row for name, case in cases.items() for row in speed_case(name, case, options.seconds)]


def speed_case(name, case, seconds):
    function, arguments, bar, warm, clock = case
    fast = jit(function)
    for _ in range(warm):
        fast(*arguments)
    calls = {"plain": lambda: function(*arguments), "jit": lambda: fast(*arguments)}
    times = interleaved(calls, seconds, clock=clock)
    by = ", ".join(sorted({r for c in fast.stats().values() for r in c if r != "plain"})) or "plain"
    return [told(name, times["plain"], times["jit"], bar, by)]


def told(name, plain, jitted, bar, by):
    mark = "" if plain / jitted >= bar else " *"
    times = f"{1e3 * plain:9.3f} {1e3 * jitted:9.3f} {plain / jitted:6.1f}x"
    print(f"{name:36s} {times} {bar:4.1f}x{mark}  {by}", flush=True)
    return {"case": name, "plain_s": plain, "jit_s": jitted, "times": plain / jitted, "bar": bar, "by": by}


PARTS = {"speed": speed, "patterns": patterns, "first": first}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", nargs="?", choices=list(PARTS), help="only this part")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    document = {
        **provenance(torch.device("cpu")),
        "numpy": np.__version__,
    }
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in [options.part] if options.part else list(PARTS):
        document[name] = PARTS[name](options)
    if not options.only:
        RESULTS.write_text(json.dumps({**kept, **document}, indent=1) + "\n")
        print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
