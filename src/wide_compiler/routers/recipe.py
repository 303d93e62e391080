"""Recipe: what a tracer has to read of a tower, so that a guard of the trace lies on it."""

import operator
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..guards import ATOMS, MODULE_TABLES
from .label import Label

Parts = tuple[str, ...]
# What routers keep for themselves, of which no forward's result depends.
ROUTER_STATE = "_router_"
_DATA = (bool, int, float, complex, str, list, tuple, dict, set)
# Whoever reads a larger global does not read it as a setting.
_LARGEST = 64


def class_data(kind: type) -> dict[str, Mapping[str, Any]]:
    """Plain attributes of a class and its parents, unless these are torch's: name -> where it stands."""
    found: dict[str, Mapping[str, Any]] = {}
    for cls in _own_classes(kind):
        for name, value in vars(cls).items():
            if not name.startswith("__") and _is_data(value):
                found.setdefault(name, vars(cls))
    return found


def global_data(kind: type) -> dict[str, Mapping[str, Any]]:
    """Plain globals that the methods of a class name: name -> where it stands."""
    found: dict[str, Mapping[str, Any]] = {}
    for cls in _own_classes(kind):
        for function in vars(cls).values():
            if isinstance(function, types.FunctionType):
                table = function.__globals__
                names = [name for name in function.__code__.co_names if not name.startswith("__")]
                found |= {name: table for name in names if name in table and _is_data(table[name])}
    return found


@dataclass
class Recipe:
    """What a lane graph for one tower depends on: by module, the attributes to read.

    Floats are held against what they were: once one has changed a tracer leaves it open, and a lane graph is
    made for the number itself. Such a tower runs by itself in a trace, until it is prepared again.
    """

    modules: list[tuple[Parts, tuple[str, ...], dict[str, float]]] = field(default_factory=list)
    watchable: bool = True  # False if an attribute is of a kind on which the tracer puts no guard

    @classmethod
    def of(cls, tower: nn.Module) -> "Recipe":
        recipe = cls()
        for path, module in tower.named_modules(remove_duplicate=False):
            values = {name: table[name] for name, table in class_data(type(module)).items()}
            values |= {name: vars(module)[name] for name in _readable(vars(module))}
            floats = {name: value for name, value in values.items() if isinstance(value, float)}
            exact = tuple(n for n, v in values.items() if n not in floats and _guarded(v))
            recipe.modules.append((parts_of(path), exact, floats))
            rest = [v for n, v in values.items() if n not in floats and n not in exact]
            recipe.watchable &= all(map(_constant_by_nature, rest)) and not global_data(type(module))
        return recipe

    def read(self, tower: nn.Module) -> tuple[Any, ...] | None:
        """All of it, as constants of the trace; None if the tower is no longer what the recipe is of."""
        values: list[Any] = []
        for parts, exact, floats in self.modules:
            module = walk(tower, parts)
            if module is None:
                return None
            values.append(len(module._modules) + 1000 * len(module._parameters))
            values.append(len(module._buffers))
            values.append(len(module._forward_hooks) + len(module._forward_pre_hooks))
            values.append(len(module._backward_hooks) + len(module._backward_pre_hooks))
            for name in exact:
                value = getattr(module, name, None)
                if isinstance(value, float):
                    return None
                values.append(_pinned(value))
            for name, known in floats.items():
                if getattr(module, name, None) != known:
                    return None
        return tuple(values)


def walk(tower: nn.Module, parts: Parts) -> Any:
    module: Any = tower
    for part in parts:
        module = getattr(module, part, None)
    return module


def parts_of(path: str) -> Parts:
    return tuple(path.split(".")) if path else ()


def _readable(table: dict[str, Any]) -> list[str]:
    """The attributes in a module's `__dict__` that a forward may read, without nn.Module's machinery."""
    return [name for name in table if name not in MODULE_TABLES and not name.startswith(ROUTER_STATE)]


def _is_atomic(value: Any) -> bool:
    """A number, a word, or a tuple of them: its worth is all there is to it."""
    if type(value) is tuple:
        return all(map(_is_atomic, value))
    return isinstance(value, (*ATOMS, type))


def _pinned(value: Any) -> Any:
    """The value as a constant of the trace: the tracer may leave a whole number open once it has changed."""
    if isinstance(value, dict):
        return tuple([(key, _pinned(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return tuple([_pinned(item) for item in value])
    return operator.index(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _guarded(value: Any) -> bool:
    """Can the tracer guard its worth?"""
    leaves = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    )
    return all(_is_atomic(leaf) and not isinstance(leaf, float) for leaf in leaves)


def _constant_by_nature(value: Any) -> bool:
    """Labels, functions, tensors (which come in as they are): not what somebody turns a knob on."""
    return callable(value) or isinstance(value, (Label, Tensor))


def _own_classes(kind: type) -> list[type]:
    theirs = ("torch", "builtins", __name__.split(".")[0])
    return [cls for cls in kind.__mro__ if cls.__module__.split(".")[0] not in theirs]


def _is_data(value: Any) -> bool:
    return isinstance(value, _DATA) and (not hasattr(value, "__len__") or len(value) <= _LARGEST)
