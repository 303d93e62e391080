"""The iterables that a site accepts.

These are exact lists, tuples, ranges, dict views, arrays, tensors, and `zip` and `enumerate` of them.
Iterating over anything else might run user code, so the plain loop handles it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

DICT_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
Columns = list[Sequence[Any]]


class ZipOrEnumerate(NamedTuple):
    """A call of `zip` or `enumerate` that has not been executed yet."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def made(self) -> Any:
        return self.function(*(made(a) for a in self.args), **self.kwargs)


def made(source: Any) -> Any:
    """Return the iterable itself; a `ZipOrEnumerate` is executed."""
    return source.made() if type(source) is ZipOrEnumerate else source


@dataclass
class Items:
    """The items of a loop. `columns[j][i]` is loop variable j in iteration i, of n."""

    columns: Columns
    n: int

    def row(self, i: int) -> list[Any]:
        return [column[i] for column in self.columns]


def head_of(source: Any) -> tuple[Any, int] | None:
    """Return an iterable like `source` with the first item only, and the number of items; None if unknown."""
    if type(source) is ZipOrEnumerate:
        parts = [part for part in map(head_of, source.args) if part is not None]
        if not parts or len(parts) != len(source.args):
            return None
        return source._replace(args=tuple(head for head, _ in parts)), min(n for _, n in parts)
    sequence = _sequence(source)
    return None if sequence is None else (sequence[:1], len(sequence))


def items_of(source: Any, shape: Any) -> Items | None:
    """Return the items of `source`, or None if it is not supported.

    Args:
        shape: the loop variables: a name, or nested tuples of names.
    """
    columns = _columns(source, shape)
    return None if columns is None else Items(columns, len(columns[0]))


def _columns(source: Any, shape: Any) -> Columns | None:
    if type(source) is ZipOrEnumerate:
        return _zipped(source, shape)
    sequence = _sequence(source)
    if sequence is None:
        return None
    return [sequence] if isinstance(shape, str) else _unzipped(sequence, shape)


def _sequence(source: Any) -> Sequence[Any] | None:
    kind = type(source)
    if kind in (list, tuple, range):
        return source
    if kind is np.ndarray:
        return source if source.ndim >= 1 and not source.dtype.hasobject else None
    if kind is torch.Tensor:
        return source if source.dim() >= 1 else None
    return list(source) if kind in DICT_VIEWS else None


def _zipped(source: ZipOrEnumerate, shape: Any) -> Columns | None:
    function, args, kwargs = source
    numbered, start = function is enumerate, kwargs.get("start", 0)
    if numbered:
        known = len(args) == 1 and type(start) is int and set(kwargs) <= {"start"}
    else:
        known = function is zip and len(args) > 0 and set(kwargs) <= {"strict"}
    if not known:
        return None
    if isinstance(shape, str):
        inner = _zipped(source, tuple("ab" if numbered else "x" * len(args)))
        return None if inner is None else [list(zip(*inner, strict=True))]
    if len(shape) != numbered + len(args) or (numbered and not isinstance(shape[0], str)):
        return None
    groups = [_columns(part, inner) for part, inner in zip(args, shape[numbered:], strict=True)]
    if any(group is None for group in groups):
        return None
    lengths = [len(group[0]) for group in groups if group is not None]
    n = min(lengths)
    if kwargs.get("strict") and max(lengths) > n:
        return None
    columns = [column if len(column) == n else column[:n] for group in groups for column in group or ()]
    return [range(start, start + n), *columns] if numbered else columns


def _unzipped(sequence: Any, shape: tuple[Any, ...]) -> Columns | None:
    """Return the columns of a list of tuples; None unless all tuples fit the loop variables."""
    if type(sequence) not in (list, tuple) or not len(sequence):
        return None
    if set(map(type, sequence)) != {tuple} or set(map(len, sequence)) != {len(shape)}:
        return None
    columns: Columns = []
    for part, inner in zip(zip(*sequence, strict=True), shape, strict=True):
        found = [part] if isinstance(inner, str) else _unzipped(part, inner)
        if found is None:
            return None
        columns += found
    return columns
