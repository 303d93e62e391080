"""The numbers that an optimiser's step hands to its ops (rates, bias corrections), without its tensors.

They depend on the settings and on how many steps were taken, never on weights or gradients. So a twin of the
optimiser with one parameter of one number gives them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .templates import op_name

OpNumbers = list[tuple[str, tuple[float, ...]]]  # ops of one parameter, each with its floats


class GroupKind(NamedTuple):
    """A group of parameters. optimizer: a name in `torch.optim`. state: what it keeps for a parameter."""

    optimizer: str
    settings: dict[str, Any]
    state: tuple[str, ...]


class Twin:
    """Steps as a group of an optimiser does, with a parameter of one number."""

    def __init__(self, group: GroupKind) -> None:
        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.grad = torch.zeros(1)
        kind = getattr(torch.optim, group.optimizer)
        self.optimizer = kind([{**group.settings, "params": [parameter]}])
        shapes = {name: () if name == "step" else (1,) for name in group.state}
        self.optimizer.state[parameter] = {name: torch.zeros(shape) for name, shape in shapes.items()}
        self.count = self.optimizer.state[parameter].get("step")

    def numbers(self, steps: float, settings: dict[str, Any]) -> OpNumbers:
        """What step number `steps + 1` hands to the ops of one parameter."""
        self.optimizer.param_groups[0].update(settings)
        if self.count is not None:
            self.count.fill_(steps)
        listening = _Listening()
        with listening:
            self.optimizer.step()
        return listening.found


class _Listening(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: OpNumbers = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        given = (*args, *(kwargs or {}).values())
        if any(isinstance(a, torch.Tensor) and a.dim() > 0 for a in given):  # else it is the count of steps
            self.found.append((op_name(func), tuple([a for a in given if type(a) is float])))
        return func(*args, **(kwargs or {}))
