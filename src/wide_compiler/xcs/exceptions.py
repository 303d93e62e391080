"""Raise exceptions of items as plain Python would, and let exceptions of signal handlers through."""

import functools
import signal
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn


def raise_here(error: BaseException) -> NoReturn:
    """Raise an item's exception, possibly from another thread, with the `__context__` it would have had here.

    The exception that is being handled is appended to the end of the context chain.
    """
    own, handled = chain(error), chain(sys.exc_info()[1])
    if handled and own[-1].__context__ is None and not any(one is other for one in own for other in handled):
        own[-1].__context__ = handled[0]
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context  # `raise` has replaced it
        del error, context, own, handled


def chain(error: BaseException | None) -> list[BaseException]:
    """Return the exception, its `__context__`, and so on."""
    found: list[BaseException] = []
    while error is not None and not any(error is one for one in found):
        found.append(error)
        error = error.__context__
    return found


def then_raises(values: Iterable[Any], error: BaseException) -> Iterator[Any]:
    """Yield `values`, then raise `error`."""
    yield from values
    raise_here(error)


def raise_interrupt(error: BaseException) -> None:
    """Raise the exception again if a signal handler raised it, such as KeyboardInterrupt or a time limit.

    A fast path that fell back to the plain loop on any error would swallow it otherwise.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    step = error.__traceback__ if handlers else None
    while step is not None:
        if step.tb_frame.f_code in handlers:
            raise error
        step = step.tb_next


def _code(handler: Any) -> types.CodeType | None:
    """Return the code object of a handler: a function, method, partial or callable object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = vars(type(handler)).get("__call__")
    return getattr(function, "__code__", None)
