"""Whether nobody has touched anything that a recorded step depends on: asked before every step, so in C++."""

import operator
from typing import Any

import torch
from torch import Tensor

from ..capture.state import has_gradient_hooks
from ..tuning.guard import TableGuard, tensor_check
from ..tuning.when import launch_state
from .fingerprint import SameReads

_data_ptr = Tensor.data_ptr
_PLAIN = (bool, int, float, str, type(None))


class Untouched:
    """A quick look at all that `Watch` compares.

    A true answer is certain. A false one only says that somebody has written somewhere, perhaps what was
    there already; or that there is something which only a comparison can tell (`can_tell`).
    """

    def __init__(self, step: Any, args: tuple, targets: tuple, places: list[Any], in_place: bool):
        self.step, self.places = step, places
        optimizer, wide = step.optimizer, step.wide
        given = (*args, *targets)
        weights = self.weights = [home[name] for home, name in places]
        states = list(optimizer.state.values())
        self.reads = SameReads.of(step.loss)
        self.can_tell = (
            self.reads is not None
            and all(type(x) is Tensor and not x.is_nested for x in given)
            and all(_is_settled(v) for group in optimizer.param_groups for v in _settings(group))
            and all(isinstance(v, Tensor) or _is_settled(v) for state in states for v in state.values())
            and not torch._C._is_any_autocast_enabled()  # to which dtype shows nowhere else
        )
        if not self.can_tell:
            return
        self.counts = len(args), len(targets)
        self.check = tensor_check((*given, *weights))
        self.addressed = 0 if in_place else len(given)
        settings = [v for group in optimizer.param_groups for v in _settings(group)]
        self.lists = [v for v in settings if isinstance(v, list)]
        self.listed = [v for values in self.lists for v in values]
        held = [*settings, *self.listed, *(v for state in states for v in state.values())]
        self.kept = [v for v in held if isinstance(v, Tensor)]
        self.addresses = [*map(_data_ptr, (*given, *weights)[self.addressed :]), *map(_data_ptr, self.kept)]
        self.groups, self.state = list(optimizer.param_groups), optimizer.state
        hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        self.tables = TableGuard([optimizer.state, *states, *self.groups, *hooks])
        self.scopes = wide.scopes
        self.modes = self._modes()

    def holds(self, args: tuple, targets: tuple) -> bool:
        """Is everything untouched?"""
        if not self.can_tell or (len(args), len(targets)) != self.counts:
            return False
        given = (*args, *targets)
        for x in given:
            if type(x) is not Tensor or x.is_nested:  # the check cannot look at a nested tensor
                return False
        weights = [home.get(name) for home, name in self.places]
        if not _the_same(weights, self.weights):
            return False
        tensors = [*given, *weights]
        optimizer = self.step.optimizer
        return (
            self.check(*tensors)
            and self.tables.holds()
            and [*map(_data_ptr, (*tensors[self.addressed :], *self.kept))] == self.addresses
            and _the_same(optimizer.param_groups, self.groups)
            and _the_same([v for values in self.lists for v in values], self.listed)
            and optimizer.state is self.state
            and self.step.wide.scopes is self.scopes
            and not any(map(has_gradient_hooks, weights))
            and self.reads is not None
            and self.reads.hold()
            and self._modes() == self.modes
        )

    def _modes(self) -> tuple[Any, ...]:
        wide = self.step.wide
        return (
            launch_state() if torch.cuda.is_initialized() else torch.is_grad_enabled(),
            [scope.training for scope in self.scopes],
            wide.seeds.seeds is None,
            wide.held.changes,
        )


def _the_same(now: list[Any], before: list[Any]) -> bool:
    """The very objects: tensors among them cannot be asked whether they are equal."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _settings(group: dict[str, Any]) -> list[Any]:
    return [value for name, value in group.items() if name != "params"]


def _is_settled(value: Any) -> bool:
    """Whether it cannot change unless somebody puts another in its place; a GPU's number is read anew."""
    if isinstance(value, tuple):
        return all(isinstance(v, _PLAIN) for v in value)
    if isinstance(value, list):  # of those the items are looked at
        return not any(isinstance(v, (list, tuple)) for v in value) and all(map(_is_settled, value))
    return isinstance(value, _PLAIN) or (isinstance(value, Tensor) and value.is_cuda)
