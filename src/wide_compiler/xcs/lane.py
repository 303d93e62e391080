"""Lane: one value per item, computed on all at once. It stands for an array, a NumPy scalar or a Python number.

`data` is `[n, ...]`, the lane axis first; `kind` says what the item's own value is: 'array', 'np' (a NumPy
scalar), 'float', 'int' or 'bool'. Whatever cannot be done exactly as Python or NumPy would do it for one item
raises `Bail`; a truth that differs between lanes raises `Diverge`, and the lanes are run in two groups.
"""

from typing import Any

import numpy as np

from .rungs import Bail

PYTHON = {"float": float, "int": int, "bool": bool}
SAFE_INT = 2**62
EXACT_FLOAT = 2**53
MARGIN = 1e-6


class Diverge(BaseException):
    """Lanes disagree about a truth; `mask` tells them apart."""

    def __init__(self, mask: np.ndarray):
        super().__init__()
        self.mask = mask


class Trace:
    """What happened while lanes were run: a bail-out that a user's `except:` may have swallowed."""

    stopped: BaseException | None = None


def bail(reason: str, trace: Trace | None) -> BaseException:
    stop = Bail(reason)
    if trace is not None and trace.stopped is None:
        trace.stopped = stop
    return stop


class Lane:
    """See the module. `fresh` data shares no memory with an input; `approx` data may differ in the last digits."""

    __slots__ = ("approx", "data", "fresh", "kind", "trace")
    __array_priority__ = 1000

    def __init__(
        self, data: np.ndarray, kind: str, trace: Trace | None, fresh: bool = True, approx: bool = False
    ):
        self.data = data
        self.kind = kind
        self.trace = trace
        self.fresh = fresh
        self.approx = approx

    def stop(self, reason: str) -> BaseException:
        return bail(reason, self.trace)

    @property
    def rank(self) -> int:
        return self.data.ndim - 1

    @property
    def stands_for(self) -> type:
        return PYTHON.get(self.kind) or (np.ndarray if self.kind == "array" else self.data.dtype.type)

    # Truth and identity.

    def __bool__(self) -> bool:
        if self.kind == "array":
            raise self.stop("the truth of an array")
        truth = self.data.astype(bool)
        if self.approx:
            self._sure(np.abs(self.data) if self.data.dtype.kind in "fiu" else truth)
        if truth.all():
            return True
        if not truth.any():
            return False
        split = Diverge(truth)
        if self.trace is not None and self.trace.stopped is None:
            self.trace.stopped = split
        raise split

    def _sure(self, distance: np.ndarray) -> None:
        """A yes or no from rounded numbers: only where no rounding could turn it."""
        if distance.dtype != bool and distance.size and not (distance > MARGIN).all():
            raise self.stop("a comparison too close to tell after rounding")

    def _no(self, *_: Any, **__: Any) -> Any:
        raise self.stop("something that has no meaning for all items at once")

    __float__ = __int__ = __index__ = __complex__ = __iter__ = __len__ = __contains__ = _no
    __str__ = __repr__ = __format__ = __array__ = __reduce_ex__ = __round__ = __trunc__ = _no
    __floor__ = __ceil__ = __next__ = __call__ = __enter__ = __exit__ = __copy__ = __deepcopy__ = _no
    __hash__ = _no  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from .lane_methods import attribute

        return attribute(self, name)

    def __getitem__(self, index: Any) -> "Lane":
        from .lane_methods import item

        return item(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        from .lane_methods import set_item

        set_item(self, index, value)

    # NumPy's protocols.

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from .lane_numpy import apply_ufunc

        if method != "__call__" or kwargs:
            raise self.stop(f"np.{ufunc.__name__}.{method} with options")
        return apply_ufunc(ufunc, inputs, self.trace)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        from .lane_numpy import apply_function

        return apply_function(function, args, kwargs, self.trace)


def _binary(ufunc: np.ufunc, reflected: bool = False) -> Any:
    def operate(self: Lane, other: Any) -> Any:
        from .lane_numbers import arithmetic

        return arithmetic(ufunc, (other, self) if reflected else (self, other), self.trace)

    return operate


def _inplace(ufunc: np.ufunc) -> Any:
    """`x += y`: rebinds numbers; writes into arrays, which must then be fresh."""

    def operate(self: Lane, other: Any) -> Any:
        from .lane_numbers import arithmetic

        result = arithmetic(ufunc, (self, other), self.trace)
        if self.kind != "array":
            return result
        if not self.fresh or result.data.shape != self.data.shape or result.data.dtype != self.data.dtype:
            raise self.stop("an array changed in place")
        self.data[...] = result.data
        self.approx = self.approx or result.approx
        return self

    return operate


def _unary(ufunc: np.ufunc) -> Any:
    def operate(self: Lane) -> Any:
        from .lane_numbers import arithmetic

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
for _name, _ufunc in {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}.items():
    setattr(Lane, f"__{_name}__", _unary(_ufunc))
