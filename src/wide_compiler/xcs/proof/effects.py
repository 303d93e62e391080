"""Effect, the classification of code, and Decline, raised when an analysis cannot continue."""

from enum import IntEnum


class Effect(IntEnum):
    """What code does besides returning a value. Only PURE and IO code runs in parallel.

    PURE code may be vectorised, reordered and replayed. IO code waits for something it only reads: calls may
    overlap, but none runs twice. UNKNOWN is not proven to be either. IMPURE certainly has side effects.
    """

    PURE = 0
    IO = 1
    UNKNOWN = 2
    IMPURE = 3


class Decline(Exception):
    """The code is not proven to be PURE or IO; has the reason and the line."""

    def __init__(self, effect: Effect, reason: str, line: int | None = None):
        super().__init__(reason)
        self.effect = effect
        self.reason = reason
        self.line = line
