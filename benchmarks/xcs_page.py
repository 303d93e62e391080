"""Write docs/xcs_patterns.md: the cases with a bar, then every pattern of the table, what was done with it,
and how fast it is.

python benchmarks/xcs.py                # measures, writes results/xcs.json
python benchmarks/xcs_page.py           # makes the page from that file
python benchmarks/xcs_page.py --check   # exit code 1 if the page is not what the file says
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from xcs.patterns import PATTERNS  # noqa: E402

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "xcs.json", ROOT / "docs" / "xcs_patterns.md"

HEAD = """# What `jit` does with {count} patterns

`python benchmarks/xcs.py`, then `python benchmarks/xcs_page.py`: {device}, Python {python}, NumPy {numpy},
torch {torch}, {date}, on a machine with other work to do.

## Cases with a bar
Both sides take turns of some calls in one run, and medians of the warm calls are shown. What waits, or uses
several cores, is timed by the clock, all else by the CPU time of its thread.

| case | plain | jitted | times | aimed at | by |
| --- | --- | --- | --- | --- | --- |
{speed}

Of {first} first calls, {late} took more than 2 ms longer than a plain call, the parse of the text not
counted. Of {count} warm patterns, {slower} were slower than plain Python by more than 5% and 5 us: means of
calls that take turns, those in which a site is looked at among them, without the slowest in a hundred.

## Patterns
Every row is a function of `tests/xcs/patterns/`. The tests run each of them jitted and plain, three calls in
a row, and compare results, exceptions with their messages, what is printed and warned, arguments afterwards,
other state, and which objects are shared. Vectorised floats may differ in the last digits (relative 1e-9 for
float64, 1e-4 for float32); all else is equal exactly.

"Rung" is what a test forces to run it, with nothing asked of the clock; `plain` means that the loop stays as
written. "Chosen" is what measured cost chose with that many items, and "times" how many times faster than
plain Python the warm call then was. `plain` with a factor near 1 is as it should be.

| pattern | rung | items | chosen | times |
| --- | --- | --- | --- | --- |
"""


def page() -> str:
    results = json.loads(RESULTS.read_text())
    measured = {row["pattern"]: row for row in results["patterns"]}
    rows = []
    for pattern in PATTERNS:
        row = measured.get(pattern.name)
        chosen, times = (row["by"], f"{row['times']:.1f}x") if row else ("", "")
        rows.append(f"| {pattern.name} | {pattern.rung} | {pattern.large} | {chosen} | {times} |")
    speed = "\n".join(map(_speed_row, results["speed"]))
    counts = {
        "first": len(results["first"]),
        "late": sum(not row["ok"] for row in results["first"]),
        "slower": sum(not row["ok"] for row in results["patterns"]),
    }
    facts = {key: results[key] for key in ("device", "python", "numpy", "torch", "date")}
    return HEAD.format(count=len(PATTERNS), speed=speed, **counts, **facts) + "\n".join(rows) + "\n"


def _speed_row(row: dict) -> str:
    plain, jitted = (f"{1e3 * row[side]:.2f} ms" for side in ("plain_s", "jit_s"))
    bar = f"{row['bar']:g}x" if row["bar"] else ""
    return f"| {row['case'].strip()} | {plain} | {jitted} | {row['times']:.1f}x | {bar} | {row['by']} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    made = page()
    if parser.parse_args().check:
        if PAGE.read_text() != made:
            raise SystemExit(f"{PAGE} is not what {RESULTS} says; run python benchmarks/xcs_page.py")
    else:
        PAGE.write_text(made)
        print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
