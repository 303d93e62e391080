"""Observes what a training step reads in Python, and detects effects that a replay cannot repeat."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..guards import Observer
from .creation import is_creation
from .tensor import SignalTensor

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Parts of PyTorch with internal state, which a replay would not update.
_STATEFUL = {
    "torch.optim.lr_scheduler": "a learning rate scheduler; call it outside of the step",
    "torch.optim.swa_utils": "an averaged model; call it outside of the step",
    "torch.amp.grad_scaler": "a GradScaler, which reads a value in each step",
    "torch.utils.data": "a DataLoader; give its batches as arguments",
}
_BACKWARD = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}


class StepObserver(Observer):
    """Runs a step once and records what its Python code reads. backward: it ran a backward pass."""

    def __init__(self, function: Callable, modules: Iterable[nn.Module]) -> None:
        super().__init__([], calls=[function])
        self.backward = False
        self._plain = _PlainOps()
        for module in modules:
            self.meet(module)

    def meet(self, module: nn.Module) -> None:
        """Register a module that the step calls."""
        self._keep(module)
        self._paths.setdefault(id(module), type(module).__name__)
        for name in HOOKS:
            for hook in getattr(module, name).values():
                self._visit_function(hook, f"a hook of {type(module).__name__}")

    def watch(self, call: Callable[[], Any]) -> Any:
        with self._plain:
            return self.run(call, put_back=False)

    def handles(self) -> list[SignalTensor]:
        """Return the handles held by Python: in globals, closures, attributes."""
        return [value for value in self._alive if type(value) is SignalTensor]

    def is_constant(self, x: Tensor) -> bool:
        """Return whether x was made in the step from numbers only."""
        return id(x) in self._plain.constants

    def refused(self) -> str:
        return self.effects[0] if self.effects else self._plain.refused

    def _enter_torch(self, frame: types.FrameType, code: types.CodeType) -> None:
        self.backward |= code in _BACKWARD
        module = frame.f_globals.get("__name__") or ""
        for name, what in _STATEFUL.items():
            if module.startswith(name) and "self" in frame.f_locals:  # not Optimizer.step's wrapper
                self.effects.append(f"it uses {what}")
        super()._enter_torch(frame, code)


class _PlainOps(TorchDispatchMode):
    """Records which plain tensors are made from numbers only, and whether the script draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.constants: dict[int, Tensor] = {}
        self.refused = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and type(result) is not SignalTensor:
            given = [a for a in args if isinstance(a, Tensor)]
            if torch.Tag.nondeterministic_seeded in func.tags:
                self.refused = f"the script itself draws random numbers in it ({func})"
            elif (
                is_creation(func)
                or "lift_fresh" in func._opname
                or (given and all(id(a) in self.constants for a in given))
            ):
                self.constants[id(result)] = result
        return result
