"""Progress line of `fit` on the terminal."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..measure.progress import progress_bar
from .moment import Moment

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# Reading losses synchronises with the GPU, so the line is updated only a few times per second.
SECONDS_BETWEEN = 0.2

# Process-wide callbacks, called in every `fit`.
listeners: list[Callable[[Moment], None]] = []


class ProgressLine:
    """A callback of `fit` that shows steps, time, and best, median and worst loss of the active lanes.

    Args:
        show: True, False, or None to show it only on a terminal.
    """

    by_number = False  # uses no lane numbers

    def __init__(self, show: bool | None = None, console: "Console | None" = None):
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self.shown = self.console.is_terminal if show is None else show
        self.last = 0.0
        self.validation = ""
        self.progress: Progress | None = None

    def __call__(self, moment: Moment) -> None:
        if not self.shown:
            return
        if self.progress is None:
            self._begin(moment.total)
        if moment.event == "validation" and moment.validation is not None:
            self.validation = f"  [dim]validation[/] {spread(moment.validation, moment.active)}"
        elif moment.event == "end" or time.monotonic() - self.last >= SECONDS_BETWEEN:
            self._write(moment)

    def _begin(self, total: int | None) -> None:
        self.progress = progress_bar(self.console, news=True)
        self.progress.start()
        self.task = self.progress.add_task("fit", total=total, news="")

    def _write(self, moment: Moment) -> None:
        assert self.progress is not None
        self.last = time.monotonic()
        losses, active = moment.losses, moment.active
        lanes = f"{int(active.sum())} of {len(losses)} lanes  " if not bool(active.all()) else ""
        news = f"{lanes}[dim]loss[/] {spread(losses, active)}{self.validation}"
        self.progress.update(self.task, completed=moment.step, news=news)

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()


def spread(values: Tensor, active: Tensor) -> str:
    """Format lowest / median / highest value of the active lanes; of all lanes if none is active."""
    values, active = values.detach().cpu(), active.cpu()
    shown = values[active] if bool(active.any()) else values[~values.isnan()]
    if not len(shown):
        return "nan"
    numbers: list[Any] = [shown.min(), shown.median(), shown.max()]
    return " / ".join(f"{float(x):.4g}" for x in numbers)
