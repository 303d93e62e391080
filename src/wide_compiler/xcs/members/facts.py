"""What a wide model takes for granted of its members' text: proven once, and guarded."""

import types
from typing import Any

import torch
from torch import nn

from ..proof.analysis import Analyzer
from ..proof.calls import call_value
from ..proof.columns import column_value
from ..proof.effects import Decline
from ..proof.guards import FETCH, Guards, lookup_global
from ..work import Bail, Work
from .attributes import FIXED

_A_TENSOR = torch.zeros(1)
# Steps to what a member holds, and to what PyTorch does with it: `Members` looks at that, and more closely.
_GIVEN = ("item", "const", "behaves", "called")
_INSIDE = ("module", "field", "covering", "absent", "bare")
_PARTS = ("length", "index")  # of a table, list or tuple that a member holds
# A member may hold these: `Members` sees that they stay the same ones, and not what lies on them.
_WITH_FIELDS = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
# Steps to anything else: modules of Python, functions and classes have fields too.
_OUTSIDE = (
    *("global", "cell", "class", "defaults", "kwdefaults", "own", "field", "covering", "index", "length"),
    "getattr",
)


def prove(work: Work, models: list[nn.Module]) -> "Facts":
    """Every member is pure, stands there once, and reads nothing in Python that could change unseen."""
    if len({id(m) for m in models}) != len(models):
        raise Bail("one module stands in the list twice")
    facts = Facts()
    for model in models:
        analyzer = Analyzer()
        try:
            column = column_value(analyzer, [model], 0)
            tensors = [column_value(analyzer, [torch.zeros(1)], 1)]
            arguments = len(work.site.text.bodies["body"].body.args)
            call_value(analyzer, column, tensors * arguments, {}, work.site.text.bodies["body"].body)
        except Decline as declined:
            raise Bail(declined.reason) from None
        facts.add(model, analyzer.guards)
    return facts


class Facts:
    """What a graph of the members has baked in from outside them: globals, class attributes, defaults.

    Every step that leads there starts from an object that is fixed: a part of a member, or one that was
    itself found to be the same a step before. So each is asked by itself: does it still lead to that object?
    """

    def __init__(self) -> None:
        self.outside: list[tuple[Any, Any, Any, Any]] = []
        self._known: set[tuple[Any, ...]] = set()

    def add(self, member: nn.Module, guards: Guards) -> None:
        """What this one reads outside; members share most of it, but each may hold functions of its own."""
        values = guards.values({}, [[member], [_A_TENSOR]])
        held = [value[0] if many else value for value, many in zip(values, guards.vector, strict=True)]
        fixed: set[int] = set()
        inside: set[int] = set()
        for slot, (fetch, parent, key) in enumerate(guards.steps):
            value = held[slot]
            rooted = not isinstance(parent, int) or fetch == "item" or parent in fixed
            same = isinstance(value, FIXED) and not isinstance(value, torch.Size)
            if rooted and (fetch in _GIVEN or (fetch in (*_INSIDE, *_PARTS) and parent in inside)):
                fixed.add(slot)
                if (fetch == "item" or parent in inside) and not isinstance(value, _WITH_FIELDS):
                    inside.add(slot)
            elif rooted and _method(fetch, value):
                fixed.add(slot)
            elif rooted and (same or guards.checks.get(slot, ("",))[0] == "is"):
                fixed.add(slot)
                source = parent if fetch == "global" else held[parent]
                if fetch == "class":  # the members are not held on to: `Members` sees that classes stay
                    fetch, source = "own", type(source)
                if isinstance(source, nn.Module):
                    raise Bail(f"members read {key}, which is not among their plain attributes")
                if (fetch, id(source), key) not in self._known:
                    self._known.add((fetch, id(source), key))
                    self.outside.append((FETCH.get(fetch, lookup_global), source, key, value))
            elif fetch in _OUTSIDE or slot in guards.checks:
                raise Bail(f"members read a {type(value).__name__} that could change unseen")

    def hold(self) -> bool:
        try:
            for fetch, source, key, expected in self.outside:
                if fetch(source, key) is not expected:
                    return False
        except (LookupError, AttributeError, ValueError, TypeError):
            return False  # something is gone
        return True


def _method(fetch: str, value: Any) -> bool:
    """Methods of the members' classes are behaviour, which `Members` watches too."""
    return fetch == "class" and isinstance(value, types.FunctionType)
