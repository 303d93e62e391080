"""Timeline as a picture: one row per worker, a colour per signal, a pattern per pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ArgumentError, needs
from .blocks import SignalBlock, blocks, busy, typical_window
from .trace_file import WorkerTrace

COLOURS = ("#3b76c4", "#e0883a", "#3f9b62", "#b5507f", "#7c62b8", "#8a6d3b", "#2f9fae", "#a3a531")
GREY = "#b9bdc4"
# Readable without colour: forward is a plain bar, backward hatched, ops without gradients pale. A transfer,
# which is mostly waiting, is a thin line.
STYLES: dict[str, dict[str, Any]] = {
    "forward": {},
    "backward": {"hatch": "////", "edgecolor": "white", "linewidth": 0},
    "no grad": {"alpha": 0.45},
    "transfer": {"alpha": 0.55},
}


def colour_of(signals: list[str]) -> dict[str, str]:
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(sorted(signals))} | {"": GREY}


def draw(trace: WorkerTrace, path: Path, window: tuple[float, float] | None = None) -> tuple[float, float]:
    """Draw the trace from `window[0]` to `window[1]` seconds (default: a few typical steps).

    Returns that window.
    """
    needs("matplotlib", "plots").use("Agg")
    import matplotlib.pyplot as plt

    spans = trace.spans
    zero = spans[0].start
    start, end = typical_window(spans) if window is None else (zero + window[0], zero + window[1])
    if not start < end:
        raise ArgumentError(f"the window {window} is empty; give its begin and its end, in seconds")
    shown = [b for b in blocks(spans, 0.004 * (end - start)) if b.end > start and b.start < end]
    workers = sorted({s.worker for s in spans})
    colours = colour_of(sorted({s.signal for s in spans} - {""}))
    figure, axes = plt.subplots(figsize=(13, 1.9 + 0.62 * len(workers)))
    for block in shown:
        _bar(axes, block, workers.index(block.worker), start, end, colours)
    share = busy(spans, start, end)
    axes.set_yticks(range(len(workers)), [f"worker {w}\nbusy {share.get(w, 0):.0%}" for w in workers])
    axes.set_ylim(len(workers) - 0.5, -0.5)
    axes.set_xlim(0, (end - start) * 1e3)
    axes.set_xlabel("milliseconds")
    axes.grid(axis="x", color="#e4e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    whole = max(s.end for s in spans) - zero
    axes.set_title(
        f"{start - zero:.3f} s to {end - zero:.3f} s of {whole:.1f} s, {len(spans)} instructions on "
        f"{len(workers)} workers",
        loc="left",
        fontsize=11,
    )
    kinds = sorted({(b.signal, b.way) for b in shown}, key=lambda k: (k[0] == "", k))
    handles = [
        plt.Rectangle(
            (0, 0), 1, 1, facecolor=colours[name], label=f"{name or 'no signal'}, {way}", **STYLES[way]
        )
        for name, way in kinds
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False)
    figure.set_layout_engine("constrained")
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror}") from None
    finally:
        plt.close(figure)
    return start - zero, end - zero


def _bar(axes: Any, block: SignalBlock, row: int, start: float, end: float, colours: dict[str, str]) -> None:
    left = (max(block.start, start) - start) * 1e3
    width = (min(block.end, end) - max(block.start, start)) * 1e3
    thick = 0.16 if block.way == "transfer" else 0.72
    axes.barh(row, width, left=left, height=thick, color=colours[block.signal], **STYLES[block.way])
    part = width / ((end - start) * 1e3)
    if part > 0.0065 * len(block.signal) and block.signal and block.way != "transfer":
        box = {"facecolor": colours[block.signal], "edgecolor": "none", "pad": 1.0}
        axes.text(
            left + width / 2, row, block.signal, ha="center", va="center", color="white", fontsize=8, bbox=box
        )
