"""What the values of a site become: a comprehension's list, set or dict, or what a loop fills."""

import operator
from typing import Any

from .site_text import SiteText

IMMUTABLE_TOTALS = (int, float, complex, str, bool)
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
    kinds = {"append": list, "add": set, "setitem": dict}
    filled = [s for s in text.sinks if s.kind != "accumulate"]
    return (
        all(type(t) in IMMUTABLE_TOTALS for t in totals)
        and all(any(m is kind for kind in (list, set, dict)) for m in makers)
        and all(type(c) is kinds[s.kind] for c, s in zip(containers, filled, strict=True))
    )


def fill(text: SiteText, values: list[Any], containers: tuple, running: list[Any]) -> None:
    """Do what the loop's body would have done with each value, in order; totals are kept in `running`."""
    sinks = text.sinks
    filled = iter(containers)
    target = {i: next(filled) for i, s in enumerate(sinks) if s.kind != "accumulate"}
    total = {i: k for k, i in enumerate(i for i, s in enumerate(sinks) if s.kind == "accumulate")}
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
        else:
            step = OPERATORS[sinks[index].operator.__name__]  # type: ignore[union-attr]
            running[total[index]] = step(running[total[index]], value)
