"""A member without its weights: the Python of a model, from which a lane can be put together again."""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import AlignmentError
from .state import canonical_names, slots
from .strides import laid_out


def make_skeleton(model: nn.Module, shared: Collection[Any] = ()) -> nn.Module:
    """A deep copy of `model` whose tensors are stubs on the meta device: structure and code, no memory.

    Objects in `shared` are not copied, here and in all of these functions.
    """
    return _copy_with(model, lambda path, tensor: _like(tensor, _stub(tensor)), keeping(shared))


def clone_member(model: nn.Module, shared: Collection[Any] = ()) -> nn.Module:
    """A copy with tensors of its own; also where deepcopy refuses, for weights computed by hooks."""
    return _copy_with(model, _own_memory, keeping(shared))


def clone_members(models: Iterable[nn.Module]) -> list[nn.Module]:
    """Such copies of several models; what they share, their copies share too. A model that stands several
    times has several copies."""
    memo: dict[int, Any] = {}
    copies: list[nn.Module] = []
    seen: set[int] = set()
    for model in models:
        copies.append(_copy_with(model, _own_memory, {} if id(model) in seen else memo))
        seen.add(id(model))
    return copies


def copy_member(
    model: nn.Module, shared: Collection[Any] = (), tensor_of: Callable[[str], Tensor] | None = None
) -> tuple[nn.Module, dict[int, Any]]:
    """The same, and for the id of every copied object (and of its `__dict__`) what it is a copy of.

    With `tensor_of` the model is a skeleton, and these are its tensors.
    """
    memo: dict[int, Any] = keeping(shared)
    copied = _copy_with(model, _own_memory if tensor_of is None else _filled(tensor_of), memo)
    kept = {id(value): value for value in memo.pop(id(memo), [])}  # deepcopy keeps the originals here
    originals = _Originals()
    originals.copies = [*memo.values(), vars(copied)]
    for key, value in memo.items():
        if key == id(value):
            continue
        original = kept.get(key)
        originals[id(value)] = original
        if original is not None and isinstance(getattr(value, "__dict__", None), dict):
            originals[id(vars(value))] = vars(original)
    originals[id(copied)], originals[id(vars(copied))] = model, vars(model)
    return copied, originals


class _Originals(dict[int, Any]):
    """The id of a copy -> its original. All copies are kept alive: the id of a dead one may be given to a new
    object, which would then be taken for the member's own."""

    copies: list[Any]


def materialize(
    skeleton: nn.Module, tensor_of: Callable[[str], Tensor], shared: Collection[Any] = ()
) -> nn.Module:
    """The opposite: a real model whose tensor at each canonical path has the numbers of `tensor_of(path)`."""
    return _copy_with(skeleton, _filled(tensor_of), keeping(shared))


def _filled(tensor_of: Callable[[str], Tensor]) -> Callable[[str, Tensor], Tensor]:
    def filled(path: str, stub: Tensor) -> Tensor:
        data = tensor_of(path).detach()
        same = data.layout != torch.strided or data.stride() == stub.stride()
        return _like(stub, data if same else laid_out(data, stub))

    return filled


def _own_memory(path: str, tensor: Tensor) -> Tensor:
    return _like(tensor, laid_out(tensor.detach(), tensor))


def _stub(tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided:
        return torch.empty_like(tensor, device="meta")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def keeping(shared: Collection[Any]) -> dict[int, Any]:
    """A memo with which `copy.deepcopy` does not copy these objects."""
    return {id(value): value for value in shared}


def _copy_with(
    model: nn.Module, replace: Callable[[str, Tensor], Tensor], memo: dict[int, Any] | None = None
) -> nn.Module:
    # deepcopy asks its memo before it copies: a filled memo swaps every tensor, ties and hidden
    # references (such as the flat weight list of an RNN) included.
    names = canonical_names(model)
    memo = {} if memo is None else memo
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


def keeps_history(model: nn.Module) -> str:
    """The path of a module that keeps a tensor with a gradient history in its attributes, '' if none does."""
    for path, module in model.named_modules():
        if any(True for _ in _computed_tensors(module)):
            return path or type(model).__name__
    return ""


def _like(original: Tensor, data: Tensor) -> Tensor:
    if isinstance(original, nn.Parameter):
        return nn.Parameter(data.detach(), requires_grad=original.requires_grad)
    return data.detach()
