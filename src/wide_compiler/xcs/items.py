"""What a site loops over, as columns: one sequence for each loop variable.

Only exact lists, tuples, ranges, dict views, arrays and tensors are looked into, and `zip` and `enumerate` of
them. Anything else might run code when it is iterated over, and goes to the plain loop untouched.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

DICT_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class Source(NamedTuple):
    """`zip(...)` or `enumerate(...)` that was not called yet."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def made(self) -> Any:
        return self.function(*(made(a) for a in self.args), **self.kwargs)


def made(source: Any) -> Any:
    """The iterable as it was written."""
    return source.made() if type(source) is Source else source


class Blocks:
    """A list of arrays that a site has just made: rows of a few blocks, in order."""

    def __init__(self, rows: list[Any], blocks: list[np.ndarray]):
        self.rows = rows
        self.blocks = blocks
        ends = list(itertools.accumulate(map(len, blocks)))
        self.bounds = list(zip([0, *ends[:-1]], ends, strict=True))

    def __getitem__(self, i: Any) -> Any:
        return self.rows[i]

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> np.ndarray:
        """The rows of these items, which lie in one block."""
        for (first, end), block in zip(self.bounds, self.blocks, strict=True):
            if start < end:
                return block[start - first : stop - first]
        raise IndexError(start)


def kept_blocks(source: Any, before: list[Blocks] | None) -> Any:
    """The blocks of a list made by the statement before, which nothing can have changed since."""
    kept = before.pop() if before else None
    if kept is None or kept.rows is not source:
        return None
    return kept if len(kept.rows) == kept.bounds[-1][1] else None


class Items:
    """`n` rounds of a loop. `columns[j][i]` is loop variable j in round i."""

    __slots__ = ("columns", "n")

    def __init__(self, columns: list[Sequence[Any]], n: int):
        self.columns = columns
        self.n = n

    def row(self, i: int) -> list[Any]:
        return [column[i] for column in self.columns]

    def rows(self) -> Iterable[Sequence[Any]]:
        return zip(*self.columns, strict=True)


def items_of(source: Any, shape: Any) -> Items | None:
    """The items of a source for a loop variable of that shape, or None."""
    listed = type(source) is list and isinstance(shape, str)
    columns: list[Sequence[Any]] | None = [source] if listed else _columns(source, shape)
    if columns is None:
        return None
    return Items(columns, len(columns[0]))


def _columns(source: Any, shape: Any) -> list[Sequence[Any]] | None:
    if type(source) is Source:
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
    if kind in DICT_VIEWS:
        return list(source)
    return None


def _zipped(source: Source, shape: Any) -> list[Sequence[Any]] | None:
    function, args, kwargs = source
    if (
        function is enumerate
        and len(args) == 1
        and type(kwargs.get("start", 0)) is int
        and set(kwargs) <= {"start"}
    ):
        parts: list[Any] = [None, args[0]]
    elif function is zip and args and set(kwargs) <= {"strict"}:
        parts = list(args)
    else:
        return None
    if isinstance(shape, str):
        inner = _zipped(source, tuple("ab" if function is enumerate else "x" * len(args)))
        return None if inner is None else [list(zip(*inner, strict=True))]
    if len(shape) != len(parts):
        return None
    columns = [_columns(p, s) for p, s in zip(parts, shape, strict=True) if p is not None]
    if any(c is None for c in columns):
        return None
    lengths = [len(c[0]) for c in columns if c is not None]
    n = min(lengths)
    if kwargs.get("strict") and len(set(lengths)) > 1:
        return None
    if function is enumerate:
        if not isinstance(shape[0], str):
            return None
        start = kwargs.get("start", 0)
        columns.insert(0, [range(start, start + n)])
    return [column if len(column) == n else column[:n] for group in columns for column in group or ()]


def _unzipped(sequence: Any, shape: tuple[Any, ...]) -> list[Sequence[Any]] | None:
    """Columns of a list of tuples, all exactly as long as the loop variable is wide."""
    if isinstance(sequence, (np.ndarray, torch.Tensor, range)) or not len(sequence):
        return None
    if set(map(type, sequence)) != {tuple} or set(map(len, sequence)) != {len(shape)}:
        return None
    columns: list[Sequence[Any]] = []
    for part, inner in zip(zip(*sequence, strict=True), shape, strict=True):
        found = [part] if isinstance(inner, str) else _unzipped(part, inner)
        if found is None:
            return None
        columns += found
    return columns
