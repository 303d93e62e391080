"""A line on the terminal while lanes learn."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# Reading losses makes a GPU wait, so it is done a few times a second at most.
SECONDS_BETWEEN = 0.2

# Told (step, losses `[N]`, active `[N]`) as often: observers of the process.
listeners: list[Callable[[int, Tensor, Tensor], None]] = []


class LossLine:
    """Shows steps, time, and the best, median and worst loss of the lanes that still learn.

    Args:
        total: how many steps there will be, None if nobody knows.
        show: True, False, or None for "if there is a terminal".
    """

    def __init__(self, total: int | None, show: bool | None, console: "Console | None" = None):
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self.shown = self.console.is_terminal if show is None else show
        self.total, self.last = total, 0.0
        self.validation = ""
        self.progress: Progress | None = None

    def __enter__(self) -> "LossLine":
        if self.shown:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self.progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=18),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[news]}"),
                console=self.console,
            )
            self.progress.start()
            self.task = self.progress.add_task("fit", total=self.total, news="")
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def step(self, step: int, losses: Tensor, active: Tensor, last: bool = False) -> None:
        """losses `[N]`; active `[N]`, which lanes still learn."""
        if self.progress is None and not listeners:
            return
        if not last and time.monotonic() - self.last < SECONDS_BETWEEN:
            return
        self.last = time.monotonic()
        for listener in list(listeners):
            listener(step, losses, active)
        if self.progress is None:
            return
        lanes = f"{int(active.sum())} of {len(losses)} lanes  " if not bool(active.all()) else ""
        news = f"{lanes}[dim]loss[/] {spread(losses, active)}{self.validation}"
        self.progress.update(self.task, completed=step, news=news)

    def validated(self, values: Tensor, active: Tensor) -> None:
        if self.progress is not None:
            self.validation = f"  [dim]validation[/] {spread(values, active)}"


def spread(values: Tensor, active: Tensor) -> str:
    """Best / median / worst of the active lanes; of all if none is."""
    values = values.detach().cpu()
    active = active.cpu()
    shown = values[active] if bool(active.any()) else values
    numbers: list[Any] = [shown.min(), shown.median(), shown.max()]
    return " / ".join(f"{float(x):.4g}" for x in numbers)
