"""Write docs/sweep.md: what became of every architecture of the sweep.

python benchmarks/sweep.py              # measures, writes results/sweep_cpu.json
python benchmarks/sweep_page.py         # makes the page from that file
python benchmarks/sweep_page.py --check # exit code 1 if the page is not what the file says
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "sweep_cpu.json", ROOT / "docs" / "sweep.md"
LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "hf": "Hugging Face", "zoo": "the tests' zoo"}
COMPILE_BAR = 10.0

HEAD = """# Architectures of timm, torchvision and Hugging Face

`python benchmarks/sweep.py`, then `python benchmarks/sweep_page.py`. {runs}.

Random weights, small configurations and pictures (of blocks that repeat two stay), dropout off, 3 lanes (2
of models with more than a million parameters), each with inputs of its own. "Equal" is equal to the
members, each alone, over a life in double precision: outputs, gradients, parameters and buffers in eval,
after training steps, in `lane(i)`, saved and loaded; small models also copied, changed, frozen, in another
precision; to 1e-7, or to ten times what a member moves by if its weights are off by their last digit.
"Fused": every node runs by a rule of the library for all lanes at once; members that fill a cache in their
first call are asked in a later one. Compile: CPU seconds of `compile` and of the first training step beyond
the next one. Times: how many times faster one call (or training step) of the lane graph is than the loop
and than `torch.func.vmap`, single precision, twice the lanes, CPU time of one thread, in turns; what tuning
would choose (the loop where it is faster) is not shown. {quick} of {count} rows are of a quick run: only
the first phases of the life, and no times.

"""


def page() -> str:
    results = json.loads(RESULTS.read_text())
    rows = results["rows"]
    ran = [row for row in rows if row["verdict"] != "skipped"]
    quick = sum(bool(row.get("quick")) for row in ran)
    text = HEAD.format(runs=made(results), quick=quick, count=len(ran))
    text += "| | architectures | equal | wrong or an error | fused in eval | fused in training | skipped |\n"
    text += "| --- | --- | --- | --- | --- | --- | --- |\n"
    for library, name in (*LIBRARIES.items(), ("", "all")):
        text += summary(
            name, [row for row in rows if row["model"].startswith(f"{library}:" if library else "")]
        )
    text += f"\n{compile_times(ran)}\n\n{speeds(ran)}\n\n## Not fused\n\n"
    text += "| model | in | why |\n| --- | --- | --- |\n"
    for row in ran:
        modes = [mode for mode, why in row["fused"].items() if why]
        if modes:
            text += f"| {row['model']} | {' and '.join(modes)} | {_cell(row['fused'][modes[0]])} |\n"
    text += "\n## Skipped\n\nThe model alone does not run like this.\n\n| model | why |\n| --- | --- |\n"
    for row in [row for row in rows if row["verdict"] == "skipped"]:
        text += f"| {row['model']} | {_cell(row['what'])} |\n"
    text += "\n## All\n\n| model | verdict | compile eval, training (s) | twice the lanes (s) "
    text += "| times the loop: eval, training | times vmap | vmap gives |\n" + "| --- " * 7 + "|\n"
    return text + "".join(map(line, ran))


def made(results: dict[str, Any]) -> str:
    """Where and when the rows were made; those that do not say it are of the file's own run."""
    places: dict[str, list[str]] = {}
    for row in results["rows"]:
        run = row.get("run", results)
        where = f"{run['device']}, torch {run['torch']}, Python {run['python']}"
        places.setdefault(where, []).append(run["date"])
    return "; ".join(
        f"{len(dates)} rows: {where}, runs begun {min(dates)} to {max(dates)}"
        for where, dates in places.items()
    )


def summary(name: str, rows: list[dict[str, Any]]) -> str:
    ran = [row for row in rows if row["verdict"] != "skipped"]
    equal = sum(row["verdict"] == "equal" for row in ran)
    shares = []
    for mode in ("eval", "train"):
        asked = [row["fused"][mode] for row in ran if mode in row["fused"]]
        fused = sum(not why for why in asked)
        shares.append(f"{fused} of {len(asked)} ({fused / len(asked):.0%})" if asked else "")
    cells = [name, len(ran), equal, len(ran) - equal, *shares, len(rows) - len(ran)]
    return "| " + " | ".join(map(str, cells)) + " |\n"


def compile_times(rows: list[dict[str, Any]]) -> str:
    times = {
        f"{r['model']} ({mode})": r["compile"].get(f"{mode} N", 0.0)
        for r in rows
        for mode in ("eval", "train")
    }
    slow = [f"{name} {seconds:.1f} s" for name, seconds in times.items() if seconds > COMPILE_BAR]
    pairs = [(row["compile"].get("eval N"), row["compile"].get("eval 2N")) for row in rows]
    growth = [twice / once for once, twice in pairs if once and twice and once > 0.3]
    median, longest = statistics.median(times.values()), max(times.values())
    said = f"Compile: median {median:.1f} s of one core, longest {longest:.1f} s; "
    said += f"over {COMPILE_BAR:.0f} s: {', '.join(slow) or 'none'}."
    if growth:
        said += f" With twice the lanes it takes {statistics.median(growth):.2f} times as long (median)."
    return said


def speeds(rows: list[dict[str, Any]]) -> str:
    said = []
    for what in ("eval, loop", "train, loop", "eval, vmap", "train, vmap"):
        found = [row["times"][what] for row in rows if what in row.get("times", {})]
        if found:
            said.append(f"{what}: median {statistics.median(found):.2f}, {len(found)} models")
    return "Times as fast as: " + "; ".join(said) + "."


def line(row: dict[str, Any]) -> str:
    verdict = (
        row["verdict"]
        if row["verdict"] == "equal"
        else f"{row['verdict']} ({row.get('phase', '')}): {row['what']}"
    )
    if "rounding" in row:
        verdict += f", moves by {row['rounding']:.0e} itself"
    seconds, times = row["compile"], row.get("times", {})
    vmap = sorted({v if v in ("equal", "differs") else "an error" for v in row.get("vmap", {}).values()})
    cells = [
        row["model"], verdict, _pair(seconds, "eval N", "train N"), _pair(seconds, "eval 2N", "train 2N"),
        _pair(times, "eval, loop", "train, loop"), _pair(times, "eval, vmap", "train, vmap"), ", ".join(vmap),
    ]  # fmt: skip
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |\n"


def _pair(table: dict[str, Any], first: str, second: str) -> str:
    return (
        ", ".join(f"{table[name]:.2f}" if name in table else "-" for name in (first, second)) if table else ""
    )


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args()
    if options.check:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
