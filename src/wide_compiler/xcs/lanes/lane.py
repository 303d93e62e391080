"""Lane: one value per item, computed for all items at once.

`data` is [n, ...] with the lane axis first. `kind` is the type of the item's value: 'array', 'np' (a NumPy
scalar), 'float', 'int' or 'bool'. Results are bit-identical with the plain loop. Operations that cannot be
done exactly as for one item raise `Bail`. If the truth value differs between lanes, `Diverge` is raised and
the lanes run in two groups.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..proof.class_tables import on_class
from ..work import Bail

PYTHON: dict[str, Any] = {"float": float, "int": int, "bool": bool}
NUMBERS: dict[Any, tuple[str, Any]] = {
    float: ("float", np.float64), int: ("int", np.int64), bool: ("bool", np.bool_),
}  # fmt: skip
COMPUTING = "?bhilqBHILQefdFD"  # dtypes of plain numbers, without dates, strings and records


class Diverge(BaseException):
    """A truth value differs between lanes; `mask` [n] has the values."""

    def __init__(self, mask: np.ndarray):
        super().__init__()
        self.mask = mask


class Lane:
    """One value per item; see the module's docstring.

    `fresh` is True if `data` shares no memory with an input; `origin` are the items, if it holds just these.
    """

    __slots__ = ("data", "fresh", "kind", "origin")
    __array_priority__ = 1000

    def __init__(self, data: np.ndarray, kind: str, fresh: bool = True, origin: Any = None):
        self.data, self.kind, self.fresh, self.origin = data, kind, fresh, origin

    @property
    def rank(self) -> int:
        return self.data.ndim - 1

    @property
    def in_rows(self) -> bool:
        """True if each item is contiguous in C order."""
        return self.data.ndim < 2 or bool(self.data[0].flags.c_contiguous)

    @property
    def stands_for(self) -> type:
        return PYTHON.get(self.kind) or (np.ndarray if self.kind == "array" else self.data.dtype.type)

    def __bool__(self) -> bool:
        if self.kind == "array":
            raise Bail("the truth value of an array")
        truth = self.data.astype(bool)
        if truth.all():
            return True
        if not truth.any():
            return False
        raise Diverge(truth)

    def _no(self, *_: Any, **__: Any) -> Any:
        raise Bail("an operation without a rule for lanes, such as str(), round() or hash() of a number")

    __float__ = __int__ = __index__ = __complex__ = __len__ = __contains__ = __setitem__ = _no
    __str__ = __repr__ = __format__ = __array__ = __reduce_ex__ = __round__ = __trunc__ = _no
    __floor__ = __ceil__ = __next__ = __call__ = __enter__ = __exit__ = __copy__ = __deepcopy__ = _no
    __hash__ = _no  # type: ignore[assignment]


def data_of(x: Any) -> Any:
    return x.data if type(x) is Lane else x


def computed(run: Any, inputs: tuple[Any, ...], kind: str | None = None, fresh: bool = True) -> Lane:
    """Apply `run` to the data of lanes and to shared values.

    Args:
        kind: the result's kind; by default 'array' or 'np', from its number of axes.
        fresh: the result shares no memory with an input.
    """
    data = run(*map(data_of, inputs))
    return Lane(data, kind or ("array" if data.ndim > 1 else "np"), fresh)


class Objects:
    """Items that are neither arrays nor numbers. Their fields become lanes when they are read.

    Only code of their classes that the proof has analysed runs.
    """

    __slots__ = ("column", "gather", "read")

    def __init__(self, column: Sequence[Any], gather: Any):
        for name, value in (("column", column), ("gather", gather), ("read", {})):
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        """Return a field of all items as a lane, or a method bound to all items."""
        column, read = _of(self, "column"), _of(self, "read")
        if name not in read:
            kind = type(column[0])
            found = on_class(kind, name)
            if isinstance(found, type(_of)):
                return found.__get__(self)
            if isinstance(found, (property, staticmethod, classmethod)) or name.startswith("__"):
                raise Bail(f"{kind.__name__}.{name}, which is not a field")
            read[name] = _of(self, "gather")(list(map(operator.attrgetter(name), column)))
        return read[name]

    def __getitem__(self, key: Any) -> Any:
        column, read = _of(self, "column"), _of(self, "read")
        if not isinstance(column[0], (dict, list, tuple)) or type(key) not in (int, str):
            raise Bail(f"an index into a {type(column[0]).__name__}")
        if (key,) not in read:
            read[(key,)] = _of(self, "gather")(list(map(operator.itemgetter(key), column)))
        return read[(key,)]

    def __iter__(self) -> Any:
        column = _of(self, "column")
        if not isinstance(column[0], (list, tuple)) or len(set(map(len, column))) != 1:
            raise Bail(f"a loop over a {type(column[0]).__name__}, or over items of different lengths")
        return iter([self[i] for i in range(len(column[0]))])

    def _no(self, *_: Any) -> Any:
        raise Bail("an operation on objects other than reading their fields")

    __bool__ = __len__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = _no  # type: ignore[assignment]
    __contains__ = __call__ = __setattr__ = __setitem__ = __str__ = __repr__ = __format__ = _no  # type: ignore[assignment]
    __array__ = __float__ = __int__ = __index__ = __mul__ = __rmul__ = __mod__ = __enter__ = _no
    __hash__ = _no  # type: ignore[assignment]


def _of(things: Objects, name: str) -> Any:
    return object.__getattribute__(things, name)


def no_rule(function: Any) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)} has no rule for lanes"


def lanes_in(value: Any) -> int:
    """Return the number of items if the value is, or contains, a lane; else 0."""
    kind = type(value)
    if kind is Lane:
        return len(value.data)
    if kind is Objects:
        return len(_of(value, "column"))
    if kind in (list, tuple, dict):
        return max(map(lanes_in, value.values() if kind is dict else value), default=0)
    return 0


def own_values(x: Any, n: int) -> list[Any]:
    """Return the values of a lane, or of a container with lanes, for each of n items."""
    if type(x) is Lane:
        if x.origin is not None:
            return list(x.origin)
        return x.data.tolist() if x.kind in PYTHON else list(x.data)
    if type(x) is Objects:
        return list(_of(x, "column"))
    if type(x) in (list, tuple) and lanes_in(x):
        return list(map(type(x), zip(*[own_values(part, n) for part in x], strict=True)))
    return [x] * n
