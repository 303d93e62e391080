"""A member without its weights: the Python of a model, from which a lane can be put together again."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import AlignmentError
from .state import canonical_names, slots


def make_skeleton(model: nn.Module) -> nn.Module:
    """A deep copy of `model` whose tensors are stubs on the meta device: structure and code, no memory."""
    return _copy_with(model, lambda path, tensor: _like(tensor, torch.empty_like(tensor, device="meta")))


def clone_member(model: nn.Module) -> nn.Module:
    """A copy with tensors of its own; also where deepcopy refuses, for weights computed by hooks."""
    return _copy_with(model, lambda path, tensor: _like(tensor, tensor.detach().clone()))


def materialize(skeleton: nn.Module, tensor_of: Callable[[str], Tensor]) -> nn.Module:
    """The opposite: a real model whose tensor at each canonical path is `tensor_of(path)`."""
    return _copy_with(skeleton, lambda path, stub: _like(stub, tensor_of(path)))


def _copy_with(model: nn.Module, replace: Callable[[str, Tensor], Tensor]) -> nn.Module:
    # deepcopy asks its memo before it copies: a filled memo swaps every tensor, ties and hidden
    # references (such as the flat weight list of an RNN) included.
    names = canonical_names(model)
    memo: dict[int, Tensor] = {}
    for slot in slots(model):
        if id(slot.tensor) not in memo:
            memo[id(slot.tensor)] = replace(names[slot.path], slot.tensor)
    for tensor in _computed_tensors(model):
        memo.setdefault(id(tensor), tensor.detach().clone())
    try:
        return copy.deepcopy(model, memo)
    except TypeError as error:
        raise AlignmentError(f"{type(model).__name__} cannot be copied: {error}") from error


def _computed_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Tensors with a gradient history in what modules keep, such as caches: deepcopy refuses them."""
    waiting: list[tuple[Any, int]] = [
        (value, 0)
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in ("_parameters", "_buffers", "_modules")
    ]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, Tensor) and not value.is_leaf:
            yield value
        elif isinstance(value, (dict, list, tuple)) and depth < 4:
            inside = value.values() if isinstance(value, dict) else value
            waiting += [(item, depth + 1) for item in inside]


def _like(original: Tensor, data: Tensor) -> Tensor:
    if isinstance(original, nn.Parameter):
        return nn.Parameter(data.detach(), requires_grad=original.requires_grad)
    return data.detach()
