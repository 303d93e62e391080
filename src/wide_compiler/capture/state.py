"""What a member holds: parameters, buffers and plain tensor attributes, each under one canonical name."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Slot:
    """One tensor of a member. `owner` is the path of its module, `name` the attribute there."""

    owner: str
    name: str
    kind: str  # 'parameter', 'buffer' or 'constant' (a plain tensor attribute)
    persistent: bool
    tensor: Tensor

    @property
    def path(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


def home_of(owner: nn.Module, kind: str) -> dict[str, Any]:
    """The dictionary of `owner` in which tensors of this kind lie."""
    return {"parameter": owner._parameters, "buffer": owner._buffers, "constant": vars(owner)}[kind]  # type: ignore[return-value]


def slots(model: nn.Module) -> Iterator[Slot]:
    """Every tensor reachable as an attribute of `model` or a submodule, ties listed under each name."""
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
    """Path -> the first path under which the same tensor stands (ties share one canonical name)."""
    first: dict[int, str] = {}
    return {slot.path: first.setdefault(id(slot.tensor), slot.path) for slot in slots(model)}


def has_gradient_hooks(tensor: Tensor) -> bool:
    """Python that autograd calls for this very tensor: a stack or a recording of it would not."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def is_uninitialized(tensor: Tensor) -> bool:
    return torch.nn.parameter.is_lazy(tensor)
