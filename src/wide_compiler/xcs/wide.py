"""`[m(x) for m in models]` over distinct modules of one architecture: the wide model of this library.

The members keep their own parameters. The wide model holds copies, renewed when a member's version counters,
memory or sampled numbers have changed. Where gradients are wanted the plain loop runs: they must reach the
members. The wide model is built only after the plain loop has cost more than building it does.
"""

import ast
import operator
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..api import compile as compile_wide
from ..config import WideConfig
from .analysis import Analyzer
from .arrange import arrange
from .calls import call_value
from .columns import column_value
from .effects import Decline
from .guards import Guards
from .ledger import clock
from .members import FIXED, Members
from .torch_vmap import apart
from .work import Bail, Work

BUILD_SECONDS = 1.0  # about what building takes; the plain loop must have cost as much before
RENEWALS = 3


def able(work: Work) -> bool:
    """The body is `m(...)` of a loop variable that runs over distinct modules of one class."""
    if work.cond is not None or work.events or work.site.config.exact:
        return False
    memory = work.plan.memory
    if "modules column" not in memory:
        memory["modules column"] = _modules_column(work)
    j = memory["modules column"]
    return j is not None and isinstance(work.items.columns[j], (list, tuple))


def _modules_column(work: Work) -> int | None:
    body = work.site.text.bodies.get("body")
    value = body.body if isinstance(body, ast.Lambda) else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name) or value.keywords:
        return None
    names = [p.arg for p in body.args.args]  # type: ignore[union-attr]
    if value.func.id not in names or not all(isinstance(a, ast.Name) for a in value.args):
        return None
    j = names.index(value.func.id)
    column = work.items.columns[j]
    if not isinstance(column, (list, tuple)) or not isinstance(column[0], nn.Module):
        return None
    if any(a.id == value.func.id for a in value.args):  # type: ignore[attr-defined]
        return None
    return j


def paid_for(work: Work, plain_seconds: float) -> bool:
    memory = work.plan.memory
    if "wide" in memory:
        return plain_seconds > 1e-4 and memory.get("renewals", 0) < RENEWALS
    return work.plan.ledger.spent > BUILD_SECONDS


def widened(work: Work) -> list[Any]:
    """All members' outputs by one call of the wide model. Raises `Bail`."""
    j = work.plan.memory["modules column"]
    models = work.items.columns[j]
    inputs, shared = _inputs(work, j)
    wide = _wide_model(work, models, inputs, shared)
    try:
        out = _called(wide, inputs, shared)
    except Exception as error:
        raise Bail(f"{type(error).__name__}: {error}") from None
    return apart(out, len(models))


def _called(wide: Any, inputs: list[Any], shared: bool) -> Any:
    return wide.shared(*inputs) if shared else wide.stacked(*[torch.stack(list(x)) for x in inputs])


def _inputs(work: Work, j: int) -> tuple[list[Any], bool]:
    """The arguments of the call: tensors every member gets, or a tensor for each."""
    body = work.site.text.bodies["body"]
    names = [p.arg for p in body.args.args]
    cells = dict(zip(work.body.__code__.co_freevars, work.body.__closure__ or (), strict=True))
    found: list[Any] = []
    per_item = set()
    for argument in body.body.args:
        name = argument.id
        if name in names:
            found.append(work.items.columns[names.index(name)])
            per_item.add(True)
        elif name in cells:
            found.append(cells[name].cell_contents)
            per_item.add(False)
        else:
            raise Bail("an argument that is neither local nor per item")
    tensors = [
        t for x in found for t in ([x] if type(x) is Tensor else list(x) if type(x) is list else [None])
    ]
    if len(per_item) != 1 or not all(type(t) is Tensor for t in tensors):
        raise Bail("arguments other than tensors, or shared and per item ones together")
    return found, not per_item.pop()


def _gradients_wanted(tensors: list[Any], inputs: list[Any]) -> None:
    given = [t for x in inputs for t in ([x] if type(x) is Tensor else x)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*given, *tensors)):
        raise Bail("gradients are wanted, and must reach the members' own parameters")


def _wide_model(work: Work, models: Sequence[nn.Module], inputs: list[Any], shared: bool) -> Any:
    memory = work.plan.memory
    kept = memory.get("wide")
    if kept is not None and kept.holds_models(models):
        tensors = kept.tensors_now()
        if tensors is None:
            del memory["wide"]
            raise Bail("something in Python that the members read has changed")
        _gradients_wanted(tensors, inputs)
        memory["renewals"] = memory.get("renewals", 0) + 1 if kept.renewed(tensors) else 0
        return kept.wide
    _gradients_wanted([p for m in models for p in m.parameters()], inputs)
    facts = _prove(work, list(models))
    began = clock()
    sample = tuple(x if shared else x[0] for x in inputs)
    try:
        wide = compile_wide(list(models), sample, config=WideConfig(tune_seconds=0.3))
        wide.requires_grad_(False)  # as no gradients are wanted wherever it runs
        arrange(wide, lambda: _called(wide, inputs, shared))
    except Exception as error:
        raise Bail(f"no wide model: {type(error).__name__}: {error}") from None
    memory["wide"] = Kept(memory["modules column"], list(models), wide, facts)
    memory["built"] = clock() - began
    memory["renewals"] = 0
    return wide


def _prove(work: Work, models: list[nn.Module]) -> "_Facts":
    """Every member is pure, stands there once, and reads nothing in Python that could change unseen."""
    if len({id(m) for m in models}) != len(models):
        raise Bail("one module stands in the list twice")
    for model in models:
        analyzer = Analyzer()
        try:
            column = column_value(analyzer, [model], 0)
            tensors = [column_value(analyzer, [torch.zeros(1)], 1)]
            arguments = len(work.site.text.bodies["body"].body.args)
            call_value(analyzer, column, tensors * arguments, {}, work.site.text.bodies["body"].body)
        except Decline as declined:
            raise Bail(declined.reason) from None
        if model is models[0]:
            guards = analyzer.guards
    return _Facts(models[0], guards)


class _Facts:
    """What a graph of the members has baked in from outside them: globals, class attributes, defaults."""

    def __init__(self, first: nn.Module, guards: Guards):
        self.first, self.guards = first, guards
        for slot, value in enumerate(guards.values({}, [[self.first], [_A_TENSOR]])):
            held = value[0] if guards.vector[slot] else value
            if isinstance(held, FIXED) and not isinstance(held, torch.Size):
                guards.expect(slot, "is", held)
            elif guards.steps[slot][0] in ("global", "cell", "class", "defaults", "kwdefaults", "own"):
                raise Bail(f"members read a {type(held).__name__} that could change unseen")

    def hold(self) -> bool:
        return self.guards.hold({}, [[self.first], [_A_TENSOR]])


_A_TENSOR = torch.zeros(1)


class Kept:
    """A wide model, and its members as they were when their numbers were copied."""

    def __init__(self, column: int, models: list[nn.Module], wide: Any, facts: _Facts):
        self.column = column
        self.wide = wide
        self.facts = facts
        self.members = Members(models)
        self.looked = threading.local()  # what the guards' look at the members has found in this call

    def holds_models(self, models: Any) -> bool:
        own = self.members.models
        return len(models) == len(own) and all(map(operator.is_, models, own))

    def look(self, columns: Sequence[Any]) -> bool:
        """Has nothing but numbers changed in any member, and nothing that their graph has baked in?"""
        models = columns[self.column]
        if type(models) not in (list, tuple) or not self.holds_models(models):
            return False
        self.looked.tensors = self.members.now() if self.facts.hold() else None
        return self.looked.tensors is not None

    def tensors_now(self) -> list[Tensor] | None:
        """The members' tensors, as the look at them in this call has found them."""
        found = getattr(self.looked, "tensors", None)
        self.looked.tensors = None
        return found

    def renewed(self, tensors: list[Tensor]) -> list[int]:
        """Copy the numbers of those members where they have changed; which ones."""
        if self.members.unchanged(tensors):
            return []
        lanes = self.members.changed(tensors)
        if lanes is None:
            raise Bail("a parameter has another shape or type")
        for i in lanes:
            self.wide.load_lane(i, self.members.models[i])
        self.members.note(tensors)
        return lanes
