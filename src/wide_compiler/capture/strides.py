"""Strides of tensors: what a forward reads about them, and copies that keep them.

A graph does not depend on strides, but Python may: `if x.is_contiguous(): ...`. Such reads get the answer
for a single member, and the strides of the inputs, which determine all others, become part of the guards.
"""

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._tree import is_fake
from .failure import CaptureFailed


def overlaps_itself(x: Tensor) -> bool:
    """Return whether two elements may share a memory location, as after `expand`.

    >>> overlaps_itself(torch.zeros(3, 1).expand(3, 4)), overlaps_itself(torch.zeros(3, 4).t())
    (True, False)
    """
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def laid_out(source: Tensor, like: Tensor) -> Tensor:
    """Return a copy of `source` with its own memory and the strides of `like` (of the same shape)."""
    if source.layout != torch.strided or like.layout != torch.strided or source.numel() == 0:
        return source.clone()
    if not overlaps_itself(like):
        empty = torch.empty_strided(like.shape, like.stride(), dtype=source.dtype, device=source.device)
        return empty.copy_(source)
    places = torch.arange(extent_of(like), device=source.device).as_strided(like.shape, like.stride())
    memory = source.new_zeros(extent_of(like)).index_put((places,), source)
    return memory.as_strided(like.shape, like.stride())


def extent_of(x: Tensor) -> int:
    """Return the number of elements from the first to the last in memory, for a tensor that is not empty."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def is_ragged_or_sparse(x: Tensor) -> bool:
    """Return whether the tensor has no strides, so that it cannot be stacked."""
    return x.layout != torch.strided or x.is_nested


def kind_of(x: Tensor) -> str:
    """`sparse_csr` or `nested`, for messages."""
    return "nested" if x.is_nested else str(x.layout).removeprefix("torch.")


_STRIDES = {Tensor.is_contiguous, Tensor.stride, Tensor.dim_order}
_ADDRESSES = {Tensor.storage_offset, Tensor.data_ptr, Tensor.untyped_storage, Tensor._is_view}
# Autograd attributes; for values inside the forward they depend on the grad mode.
_LEARNS = Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_HISTORY = {Tensor.is_leaf.__get__, Tensor.grad_fn.__get__, Tensor._version.__get__}  # type: ignore[attr-defined, union-attr]
_PASSED_OVER = ("torch.overrides", "torch._tensor")  # frames between a method and the mode


class LayoutReads(TorchFunctionMode):
    """Records what the model's own code (not PyTorch's) reads about the layout of tensors."""

    def __init__(self, inputs: Sequence[Any]):
        super().__init__()
        self.inputs = inputs
        self.of_inputs = False  # whether strides were read, which those of the inputs determine
        self.refused = ""  # a read that lanes cannot answer
        self.of_gradients = False  # whether `requires_grad` of an intermediate value was read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _STRIDES or func in _ADDRESSES or func == _LEARNS or func in _HISTORY:
            self._note(func, args[0], sys._getframe(1))
        if torch.is_grad_enabled():
            for value in args:
                if type(value) is nn.Parameter and value.requires_grad and not is_fake(value):
                    self.refused = "its forward computes with a parameter that is not part of the model"
        return func(*args, **(kwargs or {}))

    def _note(self, func: Any, tensor: Any, frame: FrameType | None) -> None:
        while frame is not None and frame.f_globals.get("__name__") in _PASSED_OVER:
            frame = frame.f_back
        if frame is None or frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "wide_compiler"):
            return
        is_input = any(tensor is x for x in self.inputs)
        if func in _STRIDES:
            self.of_inputs = True
        elif func == _LEARNS:  # for inputs it is part of every program's key
            self.of_gradients |= not is_input
        elif func in _HISTORY and not is_input:
            self.of_gradients = True
        elif func in _HISTORY:
            what = "is_leaf, grad_fn or _version of an input"
            self.refused = f"its forward reads {what}, which a graph would freeze"
        else:
            self.refused = f"its forward reads {func.__name__}() of a tensor, which differs for lanes"

    def check(self) -> None:
        if self.refused:
            raise CaptureFailed(self.refused)


def strided_copy(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides, because a forward may read them."""
    plain = tensor.is_contiguous()
    return tensor.clone(memory_format=torch.contiguous_format) if plain else laid_out(tensor, tensor)
