"""Computes the floats that an optimiser step passes to its ops (rates, bias corrections).

They depend on the settings and the step count, never on weights or gradients, so a copy of the optimiser with
a single one-element parameter produces them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .templates import op_name

OpFloats = list[tuple[str, tuple[float, ...]]]  # the ops of one parameter, each with its floats


class GroupKind(NamedTuple):
    """A parameter group.

    Attributes:
        optimizer: name of a class in `torch.optim`.
        settings: of the group, without its parameters.
        state: names of the state kept for each parameter.
    """

    optimizer: str
    settings: dict[str, Any]
    state: tuple[str, ...]


class OptimizerProbe:
    """Steps one parameter group of an optimiser with a one-element parameter."""

    def __init__(self, group: GroupKind) -> None:
        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.grad = torch.zeros(1)
        kind = getattr(torch.optim, group.optimizer)
        self.optimizer = kind([{**group.settings, "params": [parameter]}])
        shapes = {name: () if name == "step" else (1,) for name in group.state}
        self.optimizer.state[parameter] = {name: torch.zeros(shape) for name, shape in shapes.items()}
        self.count = self.optimizer.state[parameter].get("step")

    def floats(self, steps: float, settings: dict[str, Any]) -> OpFloats:
        """Return what step number `steps + 1` passes to the ops of one parameter."""
        self.optimizer.param_groups[0].update(settings)
        if self.count is not None:
            self.count.fill_(steps)
        recorder = _FloatRecorder()
        with recorder:
            self.optimizer.step()
        return recorder.found


class _FloatRecorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: OpFloats = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        given = (*args, *(kwargs or {}).values())
        if any(isinstance(a, torch.Tensor) and a.dim() > 0 for a in given):  # 0-d: the step count
            self.found.append((op_name(func), tuple([a for a in given if type(a) is float])))
        return func(*args, **(kwargs or {}))
