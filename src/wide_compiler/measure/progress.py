"""Progress display for slow operations."""

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def progress_bar(console: "Console", news: bool = False, transient: bool = False) -> "Progress":
    """Return a progress bar with description, count and time; with `news`, also the task's field `news`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description:<20}"), BarColumn(18), MofNCompleteColumn(), TimeElapsedColumn()]
    columns += [TextColumn("{task.fields[news]}")] if news else []
    return Progress(*columns, console=console, transient=transient)


class StatusLine:
    """A status line on the terminal, shown only after `after` seconds and removed at the end."""

    def __init__(self, what: str, after: float = 1.0):
        self.what, self.after = what, after
        self.started = time.monotonic()
        self.status: Any = None

    def tick(self, note: str = "") -> None:
        if self.status is None:
            if time.monotonic() - self.started < self.after:
                return
            from rich.console import Console

            self.status = Console(stderr=True).status(self.what)
            self.status.start()
        self.status.update(f"{self.what}: {note}" if note else self.what)

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *error: object) -> None:
        if self.status is not None:
            self.status.stop()
