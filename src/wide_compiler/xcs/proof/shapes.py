"""Has another round of a loop taught the analysis anything? Abstract values, written down to be compared."""

from collections.abc import Iterable, Mapping
from typing import Any

from .effects import Decline, Effect
from .kinds import CONTAINERS, ITERATORS
from .values import Value

DEEPEST = 24


def shape(spaces: Iterable[Mapping[str, Value]]) -> list[Any]:
    """All that is known of some names, the same for values that differ in nothing but their identity."""
    seen: dict[int, int] = {}
    return [[(name, _shape(space[name], seen, 0)) for name in sorted(space)] for space in spaces]


def _shape(value: Value, seen: dict[int, int], depth: int) -> Any:
    if depth > DEEPEST:
        raise Decline(Effect.UNKNOWN, "it nests things too deep")
    inner = depth + 1
    head: tuple[Any, ...] = (value.type, value.fresh, value.slot, id(value.obj))
    if value.function is not None:
        made = value.function if isinstance(value.function, tuple) else (value.function.obj,)
        head += (tuple(map(id, made)),)
    if value.method is not None:
        head += (value.method[1], _shape(value.method[0], seen, inner))
    if value.attrs is not None:
        head += tuple((name, _shape(held, seen, inner)) for name, held in value.attrs.items())
    if value.type not in CONTAINERS and value.type not in ITERATORS:
        return head
    held = value.content
    if id(held) in seen:
        return (*head, seen[id(held)])
    seen[id(held)] = len(seen)
    if held.later is not None:
        return (*head, _shape(held.later(), seen, inner))
    parts = None if held.parts is None else [_shape(part, seen, inner) for part in held.parts]
    rest = [None if v is None else _shape(v, seen, inner) for v in (held.elem, held.key)]
    return (*head, parts, *rest)
