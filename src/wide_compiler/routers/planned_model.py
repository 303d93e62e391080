"""PlannedModel: a model that runs by its plan."""

from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from .._dynamo_marks import TracedStore, constant_result
from ..capture.lock import CAPTURE
from ..config import WideConfig
from ..guards.modes import ambient_modes, plain_world
from ..model.isolation import no_saved_tensors_hooks
from ..model.program import Call
from .branch_programs import BranchPrograms, judge_model
from .calls import KnownCalls, call_of, first_that, tensors_in
from .piecewise import Piecewise
from .programs import InSequence
from .recipe import Recipe
from .rewritten import OtherShapes, Rewritten
from .router_explanation import RouterPlan
from .traced import look_of, made_up_call, outside_the_trace

# Limit on kept states of the model, such as train and eval, with parts frozen or not.
MAX_STATES = 8


class Ran:
    """What a call ran by: a program of `programs`, or the original model unless `together`."""

    def __init__(self, programs: BranchPrograms, program: Any):
        self.programs, self.program = programs, program
        may_run = isinstance(program, (Rewritten, Piecewise))
        self.together: bool = may_run and program.verdict is not None and program.verdict.together
        # A piecewise program and the original read the current state, and the parts have guards.
        self.guarded = self.together and isinstance(program, Rewritten)

    def holds(self) -> bool:
        """Return whether the model has not changed since."""
        return not self.guarded or self.programs.guard.holds()


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
        self._calls = KnownCalls()
        self.__dict__["ran"] = None  # the `Ran` of the last call
        self._recipe = Recipe.of(original)
        self._traced = TracedStore()
        self.__dict__["_parts"] = {}  # submodules that run by plans

    def __getstate__(self) -> dict[str, Any]:
        # Graphs are not copied; they are built again on demand.
        new = {"_programs": [], "_calls": KnownCalls(), "_traced": TracedStore(), "ran": None, "_parts": {}}
        return {**self.__dict__, **new}

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
        training = self.original.training
        ran, tensors = self._calls.find(training, args, kwargs), None
        if ran is None or not ran.holds():
            if not plain_world():
                return self.original(*args, **kwargs)
            call = call_of(args, kwargs)
            ran, tensors = self.settle(call), call.tensors
            self._calls.keep(training, args, kwargs, ran)
        self.__dict__["ran"] = ran
        if not ran.together:
            return self.original(*args, **kwargs)
        try:
            return ran.program.run_call(tensors or tensors_in((*args, *kwargs.values())), args, kwargs)
        except OtherShapes:
            self._calls.clear()
            return self.original(*args, **kwargs)

    @no_saved_tensors_hooks()
    def settle(self, call: Call) -> Ran:
        """Return the program for a call: cached, or built, compared with the original, and timed."""
        with CAPTURE:  # one thread at a time builds plans
            programs = self._current()
            kinds = tuple((t.dtype, t.device, t.requires_grad) for t in call.tensors)
            program = programs.program((call.signature, kinds, ambient_modes()), call)
            if isinstance(program, Rewritten) and torch.is_grad_enabled() not in program.verdicts:
                verdict = judge_model(program, programs.guard, call, self.config)
                program.verdicts[torch.is_grad_enabled()] = verdict
            ran = self.__dict__["ran"] = Ran(programs, program)
            return ran

    @property
    def plan(self) -> RouterPlan | None:
        """The plan of the last call; None before the first."""
        return None if self.ran is None else self.ran.programs.plan(self.ran.program)

    def _current(self) -> BranchPrograms:
        known = first_that(self._programs, lambda programs: programs.guard.holds())
        if known is None:
            known = BranchPrograms(self.original, self.config, self._part_of)
            self._programs[:] = [known, *self._programs[: MAX_STATES - 1]]
        return known

    def _part_of(self, module: nn.Module) -> "PlannedModel":
        return self._parts.get(module) or self._parts.setdefault(module, PlannedModel(module, self.config))

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
            mode = (signature, kinds, modes)
            program = self._recipe.watchable and self._built(programs, mode, shapes, any_batch)
            why = "it holds objects that torch.compile cannot guard"
            self.__dict__["ran"] = Ran(programs, program or InSequence(why))
        return self._traced.keep([program if isinstance(program, Rewritten) else None])

    def _built(self, programs: BranchPrograms, mode: Any, shapes: Any, any_batch: bool) -> Any:
        wide = (False,) * len(shapes)
        call = made_up_call(mode, shapes, wide, any_batch)
        program: Any = programs.program(mode, call)
        if isinstance(program, Rewritten):
            if program.python:
                return InSequence(f"{min(program.python)} can only run as Python; torch.compile traces it")
            if any_batch and not all(guards.any_batch() for guards in program.captured.guards):
                return InSequence("its graph is not valid for every batch size")
            program.verdicts.setdefault(
                True, judge_model(program, programs.guard, call, self.config.replace(tune_seconds=0))
            )
            if not program.verdicts[True].together:
                return InSequence(program.verdicts[True].why)
        return program
