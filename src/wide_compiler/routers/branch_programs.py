"""Programs of a whole model with joined branches, one per mode and shapes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture import Captured, CaptureFailed
from ..capture.cleanup import enter_autocast
from ..capture.state import has_gradient_hooks
from ..config import WideConfig
from ..errors import AlignmentError
from ..guards import ModuleGuard
from ..guards.modes import no_inference_mode
from ..measure.contest import Candidate, Contest, Written
from ..measure.store import circumstances
from ..model.memory_overlap import written_inputs
from ..model.program import Call
from ..model.program_cache import ProgramCache
from .branches import Branches
from .calls import without_history
from .module_lanes import ModuleLanes
from .piecewise import Piecewise, in_pieces
from .programs import InSequence
from .rehearsal import Rehearsal
from .rewritten import Rewritten
from .router_explanation import Declined, RouterPlan
from .verdict import HOOKED, LOOP, TOGETHER, Verdict

NOTHING_ALIKE = "no two independent modules of one structure are called with inputs of the same kind"
# Limit on repeated captures; a model nested deeper than this runs as a loop.
MAX_ROUNDS = 12


class BranchPrograms(ProgramCache):
    """Builds and caches rewritten graphs of one model in its current state."""

    def __init__(self, model: nn.Module, config: WideConfig, part_of: Callable[[nn.Module], Any]):
        """`part_of` returns the `PlannedModel` of a submodule, for models that only run in pieces."""
        super().__init__(config, {})
        self.part_of = part_of
        self.model, self.guard = model, ModuleGuard([model])
        self.living: ModuleLanes | None = None
        self.rehearsal: Rehearsal | None = None
        self.declined: list[Declined] = []
        self.banned: set[str] = set()

    def program(self, mode: Any, call: Call) -> Any:
        """Return a `Rewritten` for this call, or an `InSequence` with the reason for the loop."""
        key = (mode, tuple(call.member_shapes), call.wide)
        return self.find(key) or self.build(key, call, None)

    @no_inference_mode()
    def build(self, key: Any, call: Call, model: Any) -> Any:
        try:
            self.living = ModuleLanes([self.model], runs_python=True)
            if self.living.uncapturable:
                raise CaptureFailed(self.living.uncapturable)
            if self.rehearsal is None:
                self.rehearsal = Rehearsal(self.model, *call.for_lane(0))
                self.kept = self._candidates()
        except (AlignmentError, CaptureFailed) as error:
            return self.keep(key, InSequence(str(error)))  # type: ignore[arg-type]
        program: Any = super().build(key, call, self.living)
        if isinstance(program, InSequence) and (program.why != NOTHING_ALIKE or self.rehearsal.has_rows):
            args, kwargs = call.for_lane(0)
            own = (self.rehearsal, self.part_of, self.config)
            pieces = in_pieces(self.model, program.why, args, kwargs, *own)
            program = self.by_key[(key, self.grad_mode())][0] = pieces or program  # type: ignore[call-overload]
        if isinstance(program, Rewritten):
            self.guard.rest_on(program.captured.rests_on)
        return program

    def _captured(self, mode: Any, call: Call, model: Any) -> Captured:
        """Capture the model, and repeat until every module that is kept whole has another to join."""
        assert self.rehearsal is not None
        for _ in range(MAX_ROUNDS):
            if not self.kept:
                raise CaptureFailed(NOTHING_ALIKE)
            captured = super()._captured(mode, call, model)
            # Parts that cannot be captured run as Python between the graph nodes before and after them.
            own = {c.path: c.why for c in captured.calls if c.path and c.path not in self.kept}
            if any(node.target is enter_autocast for node in captured.graph.nodes):
                raise CaptureFailed("its forward switches autocast, so its calls cannot be reordered")
            branches = Branches(captured, self.model, own)
            missing = set(self.kept) - {branch.path for branch in branches.all}
            loose = {branch.path for branch in branches.loose} - own.keys() | missing
            apart = {c.path for c in captured.calls if c.path and not c.records and self.grad_mode()}
            if apart - loose:
                why = "it is called where no gradients are recorded"
                self.declined.append(Declined.of(tuple(sorted(apart - loose)), "loop", why))
            loose |= apart
            if not branches.groups and loose == own.keys():
                raise CaptureFailed(NOTHING_ALIKE)
            if not loose:
                self.declined += [Declined.of((path,), "loop", why) for path, why in own.items()]
                return captured
            self.declined += branches.declined()
            self.banned |= loose
            self.kept = self._candidates()
            self.captures[(mode, self.grad_mode())].remove(captured)
        raise CaptureFailed(f"its modules are nested more than {MAX_ROUNDS} deep")

    def _candidates(self) -> dict[str, str]:
        """Modules that can be joined with another, according to the rehearsal; the others are declined."""
        assert self.rehearsal is not None
        while kept := self.rehearsal.candidates(self.banned):
            loose, declined = self.rehearsal.loose(kept, self.banned)
            if not loose:
                break
            self.declined += declined
            self.banned |= loose
        return kept

    def _widened(self, captured: Captured, call: Call, model: Any) -> Any:
        own = {call.path for call in captured.calls if call.path} - self.kept.keys()
        return Rewritten(captured, self.model, self.config, own)

    def _loop(self, failure: Exception, call: Call, model: Any) -> Any:
        return InSequence(str(failure))

    def plan(self, program: Any) -> RouterPlan:
        """Return the plan of a program, with the measurements so far."""
        name = type(self.model).__name__
        if isinstance(program, InSequence):
            return RouterPlan([*self.declined, *stacked_already(self.model)], program.why, name)
        if isinstance(program, Piecewise):
            return program.plan(name)
        verdict = program.verdict
        why, ms = ("", {}) if verdict is None else ("" if verdict.together else verdict.why, verdict.ms)
        plan = RouterPlan([*program.plan, *self.declined, *stacked_already(self.model)], why, name, ms=ms)
        for planned in plan.groups:
            call = next(c for c in program.calls if c.group.names == planned.paths)
            rows = call.group.explain()
            planned.how = rows[0].how if len(rows) == 1 and not plan.why else "loop"
            planned.why, planned.ms = "; ".join(row.why for row in rows), rows[0].ms
        return plan


def stacked_already(model: nn.Module) -> list[Declined]:
    """Mixtures that store the weights of all experts in one tensor each: nothing to join."""
    found = []
    for path, module in model.named_modules():
        stacks = {p.shape[0] for p in module._parameters.values() if p is not None and p.dim() == 3}
        experts = getattr(module, "num_experts", None)
        if type(experts) is int and experts > 1 and stacks == {experts}:
            why = f"its parameters are already stacked over {experts} experts"
            found.append(Declined.of((path,), "alone", why, op=type(module).__name__))
    return found


def judge_model(program: Rewritten, guard: ModuleGuard, call: Call, config: WideConfig) -> Verdict:
    """Compare the rewritten graph with the model, and time both, including the guard."""
    model = program.model
    # Detached, because backward would otherwise continue into the history of a part's inputs.
    call = replace(call, leaves=[without_history(leaf) for leaf in call.leaves])
    args, kwargs = _tree.unflatten(call.leaves, call.spec)
    leaves = [t for t in (*model.parameters(), *call.tensors) if t.requires_grad]
    gradients = torch.is_grad_enabled() and bool(leaves)
    if gradients and any(has_gradient_hooks(leaf) for leaf in leaves):
        return Verdict(False, HOOKED)
    cuda = any(isinstance(t, Tensor) and t.is_cuda for t in (*call.tensors, *model.parameters()))
    tables = [module._buffers for module in model.modules()]
    written = [Written(table, name) for table in tables for name, b in table.items() if b is not None]
    written += [Written(call.tensors, i) for i in written_inputs(program.captured)]
    original = Candidate(lambda: model(*args, **kwargs), leaves, written)
    rewritten = Candidate(lambda: guard.holds() and program.run_call(call.tensors), leaves, written)
    with Contest(original, gradients, cuda) as contest:
        problem = contest.fails(rewritten)  # the first run decides for each group whether it is joined
        if problem:
            return Verdict(False, f"together it {problem}")
        if not any(row.how == "together" for group in program.calls for row in group.group.explain()):
            return Verdict(False, "no group of modules is faster together")
        contest.reordered = program.draws or any(_draws(group) for group in program.calls)
        key = ("rewritten", *circumstances(cuda), program.module.code, repr(model), gradients)
        key += tuple((tuple(t.shape), str(t.dtype)) for t in (*call.tensors, *model.parameters()))
        verdict = Verdict.of(contest.settle(key, TOGETHER, rewritten, LOOP, config.tune_seconds))
        if verdict.ms and not verdict.together:
            verdict.why += ": the loop takes less time"
        return verdict


def _draws(call: Any) -> bool:
    programs = [program for known in call.group.programs.by_key.values() for program in known]
    return any(getattr(program, "draws", False) for program in programs)
