"""Add operators, NumPy protocols, attribute access and indexing to `Lane`, when imported."""

from typing import Any

import numpy as np

from ..work import Bail
from .arithmetic import apply_ufunc, arithmetic
from .array_rules import apply_function, attribute
from .lane import Lane
from .lane_indexing import item_at


def _getattr(self: Lane, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return attribute(self, name)


def _array_ufunc(self: Lane, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    if method != "__call__" or kwargs:
        raise Bail(f"np.{ufunc.__name__}.{method} with options")
    return apply_ufunc(ufunc, inputs)


def _iterate(self: Lane) -> Any:
    if self.kind != "array":
        raise Bail("a loop over a number")
    return iter([item_at(self, i) for i in range(self.data.shape[1])])


def _binary(ufunc: np.ufunc, reflected: bool = False) -> Any:
    """Return a binary operator method, with a fast path for floats of one kind."""
    quick = ufunc in (np.add, np.subtract, np.multiply)

    def operate(self: Lane, other: Any) -> Any:
        mine = self.data
        if quick and mine.dtype.kind == "f":
            if type(other) is float:
                return Lane(ufunc(other, mine) if reflected else ufunc(mine, other), self.kind)
            if type(other) is Lane and other.kind == self.kind:
                data = other.data
                if data.dtype.kind == "f" and data.ndim == mine.ndim:
                    return Lane(ufunc(data, mine) if reflected else ufunc(mine, data), self.kind)
        return arithmetic(ufunc, (other, self) if reflected else (self, other))

    return operate


def _inplace(ufunc: np.ufunc) -> Any:
    """Return the method of `x op= y`.

    Numbers are rebound; arrays are modified in place, and must be fresh.
    """
    binary = _binary(ufunc)

    def operate(self: Lane, other: Any) -> Any:
        result = binary(self, other)
        if self.kind != "array":
            return result
        if not self.fresh or result.data.shape != self.data.shape or result.data.dtype != self.data.dtype:
            raise Bail("an array of the items changed in place, or to another shape or data type")
        self.data[...] = result.data
        return self

    return operate


def _unary(ufunc: np.ufunc) -> Any:
    return lambda x: arithmetic(ufunc, (x,))


_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "mod": np.remainder,
    "floordiv": np.floor_divide, "pow": np.power, "matmul": np.matmul, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
            "ne": np.not_equal}  # fmt: skip
_UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}
_METHODS: dict[str, Any] = {
    **{f"__{name}__": _binary(ufunc) for name, ufunc in (_BINARY | _COMPARE).items()},
    **{f"__r{name}__": _binary(ufunc, reflected=True) for name, ufunc in _BINARY.items()},
    **{f"__i{name}__": _inplace(ufunc) for name, ufunc in _BINARY.items()},
    **{f"__{name}__": _unary(ufunc) for name, ufunc in _UNARY.items()},
    "__getattr__": _getattr, "__getitem__": item_at, "__iter__": _iterate, "__array_ufunc__": _array_ufunc,
    "__array_function__": lambda x, run, _, args, options: apply_function(run, args, options),
}  # fmt: skip
for _name, _method in _METHODS.items():
    setattr(Lane, _name, _method)
