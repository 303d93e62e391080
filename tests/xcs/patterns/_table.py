"""The table of patterns: plain functions, arguments for them, and what should become of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def nothing(*_: Any) -> None:
    return None


@dataclass(frozen=True)
class Pattern:
    """One pattern.

    Attributes:
        name: as it stands in the table.
        function: plain Python; the tests, the page and the benchmark jit it.
        arguments: makes fresh arguments for one call; large ones for the benchmark.
        rung: what should run it, or 'plain'.
        world: a picture of what else the function may have changed.
        reset: puts that back before a run of three calls.
        between: called with 0, 1, 2 before each call: patches something, for example.
    """

    name: str
    function: Callable[..., Any]
    arguments: Callable[..., tuple]
    rung: str
    world: Callable[[], Any] = nothing
    reset: Callable[[], Any] = nothing
    between: Callable[[int], Any] = nothing
    large: int = 2000  # items in the benchmark


PATTERNS: list[Pattern] = []


def pattern(rung: str, arguments: Callable[..., tuple], **options: Any) -> Callable[[Any], Any]:
    """Add a function to the table. `arguments(n)` makes the arguments for n items."""

    def add(function: Any) -> Any:
        name = function.__doc__.strip().rstrip(".")
        PATTERNS.append(Pattern(name, function, arguments, rung, **options))
        return function

    return add
