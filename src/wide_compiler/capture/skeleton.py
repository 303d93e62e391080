"""Skeletons: members without weights, from which the model of a lane can be rebuilt."""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import AlignmentError
from .state import canonical_names, slots
from .strides import laid_out


def make_skeleton(model: nn.Module, shared: Collection[Any] = ()) -> nn.Module:
    """Return a deep copy of `model` whose tensors are on the meta device: structure and code, no memory.

    Objects in `shared` are not copied, here and in the functions below.
    """
    return _copy_with(model, lambda path, tensor: _like(tensor, _stub(tensor)), keeping(shared))


def clone_member(model: nn.Module, shared: Collection[Any] = ()) -> nn.Module:
    """Return a deep copy with its own tensors, also where deepcopy fails: for weights computed by hooks."""
    return _copy_with(model, _own_memory, keeping(shared))


def clone_members(models: Iterable[nn.Module]) -> list[nn.Module]:
    """Copy models; what they share, their copies share. A model that occurs twice gets two copies."""
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
    """`clone_member`, and a dict from the id of every copied object (and its `__dict__`) to its original.

    With `tensor_of` the model is a skeleton, and its tensors are copies of `tensor_of(path)`.
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
    """id of a copy -> its original. Keeps all copies alive, because ids of dead objects are reused."""

    copies: list[Any]


def materialize(
    skeleton: nn.Module, tensor_of: Callable[[str], Tensor], shared: Collection[Any] = ()
) -> nn.Module:
    """Rebuild a model from a skeleton, with the values of `tensor_of(path)` for each canonical path."""
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
    """Return a memo that keeps `copy.deepcopy` from copying these objects."""
    return {id(value): value for value in shared}


def _copy_with(
    model: nn.Module, replace: Callable[[str, Tensor], Tensor], memo: dict[int, Any] | None = None
) -> nn.Module:
    # deepcopy looks into its memo first: a filled memo replaces every tensor, including ties and hidden
    # references (such as the flat weight list of an RNN).
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
    """Tensors with an autograd history in modules' attributes, such as caches, which deepcopy rejects."""
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
    """Return the path of a module that holds a tensor with autograd history; '' if there is none."""
    for path, module in model.named_modules():
        if any(True for _ in _computed_tensors(module)):
            return path or type(model).__name__
    return ""


def _like(original: Tensor, data: Tensor) -> Tensor:
    if isinstance(original, nn.Parameter):
        return nn.Parameter(data.detach(), requires_grad=original.requires_grad)
    return data.detach()
