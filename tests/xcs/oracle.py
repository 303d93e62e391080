"""Is what a jitted function did what plain Python does?

Compared are the result, the exception (type and message), what was printed, the arguments afterwards, any log
the function wrote to, and aliasing: which mutable objects of all these are one and the same, or share memory.
"""

import contextlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wide_compiler.xcs.comparison import Comparison, ResultsDiffer, same

__all__ = ["Comparison", "Observed", "ResultsDiffer", "compare", "observe", "same"]
# Ours, and what the garbage collector says of somebody else's files at a moment of its own choice.
_NOT_OF_THE_CALL = ("XcsWarning", "ResourceWarning")


@dataclass
class Observed:
    """All that one call showed."""

    result: Any = None
    error: BaseException | None = None
    printed: str = ""
    warned: list[tuple[type, str]] = field(default_factory=list)
    arguments: Any = None
    world: Any = None


def observe(fn: Callable[..., Any], args: tuple, kwargs: dict | None = None, world: Any = None) -> Observed:
    """Call `fn`, and note all that can be seen of it."""
    seen = Observed(arguments=(args, kwargs or {}), world=world)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            seen.result = fn(*args, **(kwargs or {}))
        except Exception as error:
            seen.error = error
    seen.printed = out.getvalue()
    seen.warned = [
        (w.category, str(w.message)) for w in caught if w.category.__name__ not in _NOT_OF_THE_CALL
    ]
    return seen


def compare(plain: Observed, fast: Observed, rtol: float | None = None) -> None:
    """Raise `ResultsDiffer` unless both calls showed the same."""
    for what, one, two in (
        ("raised", repr(type(plain.error)), repr(type(fast.error))),
        ("message", str(plain.error), str(fast.error)),
        ("printed", plain.printed, fast.printed),
        ("warned", plain.warned, fast.warned),
    ):
        if one != two:
            raise ResultsDiffer(f"{what} {one!r}, then {two!r} ({plain.error!r}, {fast.error!r})")
    comparison = Comparison(rtol)
    for name in ("result", "arguments", "world"):
        comparison.same(getattr(plain, name), getattr(fast, name), name)
    comparison.same_overlaps()
