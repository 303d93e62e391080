"""A sign of life for work that takes more than a moment."""

import time
from typing import Any


class Patience:
    """A line on the terminal, shown once `after` seconds have passed and taken away at the end."""

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

    def __enter__(self) -> "Patience":
        return self

    def __exit__(self, *error: object) -> None:
        if self.status is not None:
            self.status.stop()
