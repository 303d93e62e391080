"""How long it takes until a model is fast, in a fresh process, without and with what an earlier one cached.

    python benchmarks/first_calls.py                       a few models of strangers.py
    python benchmarks/first_calls.py --rows 5201:3 5201:6  these rows
    python benchmarks/first_calls.py --profile FOLDER      also where the time of the second process goes

Each row runs in two processes one after another, which share cache folders that are empty at first: those of
torch.compile, of Triton, and of measured answers. Beside ours: compiled `torch.func.vmap` in a CUDA graph, in
the same way. Times are in seconds: `compile`, and each of the first calls. `until fast` is the sum of all up
to the first call that takes at most three times as long as the last one.
"""

import argparse
import cProfile
import io
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROWS = ["5201:6", "5201:3", "7307:4", "5201:1"]
CALLS = 6
WAYS = ("ours", "vmap")


def inside(row_id, way, profile):
    """Time one way in this process, and print the result as JSON."""
    started = time.perf_counter()
    import strangers
    import torch

    import wide_compiler

    imported = time.perf_counter() - started
    row = strangers.Row(*map(int, row_id.split(":")))
    members, inputs = strangers.build(row)
    if strangers.CUDA:
        torch.cuda.synchronize()
        torch.randn(8, 8, device="cuda") @ torch.randn(8, 8, device="cuda")
    strangers.synchronize()
    profiler = cProfile.Profile() if profile else None
    if profiler:
        profiler.enable()
    started = time.perf_counter()
    run, wide = (strangers.ours if way == "ours" else strangers.vmapped)(row, members, inputs)
    strangers.synchronize()
    seconds = [time.perf_counter() - started]
    for i in range(CALLS):
        started = time.perf_counter()
        run(inputs[i % len(inputs)])
        strangers.synchronize()
        seconds.append(time.perf_counter() - started)
    result = {"import": imported, "compile": seconds[0], "calls": seconds[1:], "row": str(row)}
    first = next(i for i, taken in enumerate(seconds[1:]) if taken <= 3 * seconds[-1])
    result["until_fast"] = sum(seconds[: first + 2])
    if profiler:
        profiler.disable()
        text = io.StringIO()
        stats = pstats.Stats(profiler, stream=text)
        stats.sort_stats("cumulative").print_stats(150)
        stats.sort_stats("tottime").print_stats(40)
        Path(profile).write_text(text.getvalue())
    if way == "ours" and wide.programs.latest:
        result["plan"] = str(wide.explain(measure=False).tuned)[:600]
    result["versions"] = [torch.__version__, wide_compiler.__version__]
    print(json.dumps(result), flush=True)


def process(row_id, way, folder, profile=None):
    """Run `inside` in a process that caches in `folder`."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "WIDE_COMPILER_CACHE")
    environment = {**os.environ, **{name: f"{folder}/{name}" for name in names}}
    command = [sys.executable, __file__, "--inside", row_id, way, *([profile] if profile else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:300] if done.stderr else done.returncode}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    warnings.filterwarnings("ignore")
    if sys.argv[1:2] == ["--inside"]:
        inside(*sys.argv[2:4], sys.argv[4] if len(sys.argv) > 4 else None)
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="*", default=ROWS, help="seed:number, as in strangers.py")
    parser.add_argument("--profile", help="folder for profiles of the second process")
    parser.add_argument("--out", help="file for the results, as JSON")
    args = parser.parse_args()
    results = []
    for row_id in args.rows:
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                for number in ("first", "second"):
                    result = process(row_id, way, folder)
                    results.append({"id": row_id, "way": way, "process": number, **result})
                    show(results[-1])
                if args.profile and way == "ours":
                    Path(args.profile).mkdir(parents=True, exist_ok=True)
                    process(row_id, way, folder, f"{args.profile}/{row_id.replace(':', '_')}.txt")
        if args.out:
            Path(args.out).write_text(json.dumps(results, indent=1))


def show(result):
    if "failed" in result:
        print(result["id"], result["way"], result["process"], result["failed"], flush=True)
        return
    calls = " ".join(f"{taken:.3f}" for taken in result["calls"])
    print(
        f"{result['row'].strip()} | {result['way']} {result['process']}: import {result['import']:.1f}, "
        f"compile {result['compile']:.2f}, calls {calls}; until fast {result['until_fast']:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
