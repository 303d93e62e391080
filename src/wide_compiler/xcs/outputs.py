"""Build a site's result from its values: the list, set or dict of a comprehension, or what a loop fills."""

import collections
import itertools
import operator
from typing import Any

import numpy as np
import torch

from .text.site_text import SiteText
from .text.sites import TOTALS

STARTS = (int, float, complex, bool, str, bytes, list, tuple, np.ndarray, torch.Tensor)
OBJECTS = np.dtype(object)
KEYS = (len, abs, str, int, float, ord)
IMMUTABLE_TOTALS = (int, float, complex, str, bool)
COMPARED_BY_NO_USER = (*IMMUTABLE_TOTALS, type(None), np.float64, np.float32, np.int64, np.bool_)
BUILTINS = (list, set, dict, collections.defaultdict, min, max, abs, len, float, int)
CONTAINERS: dict[str, tuple[type, ...]] = {
    "append": (list,),
    "add": (set,),
    "setitem": (dict,),
    "update": (dict, collections.defaultdict),
}
OPERATORS = {
    "Add": operator.iadd, "Sub": operator.isub, "Mult": operator.imul, "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv, "Mod": operator.imod, "Pow": operator.ipow, "BitAnd": operator.iand,
    "BitOr": operator.ior, "BitXor": operator.ixor, "LShift": operator.ilshift, "RShift": operator.irshift,
    "MatMult": operator.imatmul,
}  # fmt: skip


def inert(consumer: str, options: tuple[Any, ...]) -> bool:
    """Return whether the consumer (`sum`, `max`, `sorted`, ...) runs no user code between items.

    User code could run through `key` functions and through the start value of `sum`.
    """
    if consumer == "sum":
        return all(type(o) in STARTS and getattr(o, "dtype", o) is not OBJECTS for o in options)
    # `sorted` consumes all items first.
    return consumer == "sorted" or all(o is None or any(o is key for key in KEYS) for o in options)


def fillable(text: SiteText, containers: tuple, totals: tuple, makers: tuple) -> bool:
    """Return whether the containers are exact lists, sets and dicts, and the totals immutable."""
    sinks = [sink for sink in text.sinks if sink.kind not in TOTALS]
    carried = text.sinks[0].kind == "carried"
    return (
        all(type(t) in (COMPARED_BY_NO_USER if carried else IMMUTABLE_TOTALS) for t in totals)
        and all(any(m is known for known in BUILTINS) for m in (makers[:-1] if carried else makers))
        and all(type(c) in CONTAINERS[s.kind] for c, s in zip(containers, sinks, strict=True))
        and all(_holds_numbers(c) for c, s in zip(containers, sinks, strict=True) if s.kind == "update")
    )


def _holds_numbers(held: Any) -> bool:
    """Return whether a dict holds plain numbers only, so that adding to them runs no user code."""
    made = getattr(held, "default_factory", int)
    return (made is int or made is float) and all(type(value) in IMMUTABLE_TOTALS for value in held.values())


def carried_on(values: list[Any], totals: list[Any], step: Any) -> None:
    """Apply the loop's last statements, `step`, to each value in order.

    `totals` is updated in place, and left unchanged if anything raises.
    """
    now: Any = totals
    for value in values:
        if not all(type(part) in COMPARED_BY_NO_USER for part in value):
            raise TypeError("comparing these values may run user code")
        now = step(*now, *value)
    totals[:] = now


def rooms(containers: tuple) -> list[Any]:
    """Return new containers to fill; the real ones are updated once nothing can fail any more."""
    return [[] if type(held) is list else held.copy() for held in containers]


def fill(text: SiteText, values: list[Any], containers: list[Any], totals: list[Any]) -> None:
    """Apply to each value, in order, what the loop's body does with it. `totals` is updated in place."""
    if text.single and text.sinks[0].kind == "append":
        containers[0].extend(values)
        return
    of_totals, of_containers = itertools.count(), iter(containers)
    # By sink: the container, and the key if that is a place among the totals.
    homes: list[Any] = [
        (totals, next(of_totals)) if s.kind in TOTALS else (next(of_containers), None) for s in text.sinks
    ]
    for value in values:
        index, value = (0, value) if text.single else value
        sink, (held, key) = text.sinks[index], homes[index]
        if sink.kind == "append":
            held.append(value)
        elif sink.kind == "add":
            held.add(value)
        elif sink.kind == "setitem":
            held[value[1]] = value[0]
        else:
            more, key = (value, key) if sink.kind != "update" else value
            held[key] = OPERATORS[sink.operator.__name__](held[key], more)  # type: ignore[union-attr]
