"""The ladder of effects, and how an analysis says that it cannot go on."""

from enum import IntEnum


class Effect(IntEnum):
    """What running a piece of code does besides giving a value. Only the first two are ever parallel.

    PURE may be vectorised, reordered or replayed. IO waits for something it only reads: calls may overlap,
    but none runs twice. UNKNOWN could not be proven to be either. IMPURE certainly changes something.
    """

    PURE = 0
    IO = 1
    UNKNOWN = 2
    IMPURE = 3


class Decline(Exception):
    """The code is not proven to be PURE or IO; says why, and on which line."""

    def __init__(self, effect: Effect, reason: str, line: int | None = None):
        super().__init__(reason)
        self.effect = effect
        self.reason = reason
        self.line = line
