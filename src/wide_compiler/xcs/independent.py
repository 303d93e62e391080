"""`independent`: marks a function whose calls may overlap although it may have side effects."""

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
# A set rather than an attribute of the function, since `functools.wraps` copies attributes to wrappers.
_marked: "weakref.WeakSet[Callable[..., Any]]" = weakref.WeakSet()


def independent(fn: F) -> F:
    """Mark a function: its calls in one loop of a jitted function may overlap, whatever they do.

    The mark asserts that a call does not depend on other calls, does not change what the surrounding loop
    reads, and may run in another thread.

    Args:
        fn: a function or method, which is marked itself; any other callable, such as a bound method, is
            wrapped in a new function.

    Returns:
        The marked function.

    Raises:
        WrongTypeError: `fn` is not a function, or is a coroutine or generator function.

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
            f"independent: {fn!r} is a coroutine or generator function, whose call does not run its body; "
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
    """Return whether this function object, or the original of this jitted function, is marked."""
    if not isinstance(function, types.FunctionType):
        return False
    jitted: Any = vars(function).get("__xcs__")
    if jitted is not None and jitted.function is function and jitted.original in _marked:
        return True
    return function in _marked


def marked_in(plan: "Plan") -> list[str]:
    """Return the names of marked functions that the items of a plan call, found among its identity guards."""
    held = [expected for how, expected in plan.guards.checks.values() if how == "is"]
    return [function.__qualname__ for function in held if is_independent(function)]
