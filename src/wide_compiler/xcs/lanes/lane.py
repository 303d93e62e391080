"""Lane: one value per item, computed on all at once, for an array, a NumPy scalar or a Python number.

`data` is `[n, ...]`, the lane axis first; `kind` says what the item's own value is: 'array', 'np' (a NumPy
scalar), 'float', 'int' or 'bool'. Whatever cannot be done exactly as Python or NumPy would do it for one item
raises `Bail`; a truth that differs between lanes raises `Diverge`, and the lanes are run in two groups.

Numbers are those of the plain loop, bit by bit, but for some products of matrices and functions of `math`,
which round in their last digits. Such a lane is *rounded*, and knows how to compute itself as written. What
compares, chooses, or leaps by a number takes `settled` lanes: rounded ones are then computed as written.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..proof.class_tables import on_class
from ..work import Bail

PYTHON: dict[str, Any] = {"float": float, "int": int, "bool": bool}
NUMBERS: dict[Any, tuple[str, Any]] = {
    float: ("float", np.float64), int: ("int", np.int64), bool: ("bool", np.bool_),
}  # fmt: skip
COMPUTING = "?bhilqBHILQefdFD"  # dtypes of plain numbers; units, texts and records have rules of their own


class Diverge(BaseException):
    """Lanes disagree about a truth; `mask` tells them apart."""

    def __init__(self, mask: np.ndarray):
        super().__init__()
        self.mask = mask


class Trace:
    """What happened while lanes were run: a bail-out that an `except:` may have swallowed, and writes."""

    def __init__(self, n: int = 0) -> None:
        self.n = n
        # Makes that bail-out. One that was raised would hold the frames it went through, and they this.
        self.stopped: Callable[[], BaseException] | None = None
        self.written = False  # into an array: what was computed from it cannot be computed again
        self.tainted = False  # with rounded numbers: any array may have become rounded by it
        self.rounds = 0  # of `while` loops

    def wrote(self, rounded: bool = False) -> None:
        """Something was written into an array, rounded numbers perhaps."""
        self.written = True
        self.tainted = self.tainted or rounded


def bail(reason: str, trace: Trace | None) -> BaseException:
    if trace is not None and trace.stopped is None:
        trace.stopped = functools.partial(Bail, reason)
    return Bail(reason)


class Lane:
    """See the module. `fresh` data shares no memory with an input; `again` gives the data as written, of a
    lane that is rounded; `origin` are the items themselves, of a lane that holds nothing else."""

    __slots__ = ("again", "data", "fresh", "kind", "origin", "trace")
    __array_priority__ = 1000

    def __init__(self, data: np.ndarray, kind: str, trace: Trace, fresh: bool = True, origin: Any = None):
        self.data, self.kind, self.trace, self.fresh, self.origin = data, kind, trace, fresh, origin
        self.again: Callable[[], np.ndarray] | None = None

    def stop(self, reason: str) -> BaseException:
        return bail(reason, self.trace)

    @property
    def rounded(self) -> bool:
        """May these be other numbers than those of one item, in their last digits?"""
        return self.again is not None or self.trace.tainted

    @property
    def rank(self) -> int:
        return self.data.ndim - 1

    @property
    def in_rows(self) -> bool:
        """Does each item lie in one row (C order)?"""
        return self.data.ndim < 2 or bool(self.data[0].flags.c_contiguous)

    @property
    def stands_for(self) -> type:
        return PYTHON.get(self.kind) or (np.ndarray if self.kind == "array" else self.data.dtype.type)

    def __bool__(self) -> bool:
        if self.kind == "array":
            raise self.stop("the truth of an array")
        truth = settled(self).data.astype(bool)
        if truth.all():
            return True
        if not truth.any():
            return False
        if self.trace.stopped is None:
            self.trace.stopped = functools.partial(Diverge, truth)
        raise Diverge(truth)

    def _no(self, *_: Any, **__: Any) -> Any:
        raise self.stop("something that has no meaning for all items at once")

    __float__ = __int__ = __index__ = __complex__ = __len__ = __contains__ = _no
    __str__ = __repr__ = __format__ = __array__ = __reduce_ex__ = __round__ = __trunc__ = _no
    __floor__ = __ceil__ = __next__ = __call__ = __enter__ = __exit__ = __copy__ = __deepcopy__ = _no
    __hash__ = _no  # type: ignore[assignment]


def settled(x: Any) -> Any:
    """The lane with the very numbers that plain Python has: rounded ones are computed as written."""
    if type(x) is Lane and x.rounded:
        if x.again is None or x.trace.written:
            raise x.stop("a choice by rounded numbers that were written into an array")
        x.data[...] = x.again()
        x.again = None
    return x


def data_of(x: Any) -> Any:
    return x.data if type(x) is Lane else x


def computed(
    run: Any,
    inputs: tuple[Any, ...],
    kind: str | None,
    trace: Trace,
    fresh: bool = True,
    as_written: Any = None,
) -> Lane:
    """What `run` gives for the data of lanes and for what all share.

    `kind` may be left out for what is an array or a NumPy scalar. `as_written` gives the same data with the
    very numbers of the plain loop, where `run` does not.
    """
    data = run(*map(data_of, inputs))
    out = Lane(data, kind or ("array" if data.ndim > 1 else "np"), trace, fresh)
    if as_written is not None or any(type(x) is Lane and x.again is not None for x in inputs):
        out.again = functools.partial(_again, as_written or run, inputs)
    return out


def _again(run: Any, inputs: tuple[Any, ...]) -> np.ndarray:
    return run(*[data_of(settled(x)) for x in inputs])


class Objects:
    """Items that are neither arrays nor numbers: what is read of them becomes lanes, they themselves are
    handed out as they are. No code of their classes runs here that the proof has not seen."""

    __slots__ = ("column", "gather", "read", "trace")

    def __init__(self, column: Sequence[Any], trace: Trace, gather: Any):
        put = object.__setattr__
        put(self, "column", column)
        put(self, "trace", trace)
        put(self, "gather", gather)
        put(self, "read", {})

    def __getattribute__(self, name: str) -> Any:
        """A field of all items; of a method, the method of them all."""
        column, read = _of(self, "column"), _of(self, "read")
        if name not in read:
            kind = type(column[0])
            found = on_class(kind, name)
            if isinstance(found, type(_of)):
                return found.__get__(self)
            if isinstance(found, (property, staticmethod, classmethod)) or name.startswith("__"):
                raise bail(f"{kind.__name__}.{name}, which is no field", _of(self, "trace"))
            read[name] = _of(self, "gather")([getattr(item, name) for item in column], _of(self, "trace"))
        return read[name]

    def __getitem__(self, key: Any) -> Any:
        column, read, trace = _of(self, "column"), _of(self, "read"), _of(self, "trace")
        if not isinstance(column[0], (dict, list, tuple)) or type(key) not in (int, str):
            raise bail(f"an index of a {type(column[0]).__name__}", trace)
        if (key,) not in read:
            read[(key,)] = _of(self, "gather")([item[key] for item in column], trace)
        return read[(key,)]

    def __iter__(self) -> Any:
        column = _of(self, "column")
        if not isinstance(column[0], (list, tuple)) or len(set(map(len, column))) != 1:
            raise bail(f"a loop over each {type(column[0]).__name__}", _of(self, "trace"))
        return iter([self[i] for i in range(len(column[0]))])

    def _no(self, *_: Any) -> Any:
        raise bail("something that is done to objects", _of(self, "trace"))

    __bool__ = __len__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = _no  # type: ignore[assignment]
    __contains__ = __call__ = __setattr__ = __setitem__ = __str__ = __repr__ = __format__ = _no  # type: ignore[assignment]
    __array__ = __float__ = __int__ = __index__ = __mul__ = __rmul__ = __mod__ = __enter__ = _no
    __hash__ = _no  # type: ignore[assignment]


def _of(things: Objects, name: str) -> Any:
    return object.__getattribute__(things, name)


def holds_lane(value: Any) -> bool:
    """Is it a lane, or a list, tuple or dict with one in it?"""
    kind = type(value)
    if kind is Lane or kind is Objects:
        return True
    inside = value.values() if kind is dict else value if kind in (list, tuple) else ()
    return any(map(holds_lane, inside))


def own_values(x: Any, n: int) -> list[Any]:
    """The values that each item has in place of a lane, or of what holds some."""
    if type(x) is Lane:
        settled(x)
        return x.origin or (x.data.tolist() if x.kind in PYTHON else list(x.data))
    if type(x) is Objects:
        return list(_of(x, "column"))
    if type(x) in (list, tuple) and holds_lane(x):
        return list(map(type(x), zip(*[own_values(part, n) for part in x], strict=True)))
    return [x] * n
