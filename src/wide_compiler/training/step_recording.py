"""Recording of a training step in a CUDA graph, and the guard that decides whether it is still valid."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..guards import Snapshot
from ..guards.modes import current_stream, launch_settings
from ..guards.reads import Entry, HeldTensor, SequenceItems, same_items
from ..guards.tensors import TableGuard, TensorGuard
from ..replay.cuda_graph import CaptureRefused, capture, uncached_autocast

_data_ptr = Tensor.data_ptr
# Optimisers without a `capturable` option whose step runs entirely on the GPU.
_ON_DEVICE = (torch.optim.SGD,)


def can_record_optimizer(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimiser's step has no Python side effects that a replay would skip.

    Only exact types are accepted: a subclass may count steps in Python.
    """
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if type(optimizer) in _ON_DEVICE:
        return True
    own = type(optimizer).__module__.startswith(("torch.optim.", "wide_compiler.training."))
    return own and all(group.get("capturable", False) for group in optimizer.param_groups)


class TrainStepGuard:
    """Snapshot of a step: arguments, weights, modes, values read by loss and members, and the optimiser.

    An optimiser that cannot be recorded runs as usual after a replay, so its settings and state may change.
    `holds` is called before every step.

    Args:
        in_place: also compare the addresses of the arguments.
    """

    def __init__(self, step: Any, args: tuple, targets: tuple, in_place: bool = False):
        self.step, self.in_place = step, in_place
        given = (*args, *targets)
        self.counts, self.types = (len(args), len(targets)), [*map(type, given)]
        self.numbers = [x for x in given if not isinstance(x, Tensor)]
        self.places = [(place.home, place.name) for place in step.wide.places]
        self.weights = self._weights()
        self.learning = [w for w in self.weights if w is not None and w.requires_grad]
        self.modes = self._modes()
        self.reads = step.reads
        self.kept: list[Tensor] = []  # tensors of the optimiser
        states = []
        if can_record_optimizer(step.optimizer):
            self.reads = self.reads.joined([_settings_read(step.optimizer)])
            states = [step.optimizer.state, *step.optimizer.state.values()]
            groups = step.optimizer.param_groups
            settings = [{k: v for k, v in group.items() if k != "params"} for group in groups]
            # CUDA tensors among the settings, which a recording reads at their address.
            self.kept += [x for x in _tree.flatten(settings)[0] if isinstance(x, Tensor) and x.is_cuda]
        self.states, self.tables = _contents(states), TableGuard(states)
        self.kept += [value for state in states[1:] for value in state.values() if isinstance(value, Tensor)]
        self.addresses = [*map(_data_ptr, self.kept)]
        tensors = [x for x in given if isinstance(x, Tensor)]
        self.stored = [w for w in self.weights if w is not None]
        self.tensors = TensorGuard([*tensors, *self.stored], anywhere=0 if in_place else len(tensors))

    def holds(self, args: tuple, targets: tuple) -> bool:
        """Return whether nothing has changed since the snapshot."""
        given = (*args, *targets)
        tensors = [x for x in given if isinstance(x, Tensor)]
        return (
            (len(args), len(targets)) == self.counts
            and [*map(type, given)] == self.types
            and [x for x in given if not isinstance(x, Tensor)] == self.numbers
            and not any(t.is_nested for t in tensors)  # `TensorGuard` does not support these
            and same_items(self._weights(), self.weights)
            and self.tensors.holds([*tensors, *self.stored])
            and self._same_states()
            and [*map(_data_ptr, self.kept)] == self.addresses
            # `has_gradient_hooks` without a call for each weight
            and not any(w._backward_hooks or w._post_accumulate_grad_hooks for w in self.learning)
            and self.reads.holds()
            and self._modes() == self.modes
        )

    def _weights(self) -> list[Any]:
        """Return the weights and buffers in the model; None for a computed one."""
        return [home.get(name) for home, name in self.places]

    def _same_states(self) -> bool:
        if self.tables.holds():
            return True
        if not same_items(_contents(self.tables.tables), self.states):
            return False
        self.tables.remember()  # the same tensors were assigned again
        return True

    def _modes(self) -> tuple[Any, ...]:
        wide = self.step.wide
        cuda = launch_settings() if torch.cuda.is_initialized() else None
        return (
            wide.circumstances(),
            cuda,
            wide.frozen_lanes.changes,
            can_record_optimizer(self.step.optimizer),
        )


def _settings_read(optimizer: torch.optim.Optimizer) -> Snapshot:
    """Return the reads of an optimiser's hyper-parameters, and of the objects that hold them."""
    reads = Snapshot()
    for name in ("param_groups", "state"):
        reads.note(Entry, vars(optimizer), name, path=f"optimizer.{name}")
    reads.note(SequenceItems, optimizer.param_groups, path="optimizer.param_groups")
    for index, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            path = f"optimizer.param_groups[{index}][{name!r}]"
            reads.note(Entry, group, name, path=path)
            if name != "params":
                _note_value(reads, value, path)
    return reads


def _note_value(reads: Snapshot, value: Any, path: str) -> None:
    if isinstance(value, list):
        reads.note(SequenceItems, value, path=path)
    if isinstance(value, (list, tuple)):
        for item in value:
            _note_value(reads, item, path)
    elif isinstance(value, Tensor) and not value.is_cuda:  # a CUDA graph reads the value of a CUDA tensor
        reads.note(HeldTensor, value, path=path)


def _contents(tables: Sequence[Any]) -> tuple[Any, ...]:
    """Return the keys and values of dictionaries in order, to be compared by identity."""
    return tuple(x for table in tables for x in (*table, *table.values()))


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
