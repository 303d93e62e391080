"""What the values of a site become: a comprehension's list, set or dict, or what a loop fills."""

import collections
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
PLAIN = (
    *IMMUTABLE_TOTALS,
    type(None),
    np.float64,
    np.float32,
    np.int64,
    np.bool_,
)  # compared by no code of users
BUILTINS = (list, set, dict, collections.defaultdict, min, max, abs, len, float, int)
OPERATORS = {
    "Add": operator.iadd, "Sub": operator.isub, "Mult": operator.imul, "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv, "Mod": operator.imod, "Pow": operator.ipow, "BitAnd": operator.iand,
    "BitOr": operator.ior, "BitXor": operator.ixor, "LShift": operator.ilshift, "RShift": operator.irshift,
    "MatMult": operator.imatmul,
}  # fmt: skip


def built(text: SiteText, values: list[Any]) -> Any:
    """What a comprehension makes of its values."""
    if text.kind == "set":
        return set(values)
    return dict(values) if text.kind == "dict" else values


def fillable(text: SiteText, containers: tuple, totals: tuple, makers: tuple) -> bool:
    """Exact lists, sets and dicts made by the builtins, and totals that cannot be changed in place."""
    kinds = {"append": (list,), "add": (set,), "setitem": (dict,), "update": (dict, collections.defaultdict)}
    filled = [s for s in text.sinks if s.kind not in TOTALS]
    carried = text.sinks[0].kind == "carried"
    return (
        all(type(t) in (PLAIN if carried else IMMUTABLE_TOTALS) for t in totals)
        and all(any(m is kind for kind in BUILTINS) for m in (makers[:-1] if carried else makers))
        and all(type(c) in kinds[s.kind] for c, s in zip(containers, filled, strict=True))
        and all(_updated(c) for c, s in zip(containers, filled, strict=True) if s.kind == "update")
    )


def _updated(held: Any) -> bool:
    """A dict of numbers: adding to them runs nobody's code."""
    made = getattr(held, "default_factory", int)
    return (made is int or made is float) and all(type(value) in IMMUTABLE_TOTALS for value in held.values())


def carried_on(values: list[Any], totals: list[Any], step: Any) -> list[Any] | None:
    """Do what the last statements of each round do, in order. None if anything is in the way: they have
    changed nothing by then, and run as written."""
    now: Any = totals
    for value in values:
        if not all(type(part) in PLAIN for part in value):
            return None
        try:
            now = step(*now, *value)
        except Exception:
            return None
    return list(now)


def rehearsed(text: SiteText, values: list[Any], containers: tuple, totals: tuple) -> bool:
    """Can all be filled without an error? One that the body would meet is the plain loop's to raise."""
    try:
        fill(text, values, tuple(type(c)() for c in containers), list(totals))
    except Exception:
        return False
    return True


def inert(eater: str, options: tuple[Any, ...]) -> bool:
    """Does the eater run nobody's code between items? What `key` and the start of a sum do is theirs."""
    if eater == "sorted":
        return True  # eats all first
    if eater == "sum":
        return all(type(o) in STARTS and getattr(o, "dtype", o) is not OBJECTS for o in options)
    return all(o is None or any(o is key for key in KEYS) for o in options)


def fill(text: SiteText, values: list[Any], containers: tuple, running: list[Any]) -> None:
    """Do what the loop's body would have done with each value, in order; totals are kept in `running`."""
    sinks = text.sinks
    filled = iter(containers)
    target = {i: next(filled) for i, s in enumerate(sinks) if s.kind not in TOTALS}
    total = {i: k for k, i in enumerate(i for i, s in enumerate(sinks) if s.kind in TOTALS)}
    if text.single and sinks[0].kind == "append":
        target[0].extend(values)
        return
    for value in values:
        index, value = (0, value) if text.single else value
        kind = sinks[index].kind
        if kind == "append":
            target[index].append(value)
        elif kind == "add":
            target[index].add(value)
        elif kind == "setitem":
            target[index][value[1]] = value[0]
        elif kind == "update":
            step = OPERATORS[sinks[index].operator.__name__]  # type: ignore[union-attr]
            target[index][value[1]] = step(target[index][value[1]], value[0])
        else:
            step = OPERATORS[sinks[index].operator.__name__]  # type: ignore[union-attr]
            running[total[index]] = step(running[total[index]], value)
