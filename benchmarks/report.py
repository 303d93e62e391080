"""docs/benchmarks.md, and its pictures, from the result files of `wide_compiler benchmark`.

    wide_compiler benchmark mlp --peers -o benchmarks/results/mlp_cpu.json
    python benchmarks/report.py

Every file in benchmarks/results/ that holds rows becomes a section: on what, when and how it was measured, a
table, and a picture of the speed-up where there is more than one number of lanes.
"""

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from wide_compiler.benchmark import Row, plot
from wide_compiler.benchmark.report import crossovers, label, number
from wide_compiler.benchmark.rows import LOOP, OURS

ROOT = Path(__file__).resolve().parent.parent
INTRODUCTION = """# Benchmarks

Milliseconds for all N lanes together, the median of samples taken in turns with the loop's. "x loop" is how
many times faster than the eager loop over the N models, "x peer" the same against the fastest other way to
run them whose result is right. "error" is the largest difference from the loop, relative to its largest
number.
"""


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The result files that hold rows, by name."""
    contents = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: content for name, content in contents.items() if content.get("rows")}


def rows_of(content: dict[str, Any]) -> list[Row]:
    known = {field.name for field in fields(Row)}
    return [Row(**{key: value for key, value in row.items() if key in known}) for row in content["rows"]]


def section(name: str, content: dict[str, Any], picture: Path | None) -> str:
    rows = rows_of(content)
    lines = [f"## {name.replace('_', ' ')}", ""]
    versions = (
        f"wide_compiler {content['wide_compiler']}, torch {content['torch']}, Python {content['python']}"
    )
    lines += [f"{content['device']}; {versions}; {content['date']}", ""]
    lines += ["```", content["command"], "```", ""]
    lines += [*_table(rows), ""]
    lines += [f"- {line}" for line in crossovers(rows)]
    lines += [f"- {failure}" for failure in _failures(rows)]
    if picture is not None:
        lines += ["", f"![speed-up against the number of lanes]({picture})"]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: list[Row]) -> list[str]:
    peers = any(row.best_peer for row in rows)
    head = ["", "mode", "N", "batch", "loop ms", "ours ms", "x loop", "strategy"]
    head += ["best peer", "its ms", "x peer"] * peers + ["error", ""]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        cells = [label(row.kind, row.name, rows), row.mode, str(row.n), str(row.batch)]
        cells += [number(row.ms.get(LOOP)), number(row.ms.get(OURS)), _ratio(row.speedup), row.strategy]
        if peers:
            best = row.best_peer or "–"
            cells += [best, number(row.ms.get(best)), _ratio(row.peer_ratio)]
        error = "–" if row.error is None else f"{row.error:.0e}"
        lines.append([*cells, error, "ok" if row.ok else "wrong" if row.wrong else "cannot run"])
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3g}"


def _failures(rows: list[Row]) -> list[str]:
    said = [f"{row.name}, {peer}: {why}" for row in rows for peer, why in row.failures.items()]
    said += [f"{row.name}, {row.strategy}, N={row.n}: {row.why}" for row in rows if not row.ok]
    return list(dict.fromkeys(said))


def write(results: Path, docs: Path) -> Path:
    """Write the page and its pictures; the page's path."""
    sections = [INTRODUCTION]
    for name, content in load(results).items():
        rows, picture = rows_of(content), None
        if len({row.n for row in rows if row.ran}) > 1:
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
