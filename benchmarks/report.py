"""docs/benchmarks.md, and its pictures, from the result files of `wide_compiler benchmark`.

    wide_compiler benchmark mlp --peers -o benchmarks/results/mlp_cpu.json
    python benchmarks/report.py

Every file in benchmarks/results/ with rows of `wide_compiler benchmark`, of never_slower.py, of routers.py or
of memory.py becomes a section: on what, when and how it was measured, a table, and a picture of the speed-up
where there is more than one number of lanes. Others have pages of their own.
"""

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from wide_compiler.benchmark import BenchmarkRow, plot
from wide_compiler.benchmark.benchmark_row import LOOP, OURS
from wide_compiler.benchmark.benchmark_row import lines as lines_of
from wide_compiler.benchmark.tables import crossovers, label, number

ROOT = Path(__file__).resolve().parent.parent
INTRODUCTION = """# Measurements

Tables of the files in `benchmarks/results`, each with device, versions, date and command. Those of adapters,
training with settings by lane, populations, signals and `@jit` stand on their own pages.

Milliseconds for all N lanes together, the median of samples taken in turns with the loop's. "x loop" is how
many times faster than the eager loop over the N models, "x peer" the same against the fastest other way to
run them whose result is right. "error" is the largest difference from the loop, relative to its largest
number; "loop's own" is how far the loop itself is from the same in float64: where convolutions round to TF32,
which PyTorch lets them on a GPU, no two ways of computing a gradient agree better than that. "floor" is what
the row's bytes and operations would take at the GPU's peak rates. In the tables of routers, "sequence" is the
towers run one after another, which is also what runs where it is the fastest. Rows of `wide_compiler 0.1.0`
were measured with a development version before 0.5.0.
"""

TITLES = {
    "h200_infer": "GPU: inference",
    "h200_train": "GPU: training steps",
    "memory_cpu": "CPU: memory",
    "memory_cuda": "GPU: memory",
    "never_slower_default": "CPU: beside the loop and vmap",
    "never_slower_fast": "CPU: beside the compiled loop and compiled vmap",
    "routers_cpu": "CPU: routers",
    "routers_cpu_compiled": "CPU: routers under torch.compile",
    "routers_cuda": "GPU: routers",
    "routers_cuda_compiled": "GPU: routers under torch.compile",
    "routers_cuda_stacked": "GPU: 64 towers in training, stacked gradients",
}


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The result files of this page, by name."""
    contents = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: content for name, content in contents.items() if kind_of(content)}


def kind_of(content: dict[str, Any]) -> str:
    """What kind of section a file becomes; empty if it is none of this page."""
    if "memory" in content:
        return "memory"
    rows = content.get("rows")
    first = rows[0] if isinstance(rows, list) and rows else {}
    marks = {"towers": "routers", "ahead_of_vmap": "never slower", "strategy": "benchmark"}
    return next((kind for mark, kind in marks.items() if mark in first), "")


def rows_of(content: dict[str, Any]) -> list[BenchmarkRow]:
    known = {field.name for field in fields(BenchmarkRow)}
    return [
        BenchmarkRow(**{key: value for key, value in row.items() if key in known}) for row in content["rows"]
    ]


def opening(name: str, content: dict[str, Any]) -> list[str]:
    """What, on what, with what, when and how."""
    versions = f"wide_compiler {content['wide_compiler']}, torch {content['torch']}"
    if "python" in content:
        versions += f", Python {content['python']}"
    lines = [
        f"## {TITLES.get(name, name.replace('_', ' '))}",
        "",
        f"{content['device']}; {versions}; {content['date']}",
        "",
    ]
    lines += ["```bash", content["command"], "```", ""]
    if content.get("complete") is False:
        lines += ["Not all rows have been measured.", ""]
    return lines


def never_slower(name: str, content: dict[str, Any]) -> str:
    """The cases of benchmarks/never_slower.py."""
    fast = "compiled " if "fast" in name else ""
    head = ["case", "N", "batch", "ours ms", f"x {fast}loop", f"x {fast}vmap", "runs as", "error"]
    lines = [head, ["---"] * len(head)]
    for row in content["rows"]:
        ms = row["ms"]
        vmap = f"{ms['vmap'] / ms['ours']:.2f}" if "vmap" in ms else "fails"
        way = row["way"].split(",")[0] + (", tuned" if " as " in row["way"] else "")
        way += ", compiled" if row["way"].endswith("compiled") else ""
        cells = [row["case"], str(row["n"]), str(row["batch"]), f"{ms['ours']:.3f}"]
        lines.append([*cells, f"{row['x_loop']:.2f}", vmap, way, f"{row['error']:.0e}"])
    behind = sum(not row["ok"] for row in content["rows"])
    behind_vmap = sum(not row["ahead_of_vmap"] for row in content["rows"])
    said = f"{len(content['rows'])} cases; {behind} below 0.95 of the {fast}loop, "
    said += f"{behind_vmap} of the {fast}vmap "
    said += "(a case counts as below only if it also takes 15 microseconds longer)."
    table = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join([*opening(name, content), said, "", *table]) + "\n"


def routers(name: str, content: dict[str, Any]) -> str:
    """The rows of benchmarks/routers.py."""
    peers = [peer for peer in content["rows"][0]["ms"] if peer != "router"]
    head = ["case", "towers", "mode", "router ms", *(f"x {peer}" for peer in peers), "runs", "error"]
    lines = [head, ["---"] * len(head)]
    for row in content["rows"]:
        ms, mode = row["ms"], "train" if row["train"] else "infer"
        ratios = [f"{ms[peer] / ms['router']:.2f}" if peer in ms else "fails" for peer in peers]
        cells = [row["case"], str(row["towers"]), mode, f"{ms['router']:.3f}", *ratios]
        lines.append([*cells, row["how"], f"{row['error']:.0e}" if "error" in row else "–"])
    behind = sum(not row["ok"] for row in content["rows"])
    said = f"{len(content['rows'])} rows; {behind} behind the towers in sequence. Milliseconds of all towers."
    for row in content["rows"]:
        if "note" in row:
            said += f"\n{row['case']}, {row['towers']} towers: {row['note']}."
    return "\n".join([*opening(name, content), said, "", *(f"| {' | '.join(c)} |" for c in lines)]) + "\n"


def memory(name: str, content: dict[str, Any]) -> str:
    """The peaks of benchmarks/memory.py."""
    labels = list(content["memory"][0]["ratios"])
    lines = [["model", "N", "batch", "loop MB", *(f"{label}, x loop" for label in labels)]]
    lines.append(["---"] * len(lines[0]))
    for row in content["memory"]:
        ratios = [f"{row['ratios'][label]:.2f}" for label in labels]
        lines.append(
            [row["model"], str(row["n"]), str(row["batch"]), f"{row['loop_bytes'] / 1e6:.2f}", *ratios]
        )
    said = "The most that a call holds at once beyond what was held before it, its result included."
    return "\n".join([*opening(name, content), said, "", *(f"| {' | '.join(c)} |" for c in lines)]) + "\n"


def section(name: str, content: dict[str, Any], picture: Path | None) -> str:
    rows = rows_of(content)
    floors = [row.get("floor_ms") for row in content["rows"]]
    lines = [*opening(name, content), *_table(rows, floors), ""]
    lines += [f"- {line}" for line in crossovers(rows)]
    lines += [f"- {failure}" for failure in _failures(rows)]
    if picture is not None:
        lines += ["", f"![speed-up against the number of lanes]({picture})"]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: list[BenchmarkRow], floors: list[float | None]) -> list[str]:
    peers, floor = any(row.best_peer for row in rows), any(floors)
    head = ["", "mode", "N", "batch", "loop ms", "ours ms", "x loop", "strategy"]
    head += ["best peer", "its ms", "x peer"] * peers + ["floor ms"] * floor + ["error", "loop's own", ""]
    lines = [head, ["---"] * len(head)]
    for row, bound in zip(rows, floors, strict=True):
        cells = [label(row.kind, row.name, rows), row.mode, str(row.n), str(row.batch)]
        cells += [number(row.ms.get(LOOP)), number(row.ms.get(OURS)), _ratio(row.speedup), row.strategy]
        if peers:
            best = row.best_peer or "–"
            cells += [best, number(row.ms.get(best)), _ratio(row.peer_ratio)]
        cells += [number(bound)] * floor
        error = "–" if row.error is None else f"{row.error:.0e}"
        cells += [error, f"{row.loop_error:.0e}"]
        lines.append([*cells, "ok" if row.ok else "wrong" if row.wrong else "cannot run"])
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio:,.0f}" if ratio >= 1000 else f"{ratio:.3g}"


def _failures(rows: list[BenchmarkRow]) -> list[str]:
    said = [f"{row.name}, {peer}: {why}" for row in rows for peer, why in row.failures.items()]
    said += [f"{row.name}, {row.strategy}, N={row.n}: {row.why}" for row in rows if not row.ok]
    return list(dict.fromkeys(said))


def write(results: Path, docs: Path) -> Path:
    """Write the page and its pictures; the page's path."""
    sections = [INTRODUCTION]
    for name, content in load(results).items():
        kind = kind_of(content)
        if kind != "benchmark":
            tell = {"memory": memory, "never slower": never_slower, "routers": routers}[kind]
            sections.append(tell(name, content))
            continue
        rows, picture = rows_of(content), None
        if any(len(line) > 2 for line in lines_of(rows).values()):
            picture = Path("assets") / f"benchmark_{name}.png"
            plot.draw(rows, docs / picture, content["device"])
        sections.append(section(name, content, picture))
    page = docs / "benchmarks.md"
    page.write_text("\n".join(sections))
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    print(write(options.results, options.docs))


if __name__ == "__main__":
    main()
