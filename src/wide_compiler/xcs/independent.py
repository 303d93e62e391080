"""`independent`: the user's mark on a function whose calls may overlap, although it may write."""

import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import WrongTypeError

if TYPE_CHECKING:
    from .plan import Plan

F = TypeVar("F", bound=Callable[..., Any])
# By identity: what is put on a function itself is copied by `functools.wraps` to whatever wraps it.
_marked: "weakref.WeakSet[Callable[..., Any]]" = weakref.WeakSet()


def independent(fn: F) -> F:
    """Mark a function: its calls in one loop of a jitted function may overlap, whatever they do.

    You say that a call neither needs what another one does nor changes what the loop around it reads, and
    that it may be called in other threads. A function or method is marked itself; any other callable, such
    as a bound method, is called by a new function, which is marked.

    >>> @independent
    ... def upload(name):
    ...     return f"{name} is stored"
    >>> upload("a")
    'a is stored'
    """
    if isinstance(fn, (staticmethod, classmethod)):
        independent(fn.__func__)
        return fn
    if not callable(fn) or isinstance(fn, type):
        raise WrongTypeError(f"independent takes a function or method, got {fn!r}")
    if any(asked(fn) for asked in _LATER):
        raise WrongTypeError(
            f"independent: {fn!r} is a coroutine or generator function, and a call of it does nothing yet; "
            "overlap coroutines with asyncio.gather"
        )
    if isinstance(fn, types.FunctionType):
        _marked.add(fn)
        return fn

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    _marked.add(called)
    return called  # type: ignore[return-value]


_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def is_independent(function: Any) -> bool:
    """Was this very function marked, or the one that was jitted to make it?"""
    if not isinstance(function, types.FunctionType):
        return False
    jitted: Any = vars(function).get("__xcs__")
    if jitted is not None and jitted.function is function and jitted.original in _marked:
        return True
    return function in _marked


def marked_in(plan: "Plan") -> list[str]:
    """Names of the marked functions that the items of a plan call: each of them is guarded by identity."""
    held = [expected for how, expected in plan.guards.checks.values() if how == "is"]
    return [function.__qualname__ for function in held if is_independent(function)]
