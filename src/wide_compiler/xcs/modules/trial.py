"""Examine one item of a body that calls PyTorch, to decide whether many items may run as one batch.

Results must have their own memory, as those of a batch have. Nothing may warn. No decision may depend on
values that a batch rounds differently: kernels may sum in another order for many rows than for one, and may
compute the end of a row differently from its middle. Which operators do so does not depend on the values.
"""

import cmath
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ... import _tree
from ..parallel.threads import saves_are_seen
from ..work import Bail, Work

# Operators that give the same bits for one item as for many.
EXACT = {
    *("add", "sub", "rsub", "mul", "div", "true_divide", "neg", "abs", "sqrt", "relu", "clamp", "clamp_min"),
    *("clamp_max", "maximum", "minimum", "max", "min", "amax", "amin", "where", "masked_fill", "eq", "ne"),
    *("lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not"),
    *("logical_xor", "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute"),
    *("expand", "select", "slice", "narrow", "unsqueeze", "squeeze", "split", "split_with_sizes", "chunk"),
    *("unbind", "unfold", "diagonal", "movedim", "as_strided", "alias", "detach", "lift_fresh", "cat"),
    *("stack", "clone", "copy", "contiguous", "_to_copy", "to", "index", "index_select", "gather", "take"),
    *("embedding", "take_along_dim", "arange", "zeros", "ones", "full", "empty", "zeros_like", "ones_like"),
    *("full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "scalar_tensor", "eye"),
    *("flip", "roll", "repeat", "constant_pad_nd", "tril", "triu", "sort", "topk", "fill", "zero"),
    *("max_pool1d", "max_pool2d", "max_pool2d_with_indices"),
}
# Composed of several operations for complex numbers.
ROUNDED_IF_COMPLEX = {"mul", "div", "true_divide", "abs", "sqrt", "sgn"}
# Exact operators with discontinuities: a difference in the last digit of the input may change the result
# much.
STEPS = {"floor", "ceil", "trunc", "round", "frac", "sign", "sgn", "heaviside", "floor_divide"}
STEPS_ROUNDED = {
    *("remainder", "fmod", "nextafter", "hardshrink", "threshold", "mode", "histc", "copysign", "atan2"),
    *("angle", "fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine"),
    # These return nan outside of their domain.
    *("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "logit", "acos", "asin", "acosh", "atanh"),
    *("arccos", "arcsin", "arccosh", "arctanh"),
}
DECIDING = ("any", "all", "max", "min", "sorted")  # consumers that compare items or use their truth values


def examine(work: Work, learns: bool = False) -> None:
    """Run the first item and observe its operators, if the signature is new.

    Args:
        learns: results may require gradients.

    Raises:
        Bail: the items must not run as one batch.
    """
    if saves_are_seen():
        raise Bail("hooks for saved tensors are active")
    if not work.new:
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = work.compared(0)
    if not learns:
        no_gradients(_tensors(result))
    if warned:
        raise Bail(f"it issues a warning: {warned[0].message}")
    with Watch() as watch:
        result = work.compared(0)
    for tensor in _tensors(result):
        if tensor.numel() and storage(tensor) not in watch.made:
            raise Bail("a result shares memory with an input")
        if storage(tensor) in watch.decisions:
            raise Bail(FROM_ROUNDED)
        if storage(tensor) in watch.rounded and work.site.text.consumer in DECIDING:
            raise Bail(FROM_ROUNDED)
        if watch.rounded.get(storage(tensor), 0.0) > _digits(tensor):
            raise Bail("a result is rounded to fewer digits than its data type has")
    if watch.decided:
        raise Bail(FROM_ROUNDED)
    memory = work.plan.memory
    # The maximum over all signatures.
    memory["bytes of an item"] = max(watch.bytes, memory.get("bytes of an item", 0))


FROM_ROUNDED = "a decision depends on numbers that a batch may round differently"


class Watch(TorchDispatchMode):
    """Tracks tensors by storage while the body runs."""

    def __init__(self) -> None:
        super().__init__()
        self.made: set[int] = set()  # storages created by the body
        self.bytes = 0  # their total size
        # Values that a batch may round differently, with the largest machine epsilon of the dtypes involved.
        self.rounded: dict[int, float] = {}
        self.decisions: set[int] = set()  # integers or booleans computed from these
        self.decided = False  # whether control flow, or another operator, used such a result
        self.held: list[Any] = []  # keeps tensors alive, so that addresses are not reused

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import `torch._dynamo` at the first use, which takes about a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.held.append(out)
        given = _tensors([args, kwargs])
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        before = {storage(t) for t in given}
        if before & self.decisions and not func.is_view:
            self.decided = True
        rounded = [t for t in given if storage(t) in self.rounded and _floats(t)]
        numbers = [leaf for leaf in _tree.flatten(out)[0] if not isinstance(leaf, (Tensor, type(None)))]
        if rounded and (numbers or _steps(name, args, kwargs)):
            self.decided = True
        for tensor in _tensors(out):
            place = storage(tensor)
            if place not in before:
                self.made.add(place)
                self.bytes += tensor.nbytes
            if _floats(tensor):
                if rounded or not _exact(name, given, kwargs):
                    self.rounded[place] = max([_digits(tensor), *(self.rounded[storage(t)] for t in rounded)])
            elif rounded:
                self.decisions.add(place)
        return out


def _digits(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if _floats(tensor) else 0.0


def _exact(name: str, given: list[Tensor], kwargs: dict[str, Any]) -> bool:
    if name in ROUNDED_IF_COMPLEX and any(t.is_complex() for t in given):
        return False
    if kwargs.get("alpha", 1) not in (1, -1):
        return False  # fused multiply-add has one rounding in the middle of a row, and two at its end
    return name in EXACT or name in STEPS


def _steps(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if name == "pow":
        exponent = args[1]
        return not (isinstance(exponent, (int, float)) and exponent >= 0 and float(exponent).is_integer())
    if name in ("norm", "linalg_vector_norm") and len(args) > 1:
        return args[1] == 0  # the number of nonzero elements
    if name == "softplus":
        # Softplus switches to a linear function beyond the threshold, with a step.
        return len(args) > 2 and args[2] < 20
    return name in STEPS or name in STEPS_ROUNDED or kwargs.get("rounding_mode") is not None


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in _tree.flatten(value)[0] if isinstance(leaf, Tensor)]


def _floats(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def no_gradients(results: Iterable[Any]) -> None:
    """Raise `Bail` if a result requires gradients.

    The results of a batch share one graph, so backward through one, or an in-place change, would affect all.
    """
    if any(isinstance(t, Tensor) and t.requires_grad for t in results):
        raise Bail("results require gradients, and only in the loop each has its own graph")


def finite(tensors: Iterable[Any]) -> None:
    """Raise `Bail` if a CPU tensor has infinite or nan values: vectorised kernels treat these differently
    at the end of a row."""
    for tensor in tensors:
        if type(tensor) is Tensor and tensor.is_cpu and _floats(tensor):
            short = tensor.element_size() < 4
            total = tensor.sum(dtype=torch.float32) if short else tensor.sum()
            if not cmath.isfinite(total.item()):
                raise Bail("NaN or inf in an item or a result")
