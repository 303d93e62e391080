"""What is known of the items of a column before the body is analysed."""

from typing import Any

import numpy as np
import torch

from .analysis import Analyzer
from .guards import held_types
from .kinds import CONTAINERS
from .outside import learn, safe_kinds
from .values import Value, tuple_of

MANY = 256  # containers as items are looked through up to so many


def column_value(a: Analyzer, column: Any, j: int) -> Value:
    """What is known of any item of a column; the guards make sure that it holds for all."""
    slot = a.guards.note("item", 0, j)
    first = column[0]
    if type(column) in (np.ndarray, torch.Tensor, range):
        a.guards.expect(slot, "type", type(first))
        return Value(type(first), first, slot)
    kind = type(first)
    if (
        kind is tuple
        and 0 < len(first) <= MANY
        and all(type(c) is tuple and len(c) == len(first) for c in column)
    ):
        parts = []
        for k, _ in enumerate(first):
            kinds = {type(c[k]) for c in column}
            inner = a.guards.note("index", slot, k)
            value = a.look(first[k], inner) if len(kinds) == 1 else Value(object)
            parts.append(value)
        a.guards.expect(slot, "type", tuple)
        a.guards.expect(a.guards.note("length", slot, None), "is", len(first))
        made = tuple_of(parts)
        made.fresh = False
        return made
    value = a.look(first, slot)
    if kind in CONTAINERS:
        _learn_all(a, value, column, slot)
    return value


def whole_value(column: Any, item: Value) -> Value:
    """A column as a whole, handed to the function that lists the rounds of several loops."""
    value = Value(type(column))
    value.elem = item
    return value


def _learn_all(a: Analyzer, value: Value, column: Any, slot: int) -> None:
    """Containers as items: they may hold whatever safe things any of them holds."""
    kinds: frozenset[Any] = frozenset(["anything"])
    if len(column) <= MANY and all(type(c) is value.type for c in column):
        kinds = frozenset().union(*(held_types(c) for c in column))
    a.guards.checks.pop(slot, None)
    if safe_kinds(kinds):
        a.guards.expect(slot, "holds", (value.type, kinds))
        learn(value, kinds)
    else:
        a.guards.expect(slot, "type", value.type)
        value.elem = value.key = None
