"""What the values of a site become: a comprehension's list, set or dict, or what a loop fills."""

import operator
from typing import Any

import numpy as np
import torch

from .text.site_text import SiteText

STARTS = (int, float, complex, bool, str, bytes, list, tuple, np.ndarray, torch.Tensor)
OBJECTS = np.dtype(object)
KEYS = (len, abs, str, int, float, ord)
IMMUTABLE_TOTALS = (int, float, complex, str, bool)
CONTAINERS = {"append": list, "add": set, "setitem": dict}
OPERATORS = {
    "Add": operator.iadd, "Sub": operator.isub, "Mult": operator.imul, "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv, "Mod": operator.imod, "Pow": operator.ipow, "BitAnd": operator.iand,
    "BitOr": operator.ior, "BitXor": operator.ixor, "LShift": operator.ilshift, "RShift": operator.irshift,
    "MatMult": operator.imatmul,
}  # fmt: skip


def built(text: SiteText, values: list[Any]) -> Any:
    """What a comprehension makes of its values; raises if a key cannot be hashed."""
    return set(values) if text.kind == "set" else dict(values) if text.kind == "dict" else values


def inert(eater: str, options: tuple[Any, ...]) -> bool:
    """Does the eater run nobody's code between items? What `key` and the start of a sum do is theirs."""
    if eater == "sum":
        return all(type(o) in STARTS and getattr(o, "dtype", o) is not OBJECTS for o in options)
    # `sorted` eats all first.
    return eater == "sorted" or all(o is None or any(o is key for key in KEYS) for o in options)


def fillable(text: SiteText, containers: tuple, totals: tuple, makers: tuple) -> bool:
    """Exact lists, sets and dicts made by the builtins, and totals that cannot be changed in place."""
    kinds = [CONTAINERS[s.kind] for s in text.sinks if s.kind != "accumulate"]
    return (
        all(type(t) in IMMUTABLE_TOTALS for t in totals)
        and all(any(m is kind for kind in CONTAINERS.values()) for m in makers)
        and list(map(type, containers)) == kinds
    )


def rehearsed(text: SiteText, values: list[Any], containers: tuple, totals: tuple) -> bool:
    """Can all be filled without an error? One that the body would meet is the plain loop's to raise."""
    try:
        fill(text, values, tuple(type(c)() for c in containers), list(totals))
    except Exception:
        return False
    return True


def fill(text: SiteText, values: list[Any], containers: tuple, totals: list[Any]) -> None:
    """Do what the loop's body would have done with each value, in order; new totals are put into `totals`."""
    if text.single and text.sinks[0].kind == "append":
        containers[0].extend(values)
        return
    places, steps = [], []  # of each sink: its place among containers or totals, and what it does
    counts = [0, 0]
    for sink in text.sinks:
        total = sink.kind == "accumulate"
        places.append(counts[total])
        counts[total] += 1
        steps.append(OPERATORS[sink.operator.__name__] if total else None)  # type: ignore[union-attr]
    for value in values:
        index, value = (0, value) if text.single else value
        kind, place, step = text.sinks[index].kind, places[index], steps[index]
        if step is not None:
            totals[place] = step(totals[place], value)
        elif kind == "append":
            containers[place].append(value)
        elif kind == "add":
            containers[place].add(value)
        else:
            containers[place][value[1]] = value[0]
