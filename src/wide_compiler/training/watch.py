"""All that a recorded training step depends on, and whether it is still so."""

import operator
from typing import Any

import torch
from torch import Tensor

from ..capture.state import has_gradient_hooks
from ..tuning.guard import TensorGuard
from ..tuning.when import launch_settings
from .fingerprint import fingerprint
from .untouched import Untouched

_data_ptr = Tensor.data_ptr
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

    Asked before every step, so a quick look goes first (`Untouched`); then it compares what it holds.

    Args:
        in_place: the arguments' addresses count too.
    """

    def __init__(self, step: Any, args: tuple, targets: tuple, in_place: bool = False):
        self.step, self.in_place = step, in_place
        self.arguments = looks(args, targets, in_place)
        self.surroundings = self._surroundings()
        self.places = [(place.home, place.name) for place in step.wide.places]
        self.weights = TensorGuard([home[name] for home, name in self.places])
        held = self._held()
        self.types = [*map(type, held)]
        self.at = [i for i, value in enumerate(held) if isinstance(value, Tensor)]
        self.tensors = [held[i] for i in self.at]
        self.addresses = [t.data_ptr() for t in self.tensors]
        self.untouched = Untouched(step, args, targets, self.places, in_place)

    def unchanged(self, args: tuple, targets: tuple) -> bool:
        if self.untouched.holds(args, targets):
            return True
        if not self._compared(args, targets):
            return False
        if (
            self.untouched.can_tell
        ):  # written, but with what was there: the next look can be a quick one again
            self.untouched = Untouched(self.step, args, targets, self.places, self.in_place)
        return True

    def _compared(self, args: tuple, targets: tuple) -> bool:
        if looks(args, targets, self.in_place) != self.arguments:
            return False
        held = self._held()
        if [*map(type, held)] != self.types:
            return False
        tensors = [held[i] for i in self.at]
        if not all(map(operator.is_, tensors, self.tensors)):
            return False
        if [*map(_data_ptr, tensors)] != self.addresses:
            return False
        weights = tensors[: len(self.places)]
        if not self.weights.holds(weights) or any(map(has_gradient_hooks, weights)):
            return False
        return self._surroundings() == self.surroundings

    def _held(self) -> list[Any]:
        """Weights and buffers, where the model holds them now; then all of the optimiser's state."""
        held = [home.get(name) for home, name in self.places]
        for state in self.step.optimizer.state.values():
            held += state.values()
        return held

    def _surroundings(self) -> tuple[Any, ...]:
        optimizer = self.step.optimizer
        groups = [
            [(k, _plain(v)) for k, v in group.items() if k != "params"] for group in optimizer.param_groups
        ]
        cuda = launch_settings() if torch.cuda.is_initialized() else None
        recordable = can_record_optimizer(optimizer)
        held = self.step.wide.held.changes
        return self.step.wide.circumstances(), groups, fingerprint(self.step.loss), recordable, cuda, held


def looks(args: tuple, targets: tuple, in_place: bool) -> list[Any]:
    """All that a recording holds of a step's arguments; their addresses if it reads them where they lie."""
    found: list[Any] = [len(args)]
    for x in (*args, *targets):
        if isinstance(x, Tensor):
            address = x.data_ptr() if in_place else None
            found.append((type(x), x.shape, x.dtype, x.device, x.stride(), x.requires_grad, address))
        else:
            found.append((type(x), x))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Tensor):  # on the GPU the recording reads it anew; on the CPU its number is held
        return (id(value), value.data_ptr()) if value.is_cuda else value.tolist()
    return value
