"""Lane learns its operators: Python's, NumPy's protocols, attributes and indices. Importing this is
enough."""

from typing import Any

import numpy as np

from .lane import Lane
from .lane_methods import apply_function, attribute, item, set_item
from .lane_numpy import apply_ufunc, arithmetic


def _getattr(self: Lane, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return attribute(self, name)


def _array_ufunc(self: Lane, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    if method != "__call__" or kwargs:
        raise self.stop(f"np.{ufunc.__name__}.{method} with options")
    return apply_ufunc(ufunc, inputs, self.trace)


def _array_function(self: Lane, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return apply_function(function, args, kwargs, self.trace)


def _binary(ufunc: np.ufunc, reflected: bool = False) -> Any:
    def operate(self: Lane, other: Any) -> Any:
        return arithmetic(ufunc, (other, self) if reflected else (self, other), self.trace)

    return operate


def _inplace(ufunc: np.ufunc) -> Any:
    """`x += y`: rebinds numbers; writes into arrays, which must then be fresh."""

    def operate(self: Lane, other: Any) -> Any:
        result = arithmetic(ufunc, (self, other), self.trace)
        if self.kind != "array":
            return result
        if not self.fresh or result.data.shape != self.data.shape or result.data.dtype != self.data.dtype:
            raise self.stop("an array changed in place")
        if self.trace is not None:
            self.trace.wrote(result.approx)
        self.data[...] = result.data
        return self

    return operate


def _unary(ufunc: np.ufunc) -> Any:
    def operate(self: Lane) -> Any:
        return arithmetic(ufunc, (self,), self.trace)

    return operate


_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "mod": np.remainder,
    "floordiv": np.floor_divide, "pow": np.power, "matmul": np.matmul, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
for _name, _ufunc in _BINARY.items():
    setattr(Lane, f"__{_name}__", _binary(_ufunc))
    setattr(Lane, f"__r{_name}__", _binary(_ufunc, reflected=True))
    setattr(Lane, f"__i{_name}__", _inplace(_ufunc))
for _name, _ufunc in {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}.items():
    setattr(Lane, f"__{_name}__", _binary(_ufunc))
Lane.__eq__ = _binary(np.equal)  # type: ignore[method-assign,assignment]
Lane.__ne__ = _binary(np.not_equal)  # type: ignore[method-assign,assignment]
for _name, _ufunc in {
    "neg": np.negative,
    "pos": np.positive,
    "abs": np.absolute,
    "invert": np.invert,
}.items():
    setattr(Lane, f"__{_name}__", _unary(_ufunc))

Lane.__getattr__ = _getattr  # type: ignore[attr-defined]
setattr(Lane, "__getitem__", item)  # noqa: B010
setattr(Lane, "__setitem__", set_item)  # noqa: B010
Lane.__array_ufunc__ = _array_ufunc  # type: ignore[attr-defined]
Lane.__array_function__ = _array_function  # type: ignore[attr-defined]
