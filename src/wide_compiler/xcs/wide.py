"""`[m(x) for m in models]` over distinct modules of one architecture: the wide model of this library.

The members keep their own parameters. The wide model holds copies, renewed when a member's version counters,
memory or sampled numbers have changed. Where gradients are wanted the plain loop runs: they must reach the
members. The wide model is built only after the plain loop has cost more than building it does.
"""

import ast
import operator
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..api import compile as compile_wide
from ..config import WideConfig
from .analysis import Analyzer
from .calls import call_value
from .columns import column_value
from .effects import Decline
from .guards import Guards
from .ledger import clock
from .torch_vmap import apart
from .values import IMMUTABLE
from .work import Bail, Work

BUILD_SECONDS = 1.0  # about what building takes; the plain loop must have cost as much before
RENEWALS = 3
SAMPLED = 4  # numbers of each parameter looked at besides its version


def able(work: Work) -> bool:
    """The body is `m(...)` of a loop variable that runs over distinct modules of one class."""
    modules = _modules_column(work)
    return modules is not None and work.cond is None and not work.events and not work.site.config.exact


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
    j = _modules_column(work)
    assert j is not None
    models = list(work.items.columns[j])
    inputs, shared = _inputs(work, j)
    if torch.is_grad_enabled() and _wants_gradients(models, inputs):
        raise Bail("gradients are wanted, and must reach the members' own parameters")
    wide = _wide_model(work, models, inputs, shared)
    try:
        out = wide.shared(*inputs) if shared else wide.stacked(*[torch.stack(list(x)) for x in inputs])
    except Exception as error:
        raise Bail(f"{type(error).__name__}: {error}") from None
    return apart(out, len(models))


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


def _wants_gradients(models: list[nn.Module], inputs: list[Any]) -> bool:
    given = [t for x in inputs for t in ([x] if type(x) is Tensor else x)]
    return any(t.requires_grad for t in given) or any(p.requires_grad for m in models for p in m.parameters())


def _wide_model(work: Work, models: list[nn.Module], inputs: list[Any], shared: bool) -> Any:
    memory = work.plan.memory
    kept = memory.get("wide")
    if kept is not None and len(kept.models) == len(models) and all(map(_is, kept.models, models)):
        if not kept.still_true():
            del memory["wide"]
            raise Bail("something in Python that the members read has changed")
        changed = kept.changed()
        memory["renewals"] = memory.get("renewals", 0) + 1 if changed else 0
        kept.renew(changed)
        return kept.wide
    facts = _prove(work, models)
    began = clock()
    sample = tuple(x if shared else x[0] for x in inputs)
    try:
        wide = compile_wide(models, sample, config=WideConfig(tune_seconds=0.3))
    except Exception as error:
        raise Bail(f"no wide model: {type(error).__name__}: {error}") from None
    memory["wide"] = _Kept(models, wide, facts)
    memory["built"] = clock() - began
    memory["renewals"] = 0
    return wide


def _is(a: Any, b: Any) -> bool:
    return a is b


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
    return _Facts(models, guards)


FIXED = (*IMMUTABLE, types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)


class _Facts:
    """What a graph of the members has baked in: plain attributes of modules, globals, class attributes."""

    def __init__(self, models: list[nn.Module], guards: Guards):
        self.first, self.guards = models[0], guards
        self.plain = [_plain_attributes(m) for model in models for m in model.modules()]
        for slot, value in enumerate(guards.values({}, [[self.first], [_A_TENSOR]])):
            held = value[0] if guards.vector[slot] else value
            if isinstance(held, FIXED) and not isinstance(held, torch.Size):
                guards.expect(slot, "is", held)
            elif guards.steps[slot][0] in ("global", "cell", "class", "defaults", "kwdefaults", "own"):
                raise Bail(f"members read a {type(held).__name__} that could change unseen")

    def hold(self) -> bool:
        for own, size, pick, values in self.plain:
            if len(own) != size or pick(own) != values:
                return False
        return self.guards.hold({}, [[self.first], [_A_TENSOR]])


_A_TENSOR = torch.zeros(1)


def _plain_attributes(module: nn.Module) -> tuple[dict[str, Any], int, Any, Any]:
    """A module's dict, its size, and its plain attributes: numbers, names, functions."""
    own = module.__dict__
    names = [n for n in own if not n.startswith("_")]
    for name in names:
        value = own[name]
        parts = value if type(value) is tuple else (value,)
        if not all(isinstance(p, FIXED) for p in parts):
            raise Bail(f"{type(module).__name__}.{name} is a {type(value).__name__} that could change unseen")
    pick = operator.itemgetter(*names) if names else (lambda held: ())
    return own, len(own), pick, pick(own)


class _Kept:
    """A wide model and what its members looked like when their numbers were copied."""

    def __init__(self, models: list[nn.Module], wide: Any, facts: "_Facts"):
        self.models = models
        self.wide = wide
        self.facts = facts
        self.looks = [_looks(m) for m in models]

    def still_true(self) -> bool:
        return self.facts.hold()

    def changed(self) -> list[int]:
        return [i for i, looks in enumerate(self.looks) if not _same(looks)]

    def renew(self, lanes: list[int]) -> None:
        for i in lanes:
            self.wide.load_lane(i, self.models[i])
            self.looks[i] = _looks(self.models[i])


# A parameter or buffer: where it lies, which tensor it is, its version, its memory, and a few of its numbers.
Look = tuple[dict[str, Any], str, Tensor, int, int, Any, bytes]


def _looks(model: nn.Module) -> list[Look]:
    tables = [table for m in model.modules() for table in (m._parameters, m._buffers)]
    held = [(table, key, tensor) for table in tables for key, tensor in table.items()]
    return [_look(table, key, tensor) for table, key, tensor in held if tensor is not None]


def _look(table: dict[str, Any], key: str, tensor: Tensor) -> Look:
    if tensor.is_inference():
        raise Bail("a parameter without a version counter")
    sample = np.empty(0)
    readable = tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.dtype is not torch.bfloat16
    if readable and tensor.numel():
        flat = tensor.detach().numpy().reshape(-1)
        sample = flat[:: max(1, -(-flat.size // SAMPLED))]
    return table, key, tensor, tensor._version, tensor.data_ptr(), sample, sample.tobytes()


def _same(looks: list[Look]) -> bool:
    """Versions tell of all writes but those through `.data` or a NumPy view: these the numbers tell of,
    as long
    as they touch one of those looked at, as an optimiser's step does."""
    for table, key, tensor, version, at, sample, numbers in looks:
        if table[key] is not tensor or tensor._version != version or tensor.data_ptr() != at:
            return False
        if sample.tobytes() != numbers:
            return False
    return True
