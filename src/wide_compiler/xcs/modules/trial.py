"""One item of a body that calls PyTorch, run as written and watched: may many items run as one?

A result must have memory of its own, since those of a batch have. Nothing may warn. And no yes or no may come
from numbers that a batch rounds otherwise: kernels add up many rows in another order than one row, and
compute the ends of a row in another way than its middle. Which operators do so does not depend on the
numbers.
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

# Operators that give the same bits for one item and for many.
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
ROUNDED_IF_COMPLEX = {"mul", "div", "true_divide", "abs", "sqrt", "sgn"}  # made of several operations there
# Operators that choose by a number, and are exact by themselves: a last digit more or less gives another one.
STEPS = {"floor", "ceil", "trunc", "round", "frac", "sign", "sgn", "heaviside", "floor_divide"}
STEPS_ROUNDED = {
    *("remainder", "fmod", "nextafter", "hardshrink", "threshold", "mode", "histc", "copysign", "atan2"),
    *("angle", "fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine"),
    # They choose between a number and none.
    *("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "logit", "acos", "asin", "acosh", "atanh"),
    *("arccos", "arcsin", "arccosh", "arctanh"),
}
DECIDING = ("any", "all", "max", "min", "sorted")  # eaters that ask their items for a yes or no


def examine(work: Work, learns: bool = False) -> None:
    """Run the first item under watch, if they look like none before. Raises `Bail` where many must not be run
    as one. learns: may results lead to gradients?"""
    if saves_are_seen():
        raise Bail("hooks see every tensor that is saved for gradients")
    if not work.new:
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = work.compared(0)
    if not learns:
        no_gradients(_tensors(result))
    if warned:
        raise Bail(f"it warns: {warned[0].message}")
    with Watch() as watch:
        result = work.compared(0)
    for tensor in _tensors(result):
        if tensor.numel() and storage(tensor) not in watch.made:
            raise Bail("a result that shares memory with something given")
        if storage(tensor) in watch.told:
            raise Bail(FROM_ROUNDED)
        if storage(tensor) in watch.rounded and work.site.text.eater in DECIDING:
            raise Bail(FROM_ROUNDED)
        if watch.coarse.get(storage(tensor), 0.0) > _digits(tensor):
            raise Bail("numbers rounded to fewer digits than their type has")
    if watch.decided:
        raise Bail(FROM_ROUNDED)
    memory = work.plan.memory
    memory["bytes of an item"] = max(watch.bytes, memory.get("bytes of an item", 0))  # of any look


FROM_ROUNDED = "a yes or no from rounded numbers"


class Watch(TorchDispatchMode):
    """Follows tensors by their memory: which was made here, which holds rounded numbers, how coarsely, and
    which holds whole numbers or truths that were told from such."""

    def __init__(self) -> None:
        super().__init__()
        self.made: set[int] = set()
        self.bytes = 0  # of all that was made
        self.rounded: set[int] = set()
        self.coarse: dict[int, float] = {}  # of rounded numbers: the last digit of the coarsest type before
        self.told: set[int] = set()
        self.decided = False
        self.held: list[Any] = []  # so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.held.append(out)
        given = _tensors([args, kwargs])
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        before = {storage(t) for t in given}
        if before & self.told and not func.is_view:
            self.decided = True
        rounded = [t for t in given if storage(t) in self.rounded and _floats(t)]
        told = [leaf for leaf in _tree.flatten(out)[0] if not isinstance(leaf, (Tensor, type(None)))]
        if rounded and (told or _steps(name, args, kwargs)):
            self.decided = True
        for tensor in _tensors(out):
            place = storage(tensor)
            if place not in before:
                self.made.add(place)
                self.bytes += tensor.nbytes
            if _floats(tensor):
                if rounded or not _exact(name, given, kwargs):
                    self.rounded.add(place)
                    digits = [self.coarse[storage(t)] for t in rounded]
                    self.coarse[place] = max([_digits(tensor), *digits])
            elif rounded:
                self.told.add(place)
        return out


def _digits(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if _floats(tensor) else 0.0


def _exact(name: str, given: list[Tensor], kwargs: dict[str, Any]) -> bool:
    if name in ROUNDED_IF_COMPLEX and any(t.is_complex() for t in given):
        return False
    if kwargs.get("alpha", 1) not in (1, -1):
        return False  # added with one rounding in the middle of a row, with two at its end
    return name in EXACT or name in STEPS


def _steps(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if name == "pow":
        exponent = args[1]
        return not (isinstance(exponent, (int, float)) and exponent >= 0 and float(exponent).is_integer())
    if name in ("norm", "linalg_vector_norm") and len(args) > 1:
        return args[1] == 0  # how many are not zero
    if name == "softplus":
        return len(args) > 2 and args[2] < 20  # a straight line beyond that, and a leap to it
    return name in STEPS or name in STEPS_ROUNDED or kwargs.get("rounding_mode") is not None


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in _tree.flatten(value)[0] if isinstance(leaf, Tensor)]


def _floats(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def no_gradients(results: Iterable[Any]) -> None:
    """Results of a batch have one graph behind them: one gone backward, or changed in place, would be so for
    all."""
    if any(isinstance(t, Tensor) and t.requires_grad for t in results):
        raise Bail("gradients are wanted, and each item has a graph of its own")


def finite(tensors: Iterable[Any]) -> None:
    """Of what lies beyond all numbers, kernels of a processor make other things at the ends of a row than in
    its middle. Raises `Bail` where there is such."""
    for tensor in tensors:
        if type(tensor) is Tensor and tensor.is_cpu and _floats(tensor):
            short = tensor.element_size() < 4
            total = tensor.sum(dtype=torch.float32) if short else tensor.sum()
            if not cmath.isfinite(total.item()):
                raise Bail("numbers that are infinite, or none")
