"""`[m(x) for m in models]` over distinct modules of one architecture: the wide model of this library.

The members keep their own parameters. The wide model holds copies, renewed where any number of a member is
another one, and always on a GPU. Where gradients are wanted the plain loop runs: they must reach the
members. The wide model is built only after the plain loop has cost more than building it does.
"""

import ast
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...api import compile as compile_wide
from ...config import WideConfig
from ...measure.clock import now
from ...registry import REGISTRY
from ..interrupts import raise_interrupt
from ..proof.behaviour import TENSORS
from ..work import Bail, Work
from .arrange import arrange
from .copies import Copies
from .facts import prove
from .kept import Kept, forget
from .members import Members, tensors_of
from .straight import Straight
from .torch_vmap import apart, check_rows
from .trial import examine, finite

NAME = "wide model"
BUILD_SECONDS = 1.0  # about what building takes; the plain loop must have cost as much before
RENEWALS = 3


def able(work: Work) -> bool:
    """The body is `m(...)` of a loop variable that runs over distinct modules of one class."""
    if work.cond is not None or work.events or work.site.config.exact or not TENSORS.holds():
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
    inputs, shared = _inputs(work)
    if work.new:
        # Members that warn stay plain, as the trial of one tells; what making one of them warns of is
        # nobody's concern.
        with warnings.catch_warnings(action="ignore"):
            out = _called(work, models, inputs, shared)
    else:
        out = _called(work, models, inputs, shared)
    finite(out if type(out) is tuple else (out,))
    return apart(out, len(models))


def _called(work: Work, models: Sequence[nn.Module], inputs: list[Any], shared: bool) -> Any:
    call = _wide_model(work, models, inputs, shared)
    try:
        return call(inputs, shared)
    except Exception as error:
        raise_interrupt(error)
        raise Bail(f"{type(error).__name__}: {error}") from None


def _inputs(work: Work) -> tuple[list[Any], bool]:
    """The arguments of the call: tensors every member gets, or a tensor for each."""
    memory = work.plan.memory
    if "sources" not in memory:
        memory["sources"] = _sources(work)
    cells, positions = memory["sources"]
    if positions:
        found = [work.items.columns[i] for i in positions]
        plain = all(type(x) is Tensor or (type(x) is list and {*map(type, x)} == {Tensor}) for x in found)
    else:
        closure = work.body.__closure__
        found = [closure[i].cell_contents for i in cells]
        plain = all(type(x) is Tensor for x in found)
    if not plain:
        raise Bail("arguments other than tensors")
    for x in found:
        _check_alike([x] if type(x) is Tensor else x)
    return found, not positions


def _check_alike(tensors: list[Tensor]) -> None:
    """Stacked, tensors of several types would become one type, in which no member alone would compute."""
    first = tensors[0]
    if len(tensors) > 1 and len(set(map(_look, tensors))) > 1:  # devices and shapes are seen by stacking
        raise Bail("tensors of different types or layouts")
    if first.layout is not torch.strided or first.is_nested:
        raise Bail("tensors that are sparse or nested")
    check_rows(tensors)


_look = operator.attrgetter("dtype", "layout")


def _sources(work: Work) -> tuple[list[int], list[int]]:
    """Where the arguments come from: cells of the body that all members share, or columns of items."""
    body = work.site.text.bodies["body"]
    names, free = [p.arg for p in body.args.args], work.body.__code__.co_freevars
    given = [argument.id for argument in body.body.args]
    if given and all(name in names for name in given):
        return [], [names.index(name) for name in given]
    if given and all(name in free and name not in names for name in given):
        return [free.index(name) for name in given], []
    raise Bail("arguments that are global, or shared and per item ones together")


def _gradients_wanted(tensors: list[Any], inputs: list[Any]) -> None:
    given = [t for x in inputs for t in ([x] if type(x) is Tensor else x)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*given, *tensors)):
        raise Bail("gradients are wanted, and must reach the members' own parameters")


def _wide_model(work: Work, models: Sequence[nn.Module], inputs: list[Any], shared: bool) -> Straight:
    """How to call the wide model of these members, with their numbers as they are now."""
    memory = work.plan.memory
    kept = memory.get("wide")
    tensors = None if kept is None else kept.tensors_now()
    if kept is not None and tensors is not None:
        _gradients_wanted(tensors, inputs)
        examine(work)
        try:
            memory["renewals"] = memory.get("renewals", 0) + 1 if kept.renewed(tensors) else 0
        except Bail:
            memory.pop("wide", None)
            raise
        return kept.call
    if kept is not None and kept.members.are(models):
        memory.pop("wide", None)
        raise Bail("something in Python that the members read has changed")
    _gradients_wanted([t for m in models for t in tensors_of(m)], inputs)
    members = Members(models, forget(work.plan))
    facts = prove(work, list(models))
    work.plan.ledger.of(NAME).looks.clear()  # what was seen of others says nothing of this one
    work.new = True
    examine(work)
    began = now()
    sample = tuple(x if shared else x[0] for x in inputs)
    try:
        if REGISTRY.custom_builders(models[0]):
            raise Bail("a wide class that is registered for a part of the members runs code of its own")
        wide = compile_wide(list(models), sample, config=WideConfig(tune_seconds=0.3))
        wide.requires_grad_(False)  # as no gradients are wanted wherever it runs
        copies = Copies(wide, models[0], members)
        call = Straight(wide, copies)
        arrange(wide, lambda: call(inputs, shared))
    except Exception as error:
        raise_interrupt(error)
        raise Bail(f"no wide model: {type(error).__name__}: {error}") from None
    kept = memory["wide"] = Kept(memory["modules column"], members, call, copies, facts)
    kept.look(work.items.columns)
    memory["built"] = now() - began
    memory["renewals"] = 0
    return call
