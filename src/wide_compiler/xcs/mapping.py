"""`vmap`: maps a function over the items of lists, or over the leading axis of arrays and tensors."""

import functools
import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..errors import ArgumentError, WrongTypeError
from .config import Config
from .jit import jit
from .site_rows import Explanation

NUMBERS = (np.ndarray, np.generic, bool, int, float, complex)


def vmap(fn: Callable[..., Any], *, config: Config | None = None) -> Callable[..., Any]:
    """Map a function over the items of lists, or over the leading axis of arrays and tensors.

    All arguments are mapped and must have the same length. Bind shared arguments beforehand: `vmap(lambda x:
    fn(x, scale=3))`.

    Returns:
        A function that returns a list. If all arguments are arrays, and the results arrays or numbers, the
        results are stacked to an array [N, ...]; if all are tensors, to a tensor [N, ...].

    Raises:
        WrongTypeError: `fn` is not callable.

    >>> vmap(lambda x: x * 2)([1, 2, 3])
    [2, 4, 6]
    """
    if not callable(fn):
        raise WrongTypeError(f"vmap takes a function, got {type(fn).__name__}")

    loops: dict[int, Any] = {}  # jitted loops by number of arguments

    @functools.wraps(fn)
    def mapped(*columns: Any, **keywords: Any) -> Any:
        _check(columns, keywords)
        count = len(columns)
        if count not in loops:
            loops[count] = jit(_maker(count)(fn), config=config)
        return restacked(loops[count](*columns), columns)

    def explain() -> Explanation:
        made = loops.values() or [jit(_maker(1)(fn), config=config)]
        rows = [row for jitted in made for row in jitted.explain().rows]
        return Explanation(rows, name=getattr(fn, "__qualname__", repr(fn)))

    mapped.explain = explain  # type: ignore[attr-defined]
    mapped.stats = lambda: dict(pair for jitted in loops.values() for pair in jitted.stats().items())  # type: ignore[attr-defined]
    return mapped


def _check(columns: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    for name in keywords:
        raise WrongTypeError(
            f"vmap maps over positional arguments; bind {name!r} first: vmap(lambda x: fn(x, {name}=...))"
        )
    if not columns:
        raise ArgumentError("vmap: the mapped function needs at least one list, array or tensor")
    for column in columns:
        if not hasattr(column, "__len__") or getattr(column, "ndim", 1) == 0:
            kind = type(column).__name__
            raise WrongTypeError(
                f"vmap maps over lists, arrays and tensors with at least one axis, got a {kind}"
            )
    if len({len(column) for column in columns}) != 1:
        raise ArgumentError(f"vmap: all arguments must have the same length, got {[*map(len, columns)]}")


@functools.cache
def _maker(count: int) -> Callable[[Any], Any]:
    """Return a factory of loops over `count` arguments, as source text that `jit` can read."""
    names = [f"x{i}" for i in range(count)] if count > 1 else ["x"]
    items, lists = ", ".join(names), ", ".join(f"{name}s" for name in names)
    source = f"zip({lists})" if count > 1 else lists
    text = f"""def made(fn):
    def mapped({lists}):
        return [fn({items}) for {items} in {source}]
    return mapped
"""
    file = f"<vmap over {count}>"
    # `linecache.checkcache` keeps entries without a modification time.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    spaces: dict[str, Any] = {}
    exec(compile(text, file, "exec"), spaces)
    return spaces["made"]


def restacked(results: list[Any], columns: tuple[Any, ...]) -> Any:
    """Stack the results if all arguments were arrays or all were tensors; else return the list."""
    if results and all(type(c) is np.ndarray for c in columns):
        return np.stack(results) if isinstance(results[0], NUMBERS) else results
    if results and all(type(c) is torch.Tensor for c in columns) and type(results[0]) is torch.Tensor:
        return torch.stack(results)
    return results
