"""Recipe: the attributes of a tower that must be read under torch.compile, so that guards are placed."""

import operator
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..guards import ATOMS, MODULE_TABLES
from .label import Label

Parts = tuple[str, ...]
# Prefix of attributes in which routers keep state that does not affect the results.
ROUTER_STATE = "_router_"
_DATA = (bool, int, float, complex, str, list, tuple, dict, set)
# Larger global containers are not treated as settings.
_LARGEST = 64


def class_data(kind: type) -> dict[str, Mapping[str, Any]]:
    """Plain attributes of a class and its bases, except torch's: name -> dict that holds it."""
    found: dict[str, Mapping[str, Any]] = {}
    for cls in _own_classes(kind):
        for name, value in vars(cls).items():
            if not name.startswith("__") and _is_data(value):
                found.setdefault(name, vars(cls))
    return found


def global_data(kind: type) -> dict[str, Mapping[str, Any]]:
    """Plain globals that the methods of a class use: name -> dict that holds it."""
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
    """The attributes, by module, that a lane graph for one tower depends on.

    Floats are compared with their recorded values: once a float has changed, the tracer treats it as dynamic,
    while a lane graph is built for a constant. Such a tower runs by itself until it is prepared again.
    """

    modules: list[tuple[Parts, tuple[str, ...], dict[str, float]]] = field(default_factory=list)
    watchable: bool = True  # False if the tracer cannot guard an attribute

    @classmethod
    def of(cls, tower: nn.Module) -> "Recipe":
        recipe = cls()
        for path, module in tower.named_modules(remove_duplicate=False):
            values = {name: table[name] for name, table in class_data(type(module)).items()}
            # What a forward may read, without nn.Module's internals.
            values |= {
                name: value
                for name, value in vars(module).items()
                if name not in MODULE_TABLES and not name.startswith(ROUTER_STATE)
            }
            floats = {name: value for name, value in values.items() if isinstance(value, float)}
            exact = tuple(n for n, v in values.items() if n not in floats and _guarded(v))
            recipe.modules.append((parts_of(path), exact, floats))
            rest = [v for n, v in values.items() if n not in floats and n not in exact]
            recipe.watchable &= all(map(_constant_by_nature, rest)) and not global_data(type(module))
        return recipe

    def read(self, tower: nn.Module) -> tuple[Any, ...] | None:
        """Values of all attributes as constants of the trace; None if the tower no longer matches."""
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


def _is_atomic(value: Any) -> bool:
    """Return whether it is a number, a string or a tuple of them, which equality describes completely."""
    if type(value) is tuple:
        return all(map(_is_atomic, value))
    return isinstance(value, (*ATOMS, type))


def _pinned(value: Any) -> Any:
    """Return the value as a constant of the trace: a changed integer may become dynamic there."""
    if isinstance(value, dict):
        return tuple([(key, _pinned(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return tuple([_pinned(item) for item in value])
    return operator.index(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _guarded(value: Any) -> bool:
    """Return whether the tracer can guard the value."""
    leaves = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    )
    return all(_is_atomic(leaf) and not isinstance(leaf, float) for leaf in leaves)


def _constant_by_nature(value: Any) -> bool:
    """Labels, functions and tensors (which are inputs of the graph): not settings that a user changes."""
    return callable(value) or isinstance(value, (Label, Tensor))


def _own_classes(kind: type) -> list[type]:
    theirs = ("torch", "builtins", __name__.split(".")[0])
    return [cls for cls in kind.__mro__ if cls.__module__.split(".")[0] not in theirs]


def _is_data(value: Any) -> bool:
    return isinstance(value, _DATA) and (not hasattr(value, "__len__") or len(value) <= _LARGEST)
