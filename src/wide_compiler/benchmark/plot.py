"""Plot of the speed-up against the number of lanes, one panel per workload."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import needs
from .benchmark_row import LOOP, BenchmarkRow, lines


def require_matplotlib() -> Any:
    """Return `matplotlib.figure`; raise `MissingExtraError` if it is not installed."""
    return needs("matplotlib.figure", "plots")


def draw(rows: Sequence[BenchmarkRow], path: Path, title: str = "") -> None:
    """Write the plot; the suffix of `path` decides the format."""
    figures = require_matplotlib()
    panels = sorted(
        {(row.kind, row.name) for row in rows if row.ran}, key=[(row.kind, row.name) for row in rows].index
    )
    columns = min(3, len(panels)) or 1
    deep = -(-len(panels) // columns) or 1
    figure = figures.Figure(figsize=(5.2 * columns, 4.0 * deep), layout="constrained")
    for position, (kind, name) in enumerate(panels, start=1):
        axes = figure.add_subplot(deep, columns, position)
        _panel(axes, name, [row for row in rows if (row.kind, row.name) == (kind, name) and row.ran])
    if title:
        figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _panel(axes: Any, name: str, rows: list[BenchmarkRow]) -> None:
    axes.axhline(1.0, color="0.6", linewidth=1)
    for (_, _, strategy), line in lines(rows).items():
        line = sorted(line, key=lambda row: row.n)
        axes.plot([row.n for row in line], [row.speedup for row in line], marker="o", label=strategy)
    for peer in dict.fromkeys(peer for row in rows for peer in row.errors):
        points = {row.n: row.ms[LOOP] / row.ms[peer] for row in rows if peer in row.ms}
        lanes = sorted(points)
        axes.plot(lanes, [points[n] for n in lanes], marker=".", linestyle="--", linewidth=1, label=peer)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("lanes N")
    axes.set_ylabel("times faster than the loop")
    axes.set_title(f"{name}, batch {rows[0].batch}, {rows[0].mode}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.grid(True, which="major", color="0.9")
    axes.legend(fontsize=8)
