"""The decorator `jit`: returns a plain function with `explain()` and `stats()`.

The result is a real function, not a wrapper: its code object is replaced on the first call, so recursion does
not need additional frames.
"""

import ast
import functools
import inspect
import linecache
import sys
import threading
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
# `warnings` skips frames of the import system, recognised by file name, when it finds the warning's origin.
# This file name makes it skip the first-call trampoline too.
PASSED_OVER = "<xcs, like importlib._bootstrap>"


class XcsWarning(UserWarning):
    """A function runs unchanged, because its source is not available or not supported."""


class Runtime:
    """The state behind one jitted function; the rewritten code calls its sites `s0`, `s1` and `source`."""

    def __init__(self, original: types.FunctionType, config: Config):
        self.original, self.config = original, config
        self.function: Any = None  # the jitted function
        self.code: types.CodeType | None = None  # the code object that `jit` gave to it
        self.texts: list[SiteText] = []
        self.sites: list[Site] = []
        self.traced: set[int] = set()  # indices of sites that a debugger or coverage tool has traced
        self.why = ""  # why the function runs unchanged
        self.ready = False
        self.lock = threading.RLock()

    compiling = staticmethod(torch.compiler.is_dynamo_compiling)
    tracer = staticmethod(sys.gettrace)

    @staticmethod
    def source(function: Any, *args: Any, **kwargs: Any) -> ZipOrEnumerate:
        return ZipOrEnumerate(function, args, kwargs)

    def prepared(self) -> types.FunctionType:
        """Rewrite the function once, while other threads wait; return the function to run.

        If that fails, every call goes to the original code.
        """
        with self.lock:
            if not self.ready:
                self._rewrite()
                self.ready = True
        return written(self.function) if self.why else self.function

    def _rewrite(self) -> None:
        try:
            self.texts, code = rewritten(self.original)
            self.sites = [Site(text, self.config, code.co_filename, self) for text in self.texts]
        except WideError:
            raise
        except (NoSource, *OURS) as reason:
            error = f"internal error while rewriting it: {type(reason).__name__}: {reason}"
            self.why = str(reason) if isinstance(reason, NoSource) else error
            self.texts = []
            _warn(self.original.__qualname__, self.why)
            return
        for site in self.sites:
            setattr(self, f"s{site.text.index}", site)
        self.function.__code__ = self.code = code

    def explain(self) -> Explanation:
        """Return how each site ran, line by line, and why not faster."""
        self.prepared()
        return explained(self)

    def stats(self) -> dict[str, dict[str, int]]:
        """Return the number of calls of each rung, by site."""
        self.prepared()
        return by_site(self.sites)


_known: "weakref.WeakKeyDictionary[types.CodeType, Rewritten]" = weakref.WeakKeyDictionary()
Rewritten = tuple[list[SiteText], types.CodeType]


def rewritten(original: types.FunctionType) -> Rewritten:
    """Return the sites of a function and its rewritten code, cached by code object. Raises `NoSource`."""
    like = original.__code__
    known = _known.get(like)
    if known is None or known[1].co_filename != like.co_filename:
        rewriter = Rewriter(tree_of(original))
        made = rewriter.rewritten()
        code = compiled(_mentioning_runtime(made), like, [*like.co_freevars, RUNTIME])
        if code.co_freevars != (*like.co_freevars, RUNTIME):
            raise NoSource("its free variables are in an unexpected order")
        known = rewriter.found, code.replace(co_name=like.co_name, co_qualname=like.co_qualname)
        _known[like] = known
    return known


def _mentioning_runtime(tree: Any) -> Any:
    """Add a dead reference to the runtime, so that it is a free variable even in a function without sites."""
    mention = ast.Name(RUNTIME, ast.Load())
    if isinstance(tree, ast.Lambda):
        tree.body = ast.copy_location(ast.IfExp(ast.Constant(True), tree.body, mention), tree.body)
    else:
        last = tree.body[-1]
        tree.body.append(ast.copy_location(ast.If(ast.Constant(False), [ast.Expr(mention)], []), last))
    return tree


def _warn(name: str, why: str) -> None:
    warnings.warn(f"jit: {name} runs unchanged: {why}", XcsWarning, stacklevel=4)


@functools.lru_cache(maxsize=256)
def _trampoline(free: tuple[str, ...]) -> types.CodeType:
    """Return code for the first call, with the same closure cells, which passes all to the runtime."""
    cells = [f"cell_{i:06d}" for i in range(len(free) + 1)]
    mention, spaces = ", ".join(cells), {}  # type: str, dict[str, Any]
    text = f"""
def outer({mention}):
    def first(*args, **kwargs):
        if False:
            {mention}
        if {cells[-1]}.compiling() or {cells[-1]}.tracer() is not None:
            return {cells[-1]}.original(*args, **kwargs)
        return {cells[-1]}.prepared()(*args, **kwargs)
    return first
"""
    exec(compile(text, PASSED_OVER, "exec"), spaces)
    return spaces["outer"](*cells).__code__


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
    return _as_it_is(fn, why, warn) if why else _jitted(fn, config)


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
    runtime = Runtime(fn, config)
    cells = (*(fn.__closure__ or ()), types.CellType(runtime))
    code = _trampoline(fn.__code__.co_freevars)
    made = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, cells)
    functools.update_wrapper(made, fn)
    made.__kwdefaults__ = fn.__kwdefaults__
    runtime.function, runtime.code = made, made.__code__
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
