"""The decorator `jit`: returns a plain function with `explain()` and `stats()`.

The result is a real function, not a wrapper: it has rewritten code and the closure cells of the original, so
recursion needs no additional frames.
"""

import functools
import inspect
import linecache
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch

from ..errors import WideError, WrongTypeError
from ..guards.code_names import names_of
from .config import Config
from .items import ZipOrEnumerate
from .site import OURS, Site
from .site_rows import Explanation, by_site, explained
from .text.rewrite import Rewriter
from .text.site_text import RUNTIME, SiteText
from .text.sites import FRAME_READERS
from .text.source import NoSource, compiled, tree_of, written
from .work import closure_values

F = TypeVar("F", bound=Callable[..., Any])


class XcsWarning(UserWarning):
    """A function runs unchanged, because its source is not available or not supported."""


class Runtime:
    """What the rewritten code of one function reads: its sites as `s0`, `s1`, ..., and when to ask them."""

    compiling = staticmethod(torch.compiler.is_dynamo_compiling)
    tracer = staticmethod(sys.gettrace)

    def __init__(
        self, original: types.FunctionType, config: Config, texts: list[SiteText], code: types.CodeType
    ):
        self.original, self.config, self.texts, self.code = original, config, texts, code
        self.function: Any = None  # the jitted function
        self.traced: set[int] = set()  # indices of sites that a debugger or coverage tool has traced
        self.sites = [Site(text, config, code.co_filename, self) for text in texts]
        for site in self.sites:
            setattr(self, f"s{site.text.index}", site)
            setattr(self, f"pause{site.text.index}", site.schedule)

    @staticmethod
    def source(function: Any, *args: Any, **kwargs: Any) -> ZipOrEnumerate:
        return ZipOrEnumerate(function, args, kwargs)

    def explain(self) -> Explanation:
        """Return how each site ran, line by line, and why not faster."""
        return explained(self)

    def stats(self) -> dict[str, dict[str, int]]:
        """Return the number of calls of each rung, by site."""
        return by_site(self.sites)


_known: "weakref.WeakKeyDictionary[types.CodeType, Rewritten]" = weakref.WeakKeyDictionary()
Rewritten = tuple[list[SiteText], types.CodeType]


def rewritten(original: types.FunctionType) -> Rewritten:
    """Return the sites of a function and its rewritten code, cached by code object. Raises `NoSource`."""
    like = original.__code__
    known = _known.get(like)
    if known is None or known[1].co_filename != like.co_filename:
        rewriter, code = Rewriter(tree_of(original)), like
        tree = rewriter.rewritten()
        if any(not site.reason for site in rewriter.found):
            code = compiled(tree, like, [*like.co_freevars, RUNTIME])
            if code.co_freevars != (*like.co_freevars, RUNTIME):
                raise NoSource("its free variables are in an unexpected order")
            code = code.replace(co_name=like.co_name, co_qualname=like.co_qualname)
        known = _known[like] = rewriter.found, code
    return known


def _warn(name: str, why: str) -> None:
    warnings.warn(f"jit: {name} runs unchanged: {why}", XcsWarning, stacklevel=4)


@overload
def jit(fn: F, *, config: Config | None = None) -> F: ...
@overload
def jit(*, config: Config | None = None) -> Callable[[F], F]: ...


def jit(fn: Any = None, *, config: Config | None = None) -> Any:
    """Run a function's loops in parallel where this provably changes nothing but the time.

    Can be used with and without arguments, on functions, methods, closures and lambdas. Generator functions,
    coroutine functions and functions without source run unchanged, with one `XcsWarning`.

    Args:
        fn: the function.
        config: options; see `Config`.

    Returns:
        A function with the same behaviour and the methods `explain()` and `stats()`.

    Raises:
        WrongTypeError: `fn` is not callable, or `config` is not a `Config`.

    >>> @jit
    ... def double(xs):
    ...     return [2 * x for x in xs]
    >>> double([1, 2, 3])
    [2, 4, 6]
    """
    if config is not None and not isinstance(config, Config):
        raise WrongTypeError(f"config must be a Config, such as Config(exact=True), got {config!r}")
    if fn is None:
        return functools.partial(jit, config=config)
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(jit(fn.__func__, config=config))
    if isinstance(fn, types.MethodType):
        return types.MethodType(jit(fn.__func__, config=config), fn.__self__)
    if not callable(fn):
        raise WrongTypeError(f"jit takes a function, got {type(fn).__name__}")
    runtime = getattr(fn, "__xcs__", None)
    if isinstance(runtime, Runtime) and runtime.function is fn:  # already jitted
        return fn if config in (None, runtime.config) else jit(written(fn), config=config)
    config = config or Config()
    inner = _inside_decorator(fn)
    if inner is not None and not _runs_as_it_is(inner, config)[0]:
        return _decorated(fn, inner, jit(inner, config=config))
    why, warn = _runs_as_it_is(fn, config)
    if not why:
        try:
            return _jitted(fn, config)
        except WideError:
            raise
        except NoSource as reason:
            why, warn = str(reason), True
        except OURS as error:
            why, warn = f"internal error while rewriting it: {type(error).__name__}: {error}", True
    return _as_it_is(fn, why, warn)


def _inside_decorator(fn: Any) -> types.FunctionType | None:
    """Return the function inside a decorator's wrapper, such as that of `torch.no_grad()`, or None."""
    inner = getattr(fn, "__wrapped__", None)
    if not isinstance(fn, types.FunctionType) or type(inner) is not types.FunctionType:
        return None
    return inner if any(held is inner for held in closure_values(fn)) else None


def _decorated(fn: types.FunctionType, inner: Any, fast: Any) -> types.FunctionType:
    """Return a copy of the wrapper around the jitted function. It shares all other closure cells."""
    cells = zip(fn.__closure__ or (), closure_values(fn), strict=True)
    around = tuple(types.CellType(fast) if held is inner else cell for cell, held in cells)
    made = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, around)
    functools.update_wrapper(made, fn)
    made.__kwdefaults__, made.__wrapped__ = fn.__kwdefaults__, fast  # type: ignore[attr-defined]
    made.explain, made.stats = fast.explain, fast.stats  # type: ignore[attr-defined]
    return made


def _runs_as_it_is(fn: Any, config: Config) -> tuple[str, bool]:
    """Return why a callable cannot be rewritten ('' if it can), and whether to warn about it."""
    if not config.enabled:
        return "switched off by Config(enabled=False)", False
    if not isinstance(fn, types.FunctionType):
        return f"a {type(fn).__name__} has no Python source code", True
    if inspect.isgeneratorfunction(fn):
        return "it is a generator function, whose loops run lazily", True
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        return "it is a coroutine function; overlap coroutines with asyncio.gather", True
    if not linecache.getlines(fn.__code__.co_filename):
        return "its source code is not available; define it in a file", True
    readers = sorted(set(FRAME_READERS) & names_of(fn.__code__).globals)
    if readers:
        return f"it calls {readers[0]}(), which would show variables that jit adds", False
    return "", False


def _jitted(fn: types.FunctionType, config: Config) -> types.FunctionType:
    texts, code = rewritten(fn)
    runtime = Runtime(fn, config, texts, code)
    cells = fn.__closure__ or ()
    if code is not fn.__code__:
        cells = (*cells, types.CellType(runtime))
    made = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, cells)
    functools.update_wrapper(made, fn)
    made.__kwdefaults__, runtime.function = fn.__kwdefaults__, made
    made.__xcs__ = runtime  # type: ignore[attr-defined]
    made.explain, made.stats = runtime.explain, runtime.stats  # type: ignore[attr-defined]
    return made


def _as_it_is(fn: Any, why: str, warn: bool) -> Any:
    """Return the callable with `explain` and `stats`; a callable other than a function is wrapped."""
    name = getattr(fn, "__qualname__", repr(fn))
    if warn:
        _warn(name, why)
    target = fn
    if not isinstance(fn, types.FunctionType):

        def target(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        functools.update_wrapper(target, fn)
    target.explain = lambda: Explanation([], why, name)
    target.stats = dict
    return target
