"""All that a recorded step rests on, and whether it still holds."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module
from torch.optim import Optimizer
from torch.optim import optimizer as optim
from torch.utils._python_dispatch import TorchDispatchMode

from ..guards import Observer
from ..guards.modes import ambient_modes
from ..guards.reads import ATOMS, Entry, Items, Table, equal_atoms, same_items
from ..guards.tensors import TableGuard
from ..workers.optimizer_numbers import GroupKind, Twin
from ..workers.steps import FLOATS, Window
from . import config, scope
from .creation import is_creation
from .tensor import SignalTensor, _WithoutSubclass

if TYPE_CHECKING:
    from .steps import Recorder

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TABLES = (*_HOOKS, "_parameters", "_buffers", "_modules")
# Parts of PyTorch that keep a state of their own, which a replay would not move.
_STATEFUL = {
    "torch.optim.lr_scheduler": "a learning rate scheduler; call it outside of the step",
    "torch.optim.swa_utils": "an averaged model; call it outside of the step",
    "torch.amp.grad_scaler": "a GradScaler, which reads a value in each step",
    "torch.utils.data": "a DataLoader; give its batches as arguments",
}
_BACKWARD = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}
_AHEAD = 12  # steps of an optimiser that must be alike


class NotRepeatable(Exception):
    """Why a call cannot be replayed."""


class StepObserver(Observer):
    """Runs a step once, as usual, and notes what its Python reads. backward: did it run a backward pass?"""

    def __init__(self, function: Callable, modules: Iterable[nn.Module]) -> None:
        super().__init__([], calls=[function])
        self.backward = False
        self._plain = _PlainOps()
        for module in modules:
            self.meet(module)

    def meet(self, module: nn.Module) -> None:
        """A module that the step calls."""
        self._keep(module)
        self._paths.setdefault(id(module), type(module).__name__)
        for name in _HOOKS:
            for hook in getattr(module, name).values():
                self._visit_function(hook, f"a hook of {type(module).__name__}")

    def watch(self, call: Callable[[], Any]) -> Any:
        with self._plain:
            return self.run(call, put_back=False)

    def handles(self) -> list[SignalTensor]:
        """Those that Python holds: globals, closures, attributes."""
        return [value for value in self._alive if type(value) is SignalTensor]

    def is_constant(self, x: Tensor) -> bool:
        """Is it made in the step from numbers alone?"""
        return id(x) in self._plain.constants

    def refused(self) -> str:
        return self.effects[0] if self.effects else self._plain.refused

    def _enter_torch(self, frame: types.FrameType, code: types.CodeType) -> None:
        self.backward |= code in _BACKWARD
        module = frame.f_globals.get("__name__") or ""
        for name, what in _STATEFUL.items():
            if module.startswith(name) and "self" in frame.f_locals:  # not their wrapper of Optimizer.step
                self.effects.append(f"it uses {what}")
        super()._enter_torch(frame, code)


class _PlainOps(TorchDispatchMode):
    """Which of the script's own tensors are made from numbers alone; whether it draws any."""

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


# ---- optimisers


class OptimizerState:
    """An optimiser as it was before its step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.runs: list[tuple[dict, list, float]] = []  # of parameters that have taken as many steps
        for group in optimizer.param_groups:
            with_gradient = [p for p in group["params"] if p.grad is not None]
            for steps, parameters in itertools.groupby(with_gradient, self._steps):
                self.runs.append((group, list(parameters), steps))

    def _steps(self, p: Tensor) -> float:
        count = self.optimizer.state.get(p, {}).get("step")
        return float(count) if type(count) is Tensor else 0.0


def optimizer_windows(
    optimizers: list[tuple[OptimizerState, int, int]], instructions: list[tuple]
) -> tuple[tuple[Window, ...], list[GroupCount]]:
    """The instructions of each group, after a check that a twin of the optimiser gives their numbers."""
    windows, counts = [], []
    for before, start, end in optimizers:
        kind = type(before.optimizer)
        if getattr(torch.optim, kind.__name__, None) is not kind:
            raise NotRepeatable(f"{kind.__name__} is not an optimiser of torch.optim")
        ops = [i for i in range(start, end) if instructions[i][0] != "move"]
        for group, parameters, steps in before.runs:
            window, count = _window(before.optimizer, group, parameters, steps, ops, instructions)
            ops = ops[len(window.places) :]
            windows.append(window)
            counts.append(count)
        if ops:
            raise NotRepeatable(
                f"{kind.__name__} does more in its step than once the same for each parameter"
            )
    return tuple(windows), counts


def _window(
    optimizer: Optimizer, group: dict, parameters: list, steps: float, ops: list[int], instructions: list
) -> tuple[Window, GroupCount]:
    count = GroupCount(optimizer, group, parameters)
    name = type(optimizer).__name__
    state = optimizer.state.get(parameters[0], {})
    kind = GroupKind(name, count.all_settings(), tuple(k for k, v in state.items() if v is not None))
    try:
        twin = Twin(kind)
        expected = twin.numbers(steps, {})
        for ahead in range(1, _AHEAD):
            if [op for op, _ in twin.numbers(steps + ahead, {})] != [op for op, _ in expected]:
                raise NotRepeatable(f"the next steps of {name} are not like this one")
    except (RuntimeError, TypeError, ValueError, KeyError, AssertionError) as error:
        raise NotRepeatable(f"the numbers of {name} are not known: {error}") from None
    window = Window(tuple(ops[: len(parameters) * len(expected)]), len(expected), kind)
    for i, place in enumerate(window.places):
        op, floats = expected[i % window.ops]
        done, content, _, what = instructions[place]
        if done != "op" or what != op or tuple(content[FLOATS]) != floats:
            raise NotRepeatable(f"{name}: parameter {i // window.ops} of a group is treated otherwise")
    return window, count


class GroupCount:
    """The settings and the counted steps of a group of parameters."""

    def __init__(self, optimizer: Optimizer, group: dict, parameters: list) -> None:
        self.group = group
        states = [optimizer.state[p] for p in parameters if p in optimizer.state]
        plain = [s for state in states for s in state.items() if type(s[1]) is Tensor]
        if any(name != "step" for name, _ in plain) or any(
            not isinstance(v, Tensor | None) for state in states for v in state.values()
        ):
            raise NotRepeatable(f"{type(optimizer).__name__} keeps numbers of its own beside the steps taken")
        self.steps = [count for _, count in plain]
        self.count: Tensor | None = None
        self.states = states
        self.settings = self.all_settings()
        if any(isinstance(v, Tensor) for v in self.settings.values()):
            raise NotRepeatable(f"a setting of {type(optimizer).__name__} is a tensor")

    def all_settings(self) -> dict[str, Any]:
        return {name: value for name, value in self.group.items() if name != "params"}

    def share_count(self) -> None:
        """The counts of all parameters, which are equal, become one in memory: counted by one op."""
        if not self.steps:
            return
        base = self.steps[0]._base
        if base is not None and base.numel() == len(self.steps) and all(s._base is base for s in self.steps):
            self.count = base  # another recording has done so
        else:
            self.count = torch.stack(self.steps)
            for state, own in zip(self.states, self.count.unbind(), strict=True):
                state["step"] = own

    def alike(self) -> bool:
        """Are the settings those of the recording, floats other than 0 aside?"""
        now = self.all_settings()
        return now.keys() == self.settings.keys() and all(
            _alike(now[name], value) for name, value in self.settings.items()
        )

    def next_step(self) -> tuple[float, dict[str, Any]]:
        """The steps taken so far, and the settings; counts one."""
        if self.count is None:
            return 0.0, self.all_settings()
        taken = self.states[0]["step"].item()
        self.count.add_(1)
        return taken, self.all_settings()


def _alike(now: Any, before: Any) -> bool:
    if type(now) is float and type(before) is float:
        return (now == 0) == (before == 0)
    if type(now) is tuple and type(before) is tuple:
        return len(now) == len(before) and all(map(_alike, now, before))
    return now is before or equal_atoms(now, before)


# ---- everything


class StepGuard:
    """gradients: parameters with the gradient that the step makes. used: ids that the step uses.

    before: of each parameter known before the step its gradient's id then, or None.
    """

    def __init__(
        self, recorder: Recorder, leaves: list, structure: Any, used: list[int], counts: list[GroupCount]
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
            for name in ("state", "param_groups"):  # load_state_dict puts others in their place
                self.reads.note(Entry, vars(o), name, path=f"{type(o).__name__}.{name}")
            self.reads.note(Items, o.param_groups, path=f"{type(o).__name__}.param_groups")
        self.listed = [(g, list(g["params"])) for o in optimizers for g in o.param_groups]
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
        self, recorder: Recorder, leaves: list, used: list[int], called: list, optimizers: list
    ) -> None:
        """Every id that the step uses must belong to something that the guard looks at."""
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
            raise NotRepeatable("it uses a tensor of which it is not known who holds it")

    def take_gradients(self, alive: set[int]) -> None:
        """After the step: which gradients it has made, and which it has taken away."""
        for p in self.parameters:
            if type(p.grad) is SignalTensor and p.grad._ref.number in alive:
                self.gradients.append((p, p.grad))
            elif p.grad is None:
                self.cleared.append(p)
        self.gradient_ids = tuple([g._ref.number for _, g in self.gradients])

    def hand_out_gradients(self) -> None:
        """After a replay: parameters have the gradients that the step would have left."""
        with _WithoutSubclass():
            for p, g in self.gradients:
                if p.grad is not g:
                    p.grad = g
            for p in self.cleared:
                p.grad = None

    def holds(self, leaves: list, structure: Any) -> bool:
        """Is everything what it was?"""
        with _WithoutSubclass():  # else each attribute of a parameter is looked up through Python
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
            # No name for the gradient: it would be held once more.
            if (p.grad is None) != (before is None) or (read and p.grad._ref.number != before):
                return False
        return _held_by_nobody_else(self.gradients)


def _held_by_nobody_else(pairs: list[tuple[Any, Any]]) -> bool:
    """A replay gives these tensors new values: nobody but the parameter may have them."""
    for p, g in pairs:
        if _count(g) > (_WITH if p.grad is g else _WITHOUT):
            return False
        ref = g._ref
        if _count(ref) > _REF or ref.home.refs > 1:
            return False
    return True


_count = sys.getrefcount


def _usual_counts() -> tuple[int, int, int]:
    """How often a gradient counts as held in `_held_by_nobody_else` if its parameter holds it, if nobody
    does, and what it is made of."""
    p = torch.zeros(1, requires_grad=True)
    p.grad = torch.zeros(1)
    p.grad._ref = object()  # type: ignore[attr-defined]
    pairs, found = [(p, p.grad)], []
    for _ in range(2):
        for _p, g in pairs:
            found.append(_count(g))
            ref = g._ref  # type: ignore[union-attr]
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
    """Dictionaries that PyTorch's own code reads, which an observer does not look into."""
    yield "the configuration of signals", config.signals()
    yield "the hooks of all optimisers", optim._global_optimizer_pre_hooks
    yield "the hooks of all optimisers", optim._global_optimizer_post_hooks
    for name in filter(_is_global_hook, vars(nn_module)):
        yield "the hooks of all modules", getattr(nn_module, name)
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


def _is_global_hook(name: str) -> bool:
    return name.startswith("_global_") and name.endswith("_hooks") and isinstance(vars(nn_module)[name], dict)


def _seen(leaf: Any) -> Any:
    """What a recording holds of an argument."""
    if type(leaf) is SignalTensor:
        home = leaf._ref.home
        return leaf._look, home.mesh, leaf.requires_grad, home.parameter
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
