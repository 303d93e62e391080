"""Picture of the demo: predictions of the ensemble, losses of the lanes, and times."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # writes a file; needs no display

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from .demo_train import GAP, Data, curve

INK, GREY, FAINT, PALE = "#1f2440", "#6b7088", "#d9dbe6", "#f4f5fa"
MEMBER, EPISTEMIC, ALEATORIC, WARM = "#4c5fd5", "#c9d0fa", "#fbe3c6", "#e8833a"

SUBTITLE = (
    "One wide model, one optimizer, one backward pass a step; each lane has weights and data of its own."
)

STYLE: Any = {  # Any, because matplotlib types the keys as literals
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "xtick.color": GREY,
    "ytick.color": GREY,
}
PANELS: list[Any] = [["ensemble", "losses"], ["ensemble", "times"]]


@dataclass
class Story:
    """Data of the picture: predictions `[lanes, grid, (mean, log-variance)]`, losses `[steps, lanes]`."""

    data: Data
    grid: Tensor
    predictions: Tensor
    losses: Tensor
    wide_seconds: float
    loop_seconds: float
    loop_is_measured: bool


def draw(story: Story, path: Path) -> None:
    """Write the picture to `path`."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplot_mosaic(
            PANELS, figsize=(13.5, 6.9), dpi=150, width_ratios=(2.2, 1), height_ratios=(1.75, 1)
        )
        title = f"{story.losses.shape[1]} networks, trained as one"
        figure.suptitle(title, x=0.01, ha="left", fontsize=21, fontweight="bold")
        figure.text(0.01, 0.9, SUBTITLE, fontsize=12, color=GREY)
        _draw_ensemble(axes["ensemble"], story)
        _draw_losses(axes["losses"], story.losses)
        _draw_times(axes["times"], story)
        figure.tight_layout(rect=(0, 0, 1, 0.93))
        figure.savefig(path)
        plt.close(figure)


def _draw_ensemble(axes: Axes, story: Story) -> None:
    means, log_variances = story.predictions.unbind(-1)
    mean, epistemic = means.mean(dim=0), means.std(dim=0)
    # Median of the lanes' noise: in the gap, without data, single lanes may be far off.
    aleatoric = log_variances.median(dim=0).values.exp()
    both = (epistemic.square() + aleatoric).sqrt()
    x = story.grid.squeeze(-1)

    axes.axvspan(*GAP, color=PALE, lw=0, zorder=0)
    for side in (-2, 2):  # beside the other band, not under it, so that the colours do not mix
        axes.fill_between(x, mean + side * epistemic, mean + side * both, color=ALEATORIC, lw=0, zorder=1)
    axes.fill_between(x, mean - 2 * epistemic, mean + 2 * epistemic, color=EPISTEMIC, lw=0, zorder=2)
    axes.plot(x, means.T, color=MEMBER, alpha=min(0.5, 18 / len(means)), lw=0.7, zorder=3)
    axes.plot(x, curve(x), color=WARM, lw=2, ls=(0, (4, 2.5)), zorder=4)
    axes.plot(x, mean, color=INK, lw=2.4, zorder=5)
    axes.scatter(story.data.x, story.data.y, s=28, color=INK, edgecolor="white", lw=0.9, zorder=6)

    axes.set(
        xlim=(float(x[0]), float(x[-1])), ylim=(-2.75, 2.95), title="Where there is no data, they disagree"
    )
    axes.text(sum(GAP) / 2, -2.6, "no data here", color=GREY, ha="center", fontsize=10.5)
    axes.grid(axis="y", color=FAINT, lw=0.6, alpha=0.6)
    axes.set_axisbelow(True)
    handles: list[Artist] = [
        Line2D([], [], marker="o", ls="", color=INK, label="data"),
        Line2D([], [], color=WARM, lw=2, ls=(0, (2.6, 1.6)), label="the truth"),
        Line2D([], [], color=INK, lw=2.4, label="mean of the networks"),
        Line2D([], [], color=MEMBER, lw=1, label="each network"),
        Patch(color=EPISTEMIC, lw=0, label="±2σ, the networks' disagreement"),
        Patch(color=ALEATORIC, lw=0, label="±2σ, with the data's noise"),
    ]
    axes.legend(
        handles=handles, loc="upper left", frameon=False, fontsize=10.5, handlelength=1.7, labelspacing=0.5
    )


def _draw_losses(axes: Axes, losses: Tensor) -> None:
    steps = range(1, len(losses) + 1)
    low, middle, high = losses.min(1).values, losses.median(1).values, losses.max(1).values
    axes.fill_between(steps, low, high, color=EPISTEMIC, alpha=0.6, lw=0)
    axes.plot(steps, losses, color=MEMBER, alpha=min(0.5, 12 / losses.shape[1]), lw=0.6)
    axes.plot(steps, middle, color=INK, lw=2.2)
    beside: Any = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    for name, line, colour in (("best", low, GREY), ("median", middle, INK), ("worst", high, GREY)):
        axes.annotate(name, (len(losses), float(line[-1])), color=colour, fontsize=10.5, **beside)
    bottom, top = float(low.min()), float(high.max())
    axes.set(
        xlim=(1, max(2, len(losses))),
        ylim=(bottom - 0.08 * (top - bottom), top),
        title="Every lane's loss",
        xlabel="step",
    )
    axes.grid(axis="y", color=FAINT, lw=0.6, alpha=0.6)


def _draw_times(axes: Axes, story: Story) -> None:
    seconds = [story.wide_seconds, story.loop_seconds]
    ratio = story.loop_seconds / story.wide_seconds
    names = ["all at once", "one after another" + ("" if story.loop_is_measured else ", extrapolated")]
    for place, name in enumerate(names):
        axes.barh(place, seconds[place], color=(MEMBER, FAINT)[place], height=0.42)
        axes.text(0, place - 0.32, name, va="bottom", fontsize=10.5, color=GREY)
        shown: dict[str, Any] = {
            "xytext": (7, 0),
            "textcoords": "offset points",
            "va": "center",
            "fontweight": "bold",
        }
        axes.annotate(f"{seconds[place]:.1f} s", (seconds[place], place), **shown)
    title = f"{ratio:.1f} times as fast" if ratio >= 1 else "Time"
    axes.set(title=title, xticks=[], yticks=[], xlim=(0, 1.18 * max(seconds)), ylim=(1.3, -0.75))
    axes.spines[:].set_visible(False)
