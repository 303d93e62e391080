"""Forty programs that people write, jitted beside plain: the page docs/xcs_programs.md.

    python benchmarks/xcs_programs.py                      all of them, a table on the screen
    python benchmarks/xcs_programs.py --only FFT --why     some of them, with the reasons of what stayed plain
    python benchmarks/xcs_programs.py --out FILE           the page

Each program is sized so that a plain call takes some milliseconds. It is called 100 times, with four sets of
arguments in turn, plain and jitted in turns, and every result is compared. This is done twice, each time with
a newly jitted function, and the lower time of the two counts. The tenth and the hundredth call are medians of
five calls. Exit code 1 if a program differs or a bar is missed.
"""

import argparse
import gc
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import xcs_program_other  # noqa: F401  its programs are added
from xcs_program_arrays import PROGRAMS

from wide_compiler.xcs import jit
from wide_compiler.xcs.comparison import same

CALLS, SETS, TIMES = 100, 4, 2
MOST, FAST, ENOUGH = 1.05, 2.0, 20  # total time at most; a gain that counts; how many must have it
EITHER_SIDE = 2


def measured(fn, sets, clock):
    """Seconds of 100 plain calls, of 100 jitted ones, the jitted function, and whether all were equal."""
    fast = jit(fn)
    seconds, equal = {fn: [], fast: []}, True
    gc.collect()
    for i in range(CALLS):
        results = []
        for way in (fn, fast) if i % 2 else (fast, fn):
            began = clock()
            result = way(*sets[i % SETS])
            seconds[way].append(clock() - began)
            results.append(result)
        equal = equal and same(*results, rtol=1e-9)
    return seconds[fn], seconds[fast], fast, equal


def around(seconds, call):
    """The median of the calls around one of them."""
    chosen = seconds[max(call - 1 - EITHER_SIDE, 0) : call + EITHER_SIDE]
    return statistics.median(chosen[-5:])


def row_of(name, fn, make, clock):
    rng = np.random.default_rng(17)
    first = make(rng)
    sets = [first, *(make(rng) if not name.startswith("requests") else first for _ in range(SETS - 1))]
    runs = [measured(fn, sets, clock) for _ in range(TIMES)]
    counts = [site for run in runs for site in run[2].stats().values()]
    calls = sum(sum(site.values()) for site in counts)
    plainly = sum(site.get("plain", 0) for site in counts)
    row = {"program": name, "equal": all(run[3] for run in runs)}
    row["first"] = runs[0][0][0], runs[0][1][0]
    for label, call in (("tenth", 10), ("hundredth", CALLS)):
        row[label] = tuple(min(around(run[side], call) for run in runs) for side in (0, 1))
    row["total"] = tuple(min(sum(run[side]) for run in runs) for side in (0, 1))
    row["left"] = 1 - plainly / calls if calls else 0.0
    row["rungs"] = sorted({rung for site in counts for rung in site} - {"plain"})
    row["why"] = str(runs[-1][2].explain())
    return row


def shown(row):
    cells = [
        f"{1e3 * plain:.2f} / {1e3 * fast:.2f}"
        for plain, fast in (row["first"], row["tenth"], row["hundredth"])
    ]
    gain, total = row["hundredth"][0] / row["hundredth"][1], row["total"][1] / row["total"][0]
    by = ", ".join(row["rungs"]) or "plain"
    equal = "yes" if row["equal"] else "NO"
    figures = [f"{gain:.2f}x", f"{total:.2f}", f"{row['left']:.0%}", by, equal]
    return f"| {row['program']} | {' | '.join([*cells, *figures])} |"


def page(rows, summary):
    head = "| program | first call | tenth | hundredth | gain | total | left plain | by | equal |"
    return "\n".join([
        "# Forty programs, jitted beside plain",
        "",
        f"Made by `python benchmarks/xcs_programs.py` on {platform.machine()}: Python "
        f"{platform.python_version()}, NumPy {np.__version__}, PyTorch {torch.__version__}, "
        f"{torch.get_num_threads()} threads. Times are milliseconds of a call, plain / jitted. `gain` is "
        "plain time over jitted time at the hundredth call; `total` is the jitted time of all 100 calls, "
        "the first among them, over the plain time; `left plain` is the share of all runs of loops that "
        "left plain Python in these 100 calls.",
        "",
        head,
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(shown, rows),
        "",
        summary,
        "",
    ])  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="programs with this in their name")
    parser.add_argument("--out", type=Path, help="write the page there")
    parser.add_argument("--why", action="store_true", help="what became of each loop")
    parser.add_argument(
        "--cpu", action="store_true", help="CPU time of the thread, on a machine that is busy"
    )
    options = parser.parse_args()
    clock = time.thread_time if options.cpu else time.perf_counter
    rows = []
    for name, (fn, make) in PROGRAMS.items():
        if options.only.lower() in name.lower():
            rows.append(row_of(name, fn, make, clock))
            print(shown(rows[-1]), flush=True)
            if options.why:
                print(rows[-1]["why"], flush=True)
    slower = [r["program"] for r in rows if r["total"][1] > MOST * r["total"][0]]
    fast = [r["program"] for r in rows if r["hundredth"][0] >= FAST * r["hundredth"][1]]
    different = [r["program"] for r in rows if not r["equal"]]
    summary = (
        f"{len(fast)} of {len(rows)} programs take half the time or less at the hundredth call; "
        f"{len(slower)} take more than {MOST - 1:.0%} longer in all ({', '.join(slower)}); "
        f"{len(different)} differ ({', '.join(different)})."
    )
    print(summary)
    if options.out:
        options.out.write_text(page(rows, summary))
    if different or (not options.only and (slower or len(fast) < ENOUGH)):
        sys.exit(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
