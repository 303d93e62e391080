"""Plain attributes of modules: numbers, names and functions, which can be compared at every look."""

import enum
import itertools
import operator
import types
from typing import Any

from torch import nn

from ..proof.kinds import IMMUTABLE, is_numpy_scalar
from ..work import Bail

FIXED = (*IMMUTABLE, types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)
INTERNAL = frozenset(vars(nn.Module())) - {"training"}  # what PyTorch itself keeps in every module
_EMPTY = types.CellType()
_flat = itertools.chain.from_iterable


def plain_attributes(modules: list[nn.Module]) -> list[tuple[Any, list[bool], list[Any]]]:
    """Numbers, names and functions that modules hold, for all modules with the same ones at once: how to pick
    them, from which modules, and what they are."""
    names = [tuple(n for n in vars(m) if n not in INTERNAL) for m in modules]
    for module, own in zip(modules, names, strict=True):
        for name in own:
            value = vars(module)[name]
            parts = value if type(value) is tuple else (value,)
            if not all(map(_fixed, parts)) and not _whole_numbers(value):
                kind = type(value).__name__
                raise Bail(f"{type(module).__name__}.{name} is a {kind} that could change unseen")
            if any(isinstance(p, types.FunctionType) and _carries_objects(p) for p in parts):
                raise Bail(f"{type(module).__name__}.{name} is a function that may hold the member itself")
    groups = []
    for wanted in sorted(set(names)):
        which = [own == wanted for own in names]
        pick = operator.itemgetter(*wanted, *wanted[:1]) if wanted else _nothing  # always a tuple
        groups.append((pick, which, list(_flat(pick(vars(m)) for m in itertools.compress(modules, which)))))
    return groups


def _fixed(value: Any) -> bool:
    """Of Python's or NumPy's own types: somebody's number may be copied and compared in its own way."""
    kind = type(value)
    own = is_numpy_scalar(kind) or issubclass(kind, enum.Enum)
    return kind in FIXED or isinstance(value, type) or (isinstance(value, FIXED) and own)


def _carries_objects(function: types.FunctionType, seen: frozenset[int] = frozenset()) -> bool:
    """Does it hold on to anything that is not plain? Who holds the function would hold that."""
    seen |= {id(function)}
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for held in (*cells, *defaults, *vars(function).values()):
        if not isinstance(held, FIXED):
            return True
        if isinstance(held, types.FunctionType) and id(held) not in seen and _carries_objects(held, seen):
            return True
    return False


def _nothing(own: dict[str, Any]) -> tuple[()]:
    return ()


def _whole_numbers(value: Any) -> bool:
    """Lists of them are compared at every look."""
    return type(value) is list and all(type(v) is int for v in value)


def same_value(now: Any, before: Any) -> bool:
    """The same object, or a plain value that cannot be told from it."""
    if now is before:
        return True
    return type(now) is type(before) and type(now) is not list and now == before and repr(now) == repr(before)
