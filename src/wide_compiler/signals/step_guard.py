"""Guards of a recorded step: checks that nothing it depends on has changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module
from torch.optim import Optimizer
from torch.optim import optimizer as optim

from ..guards.modes import ambient_modes
from ..guards.reads import ATOMS, Entry, SequenceItems, Table, same_items
from ..guards.tensors import TableGuard
from . import scope, signal_config
from .step_observer import HOOKS
from .step_optimizers import GroupCount, NotRepeatable
from .tensor import SignalTensor, _WithoutSubclass

if TYPE_CHECKING:
    from .steps import StepRecorder

_TABLES = (*HOOKS, "_parameters", "_buffers", "_modules")


class StepGuard:
    """Checks whether a recorded step can be replayed.

    Attributes:
        gradients: parameters with the gradients that the step makes.
        cleared: parameters without a gradient after the step.
        before: for each parameter the id of its gradient before the step, or None.
    """

    def __init__(
        self, recorder: StepRecorder, leaves: list, structure: Any, used: list[int], counts: list[GroupCount]
    ) -> None:
        observer = recorder.observer
        assert observer is not None
        self.engine = recorder.engine
        self.serial, self.forgotten = self.engine.serial, self.engine.forgotten
        self.reads, self.backward = observer.reads.without(()), observer.backward
        self.structure = structure
        self.counts = counts
        for count in counts:
            count.share_count()
        self.arguments = [_seen(leaf) for leaf in leaves]
        called = list(recorder.modules.values())
        optimizers = [state.optimizer for state, _, _ in recorder.optimizers]
        self.parameters = _parameters(called, optimizers)
        self._explain(recorder, leaves, used, called, optimizers)
        self.hooks = [h for p in self.parameters for h in _hooks_of(p)]
        for path, table in _tables(called, optimizers, self.hooks):
            self.reads.note(Table, table, path=path)
        self.groups = TableGuard([g for o in optimizers for g in o.param_groups])
        for o in optimizers:
            for name in ("state", "param_groups"):  # load_state_dict replaces them
                self.reads.note(Entry, vars(o), name, path=f"{type(o).__name__}.{name}")
            self.reads.note(SequenceItems, o.param_groups, path=f"{type(o).__name__}.param_groups")
        self.listed = [(g, tuple(g["params"])) for o in optimizers for g in o.param_groups]
        self.needs = [p.requires_grad for p in self.parameters]
        unknown = [p for p in self.parameters if id(p) not in recorder.before]
        if unknown:
            raise NotRepeatable("a parameter is used for the first time")
        self.before = [recorder.before[id(p)] for p in self.parameters]
        self.reads_gradients = [g is not None and g in used for g in self.before]
        self.modes = _modes()
        self.gradients: list[tuple[Any, SignalTensor]] = []
        self.gradient_ids: tuple[int, ...] = ()
        self.cleared: list[Any] = []

    def _explain(
        self, recorder: StepRecorder, leaves: list, used: list[int], called: list, optimizers: list
    ) -> None:
        """Raise NotRepeatable unless the guard covers the owner of every id that the step uses."""
        known: list[Any] = [*self.parameters, *recorder.constants]
        known += [b for m in called for b in m._buffers.values()]
        known += [v for o in optimizers for state in o.state.values() for v in state.values()]
        known += recorder.observer.handles() if recorder.observer is not None else []
        owners = {h._ref.number: h for h in known if type(h) is SignalTensor}
        given = {leaf._ref.number for leaf in leaves if type(leaf) is SignalTensor}
        old = {number for number in recorder.before.values() if number is not None}
        self.held = [owners[n] for n in used if n in owners and n not in given]
        self.numbers = [h._ref.number for h in self.held]
        if set(used) - owners.keys() - given - old:
            raise NotRepeatable(
                "it uses a tensor that is neither an argument nor part of a module or optimiser; "
                "pass it as an argument"
            )

    def take_gradients(self, alive: set[int]) -> None:
        """After recording: store which gradients the step made, and which it cleared."""
        for p in self.parameters:
            if type(p.grad) is SignalTensor and p.grad._ref.number in alive:
                self.gradients.append((p, p.grad))
            elif p.grad is None:
                self.cleared.append(p)
        self.gradient_ids = tuple([g._ref.number for _, g in self.gradients])

    def hand_out_gradients(self) -> None:
        """After a replay: give the parameters the gradients that the step would have left."""
        with _WithoutSubclass():
            for p, g in self.gradients:
                if p.grad is not g:
                    p.grad = g
            for p in self.cleared:
                p.grad = None

    def holds(self, leaves: list, structure: Any) -> bool:
        """Return whether everything the step depends on is unchanged."""
        with _WithoutSubclass():  # otherwise each attribute access on a parameter goes through Python
            return self._holds(leaves, structure)

    def _holds(self, leaves: list, structure: Any) -> bool:
        engine = self.engine
        if engine.closed or (engine.serial, engine.forgotten) != (self.serial, self.forgotten):
            return False
        if len(leaves) != len(self.arguments):
            return False
        for leaf, seen in zip(leaves, self.arguments, strict=True):
            if _seen(leaf) != seen:
                return False
        return (
            structure == self.structure
            and (self.groups.holds() or self._settings_alike())
            and [h._ref.number for h in self.held] == self.numbers
            and [p.requires_grad for p in self.parameters] == self.needs
            and self._gradients_as_before()
            and [h for p in self.parameters for h in _hooks_of(p)] == self.hooks
            and all(same_items(group["params"], before) for group, before in self.listed)
            and _modes() == self.modes
            and self.reads.holds()
        )

    def _settings_alike(self) -> bool:
        if not all(count.alike() for count in self.counts):
            return False
        self.groups.remember()
        return True

    def _gradients_as_before(self) -> bool:
        for p, before, read in zip(self.parameters, self.before, self.reads_gradients, strict=True):
            # Do not bind the gradient to a name: that would change its reference count.
            if (p.grad is None) != (before is None) or (read and p.grad._ref.number != before):
                return False
        return _held_by_nobody_else(self.gradients)


def _held_by_nobody_else(pairs: list[tuple[Any, Any]]) -> bool:
    """Return whether only the parameters hold these gradients, whose values a replay overwrites."""
    for p, g in pairs:
        if _count(g) > (_WITH if p.grad is g else _WITHOUT):
            return False
        ref = g._ref
        if _count(ref) > _REF or ref.home.refs > 1:
            return False
    return True


_count = sys.getrefcount


def _usual_counts() -> tuple[int, int, int]:
    """Return the reference counts seen in `_held_by_nobody_else` if nothing else holds a gradient.

    For the gradient while its parameter holds it, for the gradient alone, and for its `Ref`.
    """
    p = torch.zeros(1, requires_grad=True)
    p.grad = torch.zeros(1)
    p.grad._ref = object()  # type: ignore[attr-defined]
    pairs, found = [(p, p.grad)], []
    for _ in range(2):
        for _p, g in pairs:
            found.append(_count(g))
            ref = g._ref  # type: ignore[attr-defined]
            found.append(_count(ref))
            del ref
        del g
        p.grad = None
    return found[0], found[2], found[1]


_WITH, _WITHOUT, _REF = _usual_counts()


def _parameters(called: list[nn.Module], optimizers: list[Optimizer]) -> list[Any]:
    found = {id(p): p for m in called for p in m._parameters.values() if p is not None}
    found |= {id(p): p for o in optimizers for g in o.param_groups for p in g["params"]}
    return list(found.values())


def _hooks_of(p: Tensor) -> tuple[Any, Any]:
    return p._backward_hooks, p._post_accumulate_grad_hooks


def _tables(
    called: list[nn.Module], optimizers: list[Optimizer], hooks: list[Any]
) -> Iterator[tuple[str, dict]]:
    """Yield the dictionaries that PyTorch's own code reads, which the observer does not see."""
    yield "the configuration of signals", signal_config.signals()
    yield "the hooks of all optimisers", optim._global_optimizer_pre_hooks
    yield "the hooks of all optimisers", optim._global_optimizer_post_hooks
    for name, table in vars(nn_module).items():
        if name.startswith("_global_") and name.endswith("_hooks") and isinstance(table, dict):
            yield "the hooks of all modules", table
    for m in called:
        for name in _TABLES:
            yield f"{type(m).__name__}.{name}", getattr(m, name)
    for o in optimizers:
        for table in (o.state, *o.state.values()):
            yield f"the state of {type(o).__name__}", table
        for table in (o._optimizer_step_pre_hooks, o._optimizer_step_post_hooks):
            yield f"the hooks of {type(o).__name__}", table
    for table in hooks:
        if table is not None:
            yield "the hooks of a parameter", table


def _seen(leaf: Any) -> Any:
    """Return what must be equal for an argument to match the recording."""
    if type(leaf) is SignalTensor:
        home = leaf._ref.home
        return leaf._tensor_meta, home.mesh, leaf.requires_grad, home.parameter
    if isinstance(leaf, ATOMS):
        return type(leaf), repr(leaf)
    return object()  # equal to nothing


def _modes() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        ambient_modes(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._get_deterministic_algorithms(),
        torch.is_inference_mode_enabled(),
        scope.entered(),
    )
