"""PlannedModel: a model that runs by its plan."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from .._dynamo_marks import constant_result
from ..capture.lock import CAPTURE
from ..config import WideConfig
from ..guards.modes import ambient_modes, plain_world
from ..model.program import Call
from ..model.routes import MAX_ROUTES
from ..model.traced_store import TracedStore
from .branch_programs import BranchPrograms, judge_model
from .calls import SameLook, constants_in, plain_look, tensors_in
from .explain import Plan
from .piecewise import Piecewise
from .programs import InSequence
from .recipe import Recipe
from .rewritten import OtherShapes, Rewritten
from .traced import look_of, made_up_call, outside_the_trace

# Limit on kept states of the model, such as train and eval, with parts frozen or not.
MAX_STATES = 8


class _Known:
    """How calls with one cache key run: by a program while its guard holds, or by the original model."""

    def __init__(self, training: bool, args: tuple, kwargs: dict, ran: tuple[BranchPrograms, Any]):
        self.training, self.ran = training, ran
        self.keywords, self.constants = tuple(kwargs), constants_in(args, kwargs)
        self.look = SameLook(tensors_in(args, kwargs), {})
        self.guard, program = ran[0].guard, ran[1]
        # A piecewise program reads the current state, and its parts have guards.
        self.in_pieces = isinstance(program, Piecewise)
        self.program: Rewritten | Piecewise | None = program if _together(program) else None

    def holds(self, args: tuple, kwargs: dict) -> bool:
        """Whether this call has the same cache key."""
        return (
            self.look.holds(tensors_in(args, kwargs), {})
            and tuple(kwargs) == self.keywords
            and constants_in(args, kwargs) == self.constants
        )


def _together(program: Any) -> bool:
    return isinstance(program, (Rewritten, Piecewise)) and program.verdict.together  # type: ignore[union-attr]


class _Calls:
    """What is known about a model's calls. Separate from the module, whose attributes are slow to set."""

    def __init__(self) -> None:
        self.latest: _Known | None = None
        self.ran: tuple[BranchPrograms, Any] | None = None
        # Calls that run by the original model; they need no guard.
        self.apart: dict[Any, _Known] = {}

    def keep(self, key: Any, known: _Known) -> None:
        self.latest = known
        if known.program is None and len(self.apart) < MAX_ROUTES:
            self.apart[key] = known


class PlannedModel(nn.Module):
    """Computes the same as the original, with modules of one structure run as lanes.

    Parameters, buffers and submodules are those of the original, under the same names.
    """

    def __init__(self, original: nn.Module, config: WideConfig):
        super().__init__()
        self.__dict__["original"] = original  # not a submodule, so that its tensors keep their names
        self.__dict__["config"] = config
        for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[table] = original.__dict__[table]
        self.training = original.training
        self._programs: list[BranchPrograms] = []  # most recently used first
        self._calls = _Calls()
        self._recipe = Recipe.of(original)
        self._traced = TracedStore()
        self.__dict__["_parts"] = {}  # submodules that run by plans

    def __getstate__(self) -> dict[str, Any]:
        # Graphs are not copied; they are built again on demand.
        return {**self.__dict__, "_programs": [], "_calls": _Calls(), "_traced": TracedStore(), "_parts": {}}

    def train(self, mode: bool = True) -> "PlannedModel":
        """Set the training flag of the original and of this module."""
        self.original.train(mode)
        self.training = mode
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["original"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return self._traced_forward(args, kwargs)
        calls = self._calls
        latest = calls.latest
        if latest is not None and latest.training is self.training and latest.holds(args, kwargs):
            if latest.program is None:
                return self.original(*args, **kwargs)
            if latest.in_pieces or latest.guard.holds():
                return self._run(latest.program, tensors_in(args, kwargs), args, kwargs)
        if not plain_world():
            return self.original(*args, **kwargs)
        constants = constants_in(args, kwargs)
        look = None if constants is None else plain_look(tensors_in(args, kwargs), {})
        key = (self.training, look, constants, tuple(kwargs))
        if key in calls.apart:
            calls.latest = calls.apart[key]
            calls.ran = calls.latest.ran
            return self.original(*args, **kwargs)
        call = call_of(args, kwargs)
        program = self.settle(call)
        assert calls.ran is not None
        known = None if look is None else _Known(self.training, args, kwargs, calls.ran)
        calls.latest = None
        if known is not None:
            calls.keep(key, known)
        if _together(program):
            return self._run(program, call.tensors, args, kwargs)
        return self.original(*args, **kwargs)

    def run_as_part(self, *args: Any, **kwargs: Any) -> Any:
        """`forward` of a part of another model, where the training flag is set on the original."""
        self.__dict__["training"] = self.original.training
        return self.forward(*args, **kwargs)

    def settle_part(self, args: tuple, kwargs: dict) -> Plan:
        """Decide how a call of a part runs; return its plan."""
        self.__dict__["training"] = self.original.training
        self.settle(call_of(args, kwargs))
        assert self.plan is not None
        return self.plan

    @property
    def runs_by_plan(self) -> bool:
        """Whether the last settled call is faster by its plan."""
        return self._calls.ran is not None and _together(self._calls.ran[1])

    def _run(self, program: Any, tensors: Sequence[Any], args: tuple, kwargs: dict) -> Any:
        try:
            return program.run_call(tensors, args, kwargs)
        except OtherShapes:
            self._calls.latest = None
            return self.original(*args, **kwargs)

    def settle(self, call: Call) -> Any:
        """The program for a call: cached, or built, compared with the original, and timed."""
        with CAPTURE:  # one thread at a time builds plans
            programs = self._current()
            program = programs.program(self._mode(programs, call), call)
            if isinstance(program, Rewritten) and torch.is_grad_enabled() not in program.verdicts:
                verdict = judge_model(program, programs.guard, call, self.config)
                program.verdicts[torch.is_grad_enabled()] = verdict
            self._calls.ran = (programs, program)
            return program

    @property
    def has_nothing_to_join(self) -> bool:
        """Whether the last call has shown that nothing can be joined."""
        ran = self._calls.ran
        return ran is not None and isinstance(ran[1], InSequence)

    @property
    def plan(self) -> Plan | None:
        """The plan of the last call; None before the first."""
        ran = self._calls.ran
        return None if ran is None else ran[0].plan(ran[1])

    def _current(self) -> BranchPrograms:
        for position, known in enumerate(self._programs):
            if known.guard.holds():
                if position:
                    self._programs.insert(0, self._programs.pop(position))
                return known
        self._programs.insert(0, BranchPrograms(self.original, self.config, self._part_of))
        del self._programs[MAX_STATES:]
        return self._programs[0]

    def _part_of(self, module: nn.Module) -> "PlannedModel":
        if module not in self._parts:
            self._parts[module] = PlannedModel(module, self.config)
        return self._parts[module]

    def _mode(self, programs: BranchPrograms, call: Call) -> tuple[Any, ...]:
        kinds = tuple((t.dtype, t.device, t.requires_grad) for t in call.tensors)
        return (call.signature, kinds, ambient_modes(), programs.grad_mode())

    # Under torch.compile.

    def _traced_forward(self, args: tuple, kwargs: dict) -> Any:
        original = self.original
        leaves, _ = _tree.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        reads = self._recipe.read(original)
        if reads is None:
            return original(*args, **kwargs)
        look = look_of((args, kwargs), tensors)
        (program,) = self._traced.get(self._program_while_tracing(reads, look))
        if program is None:
            return original(*args, **kwargs)
        return program.run(original, tensors)

    @constant_result
    def _program_while_tracing(self, reads: Any, look: Any) -> int:
        signature, kinds, shapes, any_batch, modes, grad = look
        with outside_the_trace(grad):
            programs = self._current()
            mode = (signature, kinds, modes, programs.grad_mode())
            program = self._recipe.watchable and self._built(programs, mode, shapes, any_batch)
            why = "it holds objects that no guard of a trace covers"
            self._calls.ran, self._calls.latest = (programs, program or InSequence(why)), None
        return self._traced.keep([program if isinstance(program, Rewritten) else None])

    def _built(self, programs: BranchPrograms, mode: Any, shapes: Any, any_batch: bool) -> Any:
        wide = (False,) * len(shapes)
        call = made_up_call(mode, shapes, wide, any_batch)
        program: Any = programs.program(mode, call)
        if isinstance(program, Rewritten):
            if program.python:
                return InSequence(f"{min(program.python)} can only run as Python, which torch.compile traces")
            if any_batch and not all(guards.any_batch() for guards in program.captured.guards):
                return InSequence("its graph is not for every batch size")
            program.verdicts.setdefault(
                True, judge_model(program, programs.guard, call, self.config.replace(tune_seconds=0))
            )
            if not program.verdicts[True].together:
                return InSequence(program.verdicts[True].why)
        return program


def call_of(args: tuple, kwargs: dict) -> Call:
    leaves, spec = _tree.flatten((args, kwargs))
    wide = (False,) * sum(isinstance(leaf, Tensor) for leaf in leaves)
    return Call(leaves, spec, wide, _tree.signature((args, kwargs)))
