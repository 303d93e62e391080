"""Recording of a training step in a CUDA graph, and the guard that decides whether it is still valid."""

import operator
from typing import Any

import torch
from torch import Tensor

from ..capture.state import has_gradient_hooks
from ..guards.modes import current_stream, launch_settings, launch_state
from ..guards.tensors import TableGuard, tensor_check
from ..replay.cuda_graph import CaptureRefused, capture, uncached_autocast

_data_ptr = Tensor.data_ptr
_PLAIN = (bool, int, float, str, type(None))
# Optimisers without a `capturable` option whose step runs entirely on the GPU.
_ON_DEVICE = (torch.optim.SGD,)


def can_record_optimizer(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimiser's step has no Python side effects that a replay would skip.

    Only exact types are accepted: a subclass may count steps in Python.
    """
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if type(optimizer) in _ON_DEVICE:
        return True
    own = type(optimizer).__module__.startswith(("torch.optim.", "wide_compiler.training."))
    return own and all(group.get("capturable", False) for group in optimizer.param_groups)


class TrainStepGuard:
    """Snapshot of a step: arguments, modes, hyper-parameters, values read by loss and members, and tensors.

    `holds` is called before every step. It first compares dictionary versions and addresses in C++, and only
    if these changed compares the values.

    Args:
        in_place: also compare the addresses of the arguments.
    """

    def __init__(self, step: Any, args: tuple, targets: tuple, in_place: bool = False):
        self.step, self.in_place = step, in_place
        self.places = [(place.home, place.name) for place in step.wide.places]
        self.reads = step.reads
        self.arguments = looks(args, targets, in_place)
        self.surroundings = self._surroundings()
        held = self._held()
        self.types = [*map(type, held)]
        self.at = [i for i, value in enumerate(held) if isinstance(value, Tensor)]
        self.tensors = [held[i] for i in self.at]
        self.addresses = [*map(_data_ptr, self.tensors)]
        self.quick: _QuickLook | None = _QuickLook.of(self, args, targets)

    def holds(self, args: tuple, targets: tuple) -> bool:
        """Whether nothing has changed since the snapshot."""
        if self.quick is not None and self.quick.holds(args, targets):
            return True
        if not self._compared(args, targets):
            return False
        if self.quick is not None:  # rewritten with equal values: update the fast check
            self.quick = _QuickLook.of(self, args, targets)
        return True

    def weights(self) -> list[Any]:
        """Return the weights and buffers currently in the model."""
        return [home.get(name) for home, name in self.places]

    def _compared(self, args: tuple, targets: tuple) -> bool:
        held = self._held()
        if looks(args, targets, self.in_place) != self.arguments or [*map(type, held)] != self.types:
            return False
        tensors = [held[i] for i in self.at]
        return (
            same_objects(tensors, self.tensors)
            and [*map(_data_ptr, tensors)] == self.addresses
            and self._surroundings() == self.surroundings
            and self.reads.holds()
        )

    def _held(self) -> list[Any]:
        """Return weights, buffers and optimiser state."""
        held = self.weights()
        for state in self.step.optimizer.state.values():
            held += state.values()
        return held

    def _surroundings(self) -> tuple[Any, ...]:
        optimizer, wide = self.step.optimizer, self.step.wide
        groups = [[(k, _plain(v)) for k, v in g.items() if k != "params"] for g in optimizer.param_groups]
        cuda = launch_settings() if torch.cuda.is_initialized() else None
        weights = [(t.requires_grad, has_gradient_hooks(t)) for t in self.weights() if t is not None]
        recordable = can_record_optimizer(optimizer)
        return wide.circumstances(), groups, weights, recordable, cuda, wide.frozen_lanes.changes


class _QuickLook:
    """Fast check: True is certain; False means that something was written, perhaps with equal values."""

    def __init__(self, guard: TrainStepGuard, args: tuple, targets: tuple):
        self.guard, self.step = guard, guard.step
        self.counts, given = (len(args), len(targets)), (*args, *targets)
        optimizer, wide = self.step.optimizer, self.step.wide
        weights = self.weights = guard.weights()
        self.learning = [w for w in weights if w.requires_grad]  # only these can have gradient hooks
        states = list(optimizer.state.values())
        self.check = tensor_check((*given, *weights))
        self.addressed = 0 if guard.in_place else len(given)
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

    @classmethod
    def of(cls, guard: TrainStepGuard, args: tuple, targets: tuple) -> "_QuickLook | None":
        """Return a fast check, or None if only a full comparison can detect changes."""
        optimizer = guard.step.optimizer
        states = list(optimizer.state.values())
        can_tell = (
            all(type(x) is Tensor and not x.is_nested for x in (*args, *targets))
            and all(_is_settled(v) for group in optimizer.param_groups for v in _settings(group))
            and all(isinstance(v, Tensor) or _is_settled(v) for state in states for v in state.values())
        )
        return cls(guard, args, targets) if can_tell else None

    def holds(self, args: tuple, targets: tuple) -> bool:
        if (len(args), len(targets)) != self.counts:
            return False
        given = (*args, *targets)
        for x in given:
            if type(x) is not Tensor or x.is_nested:  # the C++ check does not support nested tensors
                return False
        weights = self.guard.weights()
        if not same_objects(weights, self.weights):
            return False
        tensors = [*given, *weights]
        optimizer = self.step.optimizer
        return (
            self.check(*tensors)
            and self.tables.holds()
            and [*map(_data_ptr, (*tensors[self.addressed :], *self.kept))] == self.addresses
            and same_objects(optimizer.param_groups, self.groups)
            and same_objects([v for values in self.lists for v in values], self.listed)
            and optimizer.state is self.state
            and self.step.wide.scopes is self.scopes
            and not any(map(has_gradient_hooks, self.learning))
            and self.guard.reads.holds()
            and self._modes() == self.modes
        )

    def _modes(self) -> tuple[Any, ...]:
        wide = self.step.wide
        return (
            launch_state() if torch.cuda.is_initialized() else torch.is_grad_enabled(),
            torch.get_default_dtype(),
            [scope.training for scope in self.scopes],
            wide.seeds.seeds is None,
            wide.frozen_lanes.changes,
        )


def looks(args: tuple, targets: tuple, in_place: bool) -> list[Any]:
    """Return the argument metadata that a recording depends on, with addresses if it reads them in place."""
    found: list[Any] = [len(args)]
    for x in (*args, *targets):
        if isinstance(x, Tensor):
            address = x.data_ptr() if in_place else None
            found.append((type(x), x.shape, x.dtype, x.device, x.stride(), x.requires_grad, address))
        else:
            found.append((type(x), x))
    return found


def same_objects(now: list[Any], before: list[Any]) -> bool:
    """Compare by identity, because `==` on tensors is elementwise."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Tensor):  # CUDA: the graph reads the value; CPU: it is baked in
        return (id(value), value.data_ptr()) if value.is_cuda else value.tolist()
    return value


def _settings(group: dict[str, Any]) -> list[Any]:
    return [value for name, value in group.items() if name != "params"]


def _is_settled(value: Any) -> bool:
    """Whether the value can only change by being replaced. A CUDA tensor's value is read by the graph."""
    if isinstance(value, tuple):
        return all(isinstance(v, _PLAIN) for v in value)
    if isinstance(value, list):  # its items are checked
        return not any(isinstance(v, (list, tuple)) for v in value) and all(map(_is_settled, value))
    return isinstance(value, _PLAIN) or (isinstance(value, Tensor) and value.is_cuda)


class StepRecording:
    """A CUDA graph of a step, with its input buffers, losses and gradients.

    Args:
        in_place: the graph reads the caller's tensors, for loops that refill the same tensors.
    """

    def __init__(self, step: Any, args: tuple, targets: tuple, in_place: bool):
        self.step = step
        self.whole = can_record_optimizer(step.optimizer)
        self.guard = TrainStepGuard(step, args, targets, in_place)
        self.stream = current_stream()
        self.arguments = [
            x.clone() if isinstance(x, Tensor) and not in_place else x for x in (*args, *targets)
        ]
        mine, theirs = tuple(self.arguments[: len(args)]), tuple(self.arguments[len(args) :])
        step.optimizer.zero_grad(set_to_none=True)
        run = step.run if self.whole else step.gradients
        with uncached_autocast(step.autocast is not None):
            self.graph, self.losses = capture(lambda: run(mine, theirs), stream=step.stream)
        self.gradients = [(p, p.grad) for p in step.wide.parameters() if p.requires_grad]

    @classmethod
    def of(cls, step: Any, args: tuple, targets: tuple, in_place: bool) -> "StepRecording | None":
        """Record the whole step, or only forward and backward if the optimiser cannot be recorded.

        Returns None if the capture fails, with the reason in `step.why`.
        """
        try:
            return cls(step, args, targets, in_place)
        except CaptureRefused as error:
            step.optimizer.zero_grad(set_to_none=True)
            step.why = f"no CUDA graph: {error}"
            return None

    def replay(self, args: tuple, targets: tuple) -> Tensor:
        stream = current_stream()
        if stream != self.stream:  # two streams must not use the graph's memory at once
            torch.cuda.synchronize()
            self.stream = stream
        if not self.guard.in_place:
            for buffer, given in zip(self.arguments, (*args, *targets), strict=True):
                if isinstance(buffer, Tensor):
                    buffer.copy_(given)
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient  # it may have been cleared
        if self.whole:
            self.step.optimizer._opt_called = True  # schedulers check it; normally set by `step`
        else:
            self.step.optimizer.step()
        return self.losses.clone()
