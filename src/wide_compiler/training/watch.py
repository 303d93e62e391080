"""All that a recorded training step depends on, and whether it is still so."""

from typing import Any

import torch
from torch import Tensor

from ..tuning.when import launch_settings
from .fingerprint import fingerprint

# Optimisers whose step is all on the GPU: they have no option `capturable` because they need none.
_ON_DEVICE = (torch.optim.SGD,)


def can_record_optimizer(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step does nothing in Python that a replay would leave out.

    Only exact types: a subclass may count steps in Python.
    """
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if type(optimizer) in _ON_DEVICE:
        return True
    own = type(optimizer).__module__.startswith(("torch.optim.", "wide_compiler.training."))
    return own and all(group.get("capturable", False) for group in optimizer.param_groups)


class Watch:
    """How arguments, modes, hyper-parameters, the loss's numbers and every tensor were at one moment.

    Asked before every step, so it compares what it holds instead of describing everything anew.
    """

    def __init__(self, step: Any, args: tuple, targets: tuple):
        self.step = step
        self.arguments = _looks(args, targets)
        self.surroundings = self._surroundings()
        self.state = step.optimizer.state
        # (where it is held, under what name, the tensor, its address, whether it learns)
        self.tensors: list[tuple[dict, Any, Tensor, int, bool]] = []
        for home, name in self._places():
            tensor = home[name]
            self.tensors.append((home, name, tensor, tensor.data_ptr(), tensor.requires_grad))
        self.states = len(self.state), sum(len(s) for s in self.state.values())

    def unchanged(self, args: tuple, targets: tuple) -> bool:
        if self.step.optimizer.state is not self.state or _looks(args, targets) != self.arguments:
            return False
        for home, name, tensor, address, learns in self.tensors:
            now = home.get(name)
            if now is not tensor or now.data_ptr() != address or now.requires_grad is not learns:
                return False
            if now._backward_hooks:
                return False
        if self.states != (len(self.state), sum([len(s) for s in self.state.values()])):
            return False
        return self._surroundings() == self.surroundings

    def _places(self) -> list[tuple[dict, Any]]:
        places: list[tuple[dict, Any]] = [(place.home, place.name) for place in self.step.wide.places]
        for state in self.state.values():
            places += [(state, name) for name, value in state.items() if isinstance(value, Tensor)]
        return places

    def _surroundings(self) -> tuple[Any, ...]:
        optimizer = self.step.optimizer
        groups = [
            [(k, _plain(v)) for k, v in group.items() if k != "params"] for group in optimizer.param_groups
        ]
        cuda = launch_settings() if torch.cuda.is_initialized() else None
        recordable = can_record_optimizer(optimizer)
        held = self.step.wide.held.changes
        return self.step.wide.circumstances(), groups, fingerprint(self.step.loss), recordable, cuda, held


def _looks(args: tuple, targets: tuple) -> list[Any]:
    looks: list[Any] = [len(args)]
    for x in (*args, *targets):
        if isinstance(x, Tensor):
            looks.append((x.shape, x.dtype, x.device, x.stride(), x.requires_grad))
        else:
            looks.append((type(x), x))
    return looks


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Tensor):  # on the GPU the recording reads it anew; on the CPU its number is held
        return (id(value), value.data_ptr()) if value.is_cuda else value.tolist()
    return value
