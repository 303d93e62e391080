"""Every pattern of the table in tests/xcs/patterns, jitted beside plain: warm calls, and first calls.

A part of xcs.py. Warm calls of both sides take turns, each with fresh arguments in a fresh world, and their
means count: a call in which a site is looked at costs more, and must be rare.
"""

import gc
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import numpy as np
import torch

from wide_compiler.xcs import jit
from xcs.patterns import PATTERNS

BAR, SLACK = 1.05, 5e-6


def patterns(options):
    rows = []
    print(f"{'pattern':52s} {'plain us':>10s} {'jit us':>10s} {'times':>7s}  by")
    for pattern in PATTERNS:
        if options.only not in pattern.name:
            continue
        row = warm_pattern(pattern, options.seconds)
        rows.append(row)
        mark = "" if row["ok"] else " *"
        print(
            f"{pattern.name:52s} {1e6 * row['plain_s']:10.1f} {1e6 * row['jit_s']:10.1f} "
            f"{row['times']:6.2f}x{mark}"
            f"  {row['by']}",
            flush=True,
        )
    slower = [r["pattern"] for r in rows if not r["ok"]]
    print(f"{len(rows)} patterns, {len(slower)} slower than 5% + 5 us: {slower}")
    return rows


def quiet(function, pattern, size):
    """A call of a pattern with fresh arguments in a fresh world, made outside the timed part; errors are part
    of the pattern."""
    pattern.reset()  # lists that grow from call to call would fill the caches for all that comes after
    arguments = pattern.arguments(size)

    def call():
        try:
            function(*arguments)
        except Exception:
            return

    return call


def warm_pattern(pattern, seconds):
    fast = jit(pattern.function)
    out, sys.stdout = sys.stdout, Nowhere()
    np.seterr(all="ignore")
    try:
        with torch.no_grad():
            began = time.perf_counter()
            calls = 0
            while calls < 6 or (calls < 400 and time.perf_counter() - began < seconds):
                quiet(fast, pattern, pattern.large)()
                calls += 1
            sizes = {}
            for _ in range(3):  # a busy moment may hit one side only
                plain, jitted = pattern_times(pattern, fast, seconds / 3)
                sizes.setdefault("plain", []).append(plain)
                sizes.setdefault("jit", []).append(jitted)
                if jitted <= BAR * plain + SLACK:
                    break
    finally:
        sys.stdout = out
        np.seterr(all="warn")
    by = ", ".join(sorted({r for c in fast.stats().values() for r in c if r != "plain"})) or "plain"
    return {
        "pattern": pattern.name, "plain_s": plain, "jit_s": jitted, "times": plain / jitted, "by": by,
        "ok": jitted <= BAR * plain + SLACK, "text": str(fast.explain()),
    }  # fmt: skip


def pattern_times(pattern, fast, seconds):
    """Mean seconds per call of both, which take turns: a call in which a site is looked at counts too."""
    times = {"plain": [], "jit": []}
    began = time.perf_counter()
    gc.collect()
    gc.disable()
    try:
        while time.perf_counter() - began < seconds or len(times["jit"]) < 7:
            for name, function in (("plain", pattern.function), ("jit", fast)):
                call = quiet(function, pattern, pattern.large)
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    finally:
        gc.enable()
    return mean(times["plain"]), mean(times["jit"])


def mean(seconds):
    """Of all but the slowest in a hundred, in which the machine did something else."""
    return statistics.fmean(sorted(seconds)[: -(len(seconds) // 100) or None])


class Nowhere:
    def write(self, text):
        return len(text)

    def flush(self):
        return None


def first(options):
    """The first call of a freshly jitted function, less the parse of its source, beside a plain call."""
    rows = []
    print(f"{'pattern':52s} {'plain us':>10s} {'first us':>10s} {'parse us':>10s} sites")
    for pattern in PATTERNS:
        if options.only not in pattern.name:
            continue
        rows.append(first_call(pattern))
        row = rows[-1]
        mark = "" if row["ok"] else " *"
        print(
            f"{pattern.name:52s} {1e6 * row['plain_s']:10.1f} {1e6 * row['first_s']:10.1f} "
            f"{1e6 * row['parse_s']:10.1f} {row['sites']:3d}{mark}",
            flush=True,
        )
    slower = [r["pattern"] for r in rows if not r["ok"]]
    print(f"{len(rows)} patterns, {len(slower)} over plain + 2 ms per site: {slower}")
    return rows


def first_call(pattern):
    """Best of three fresh functions: a new function each time, its callees' text known from the first."""
    out, sys.stdout = sys.stdout, Nowhere()
    np.seterr(all="ignore")
    found = []
    try:
        with torch.no_grad():
            for _ in range(4):
                start = time.perf_counter()
                fast = jit(pattern.function)
                parse = time.perf_counter() - start
                call = quiet(fast, pattern, pattern.large)
                start = time.perf_counter()
                call()
                took = time.perf_counter() - start
                call = quiet(pattern.function, pattern, pattern.large)
                start = time.perf_counter()
                call()
                found.append((took, time.perf_counter() - start, parse))
    finally:
        sys.stdout = out
        np.seterr(all="warn")
    took, plain, parse = (min(f[i] for f in found[1:]) for i in range(3))
    sites = max(len(getattr(fast, "__xcs__", fast).sites if hasattr(fast, "__xcs__") else []), 1)
    return {"pattern": pattern.name, "first_s": took, "plain_s": plain, "parse_s": parse, "sites": sites,
            "ok": took <= 1.05 * plain + 2e-3 * sites}  # fmt: skip
