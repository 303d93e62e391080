"""Whether a member's `train` or `eval` does more than to set flags and other Python state."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture import slots


class _Operations(TorchDispatchMode):
    """Notes whether any operation ran."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = True
        return func(*args, **(kwargs or {}))


def computes(member: nn.Module, switch: Callable[[nn.Module], Any], path: str) -> bool:
    """Return whether `switch`, which calls `train` or `eval` of the module at `path`, touches tensors.

    `member` is a copy of a skeleton, and is of no use afterwards.
    """
    before = _tensors(member)
    operations = _Operations()
    try:
        with operations:
            switch(member.get_submodule(path))
    except Exception:  # the member's own: it reads a number, which a skeleton has not
        return True
    return operations.seen or _tensors(member) != before


def _tensors(member: nn.Module) -> list[Any]:
    """Every module, and kind, memory and `requires_grad` of every tensor."""
    found: list[Any] = [(path, id(module)) for path, module in member.named_modules(remove_duplicate=False)]
    for slot in slots(member):
        memory = id(slot.tensor) if slot.tensor.layout != torch.strided else _memory(slot.tensor)
        found.append((slot.path, slot.kind, memory, slot.tensor.shape, slot.tensor.requires_grad))
    return found


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
