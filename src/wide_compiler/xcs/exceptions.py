"""Exceptions of items that ran elsewhere, raised as the text would have raised them; and those that no item
raised: handlers of signals raise them wherever the program happens to be."""

import functools
import signal
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn


def raise_here(error: BaseException) -> NoReturn:
    """Raise what an item raised, maybe in another thread, with the context that it would have had here: after
    all of its own, what is being handled."""
    own, handled = chain(error), chain(sys.exc_info()[1])
    if handled and own[-1].__context__ is None and not any(one is other for one in own for other in handled):
        own[-1].__context__ = handled[0]
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context  # which raising it has replaced
        del error, context, own, handled


def chain(error: BaseException | None) -> list[BaseException]:
    """It, what was being handled when it was raised, and so on."""
    found: list[BaseException] = []
    while error is not None and not any(error is one for one in found):
        found.append(error)
        error = error.__context__
    return found


def then_raises(values: Iterable[Any], error: BaseException) -> Iterator[Any]:
    """Yield `values`, then raise `error`."""
    yield from values
    raise_here(error)


def raises(error: BaseException) -> Iterable[Any]:
    """An iterable that raises `error` at once."""
    raise_here(error)
    yield


def raise_interrupt(error: BaseException) -> None:
    """Raise this exception again if a handler of signals has raised it, Python's own or another: a fast path
    that takes it for trouble of its own would swallow a time limit."""
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
