"""Exceptions that no item raised: handlers of signals raise them wherever the program happens to be. A fast
path that takes them for trouble of its own would swallow a time limit."""

import functools
import signal
import types
from typing import Any


def raise_interrupt(error: BaseException) -> None:
    """Raise this exception again if a handler of signals has raised it, Python's own or another."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    step = error.__traceback__ if handlers else None
    while step is not None:
        if step.tb_frame.f_code in handlers:
            raise error
        step = step.tb_next


def _code(handler: Any) -> types.CodeType | None:
    """Of a function, a method, a partial, or an object that is called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = vars(type(handler)).get("__call__")
    return getattr(function, "__code__", None)
