"""The tensors of a member: parameters, buffers and plain attributes, each with a canonical name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Slot:
    """One tensor of a member: attribute `name` of the module at path `owner`."""

    owner: str
    name: str
    kind: str  # 'parameter', 'buffer' or 'constant' (a plain tensor attribute)
    persistent: bool
    tensor: Tensor

    @property
    def path(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


def home_of(owner: nn.Module, kind: str) -> dict[str, Any]:
    """Return the dict of `owner` that holds tensors of this kind."""
    return {"parameter": owner._parameters, "buffer": owner._buffers, "constant": vars(owner)}[kind]  # type: ignore[return-value]


def slots(model: nn.Module) -> Iterator[Slot]:
    """Return every tensor that is an attribute of `model` or a submodule; tied tensors once per name."""
    for owner, module in model.named_modules(remove_duplicate=False):
        for name, tensor in module._parameters.items():
            if tensor is not None:
                yield Slot(owner, name, "parameter", True, tensor)
        for name, tensor in module._buffers.items():
            if tensor is not None:
                persistent = name not in module._non_persistent_buffers_set
                yield Slot(owner, name, "buffer", persistent, tensor)
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield Slot(owner, name, "constant", False, value)


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Path -> first path of the same tensor; tied tensors share one canonical name."""
    first: dict[int, str] = {}
    return {slot.path: first.setdefault(id(slot.tensor), slot.path) for slot in slots(model)}


def has_gradient_hooks(tensor: Tensor) -> bool:
    """Return whether autograd calls Python for this tensor; stacking or recording it would lose the hooks."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def is_uninitialized(tensor: Tensor) -> bool:
    return torch.nn.parameter.is_lazy(tensor)
