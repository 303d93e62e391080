"""What a forward may read beside its module: attributes of its class, and globals that its functions name."""

import types
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

_DATA = (bool, int, float, complex, str, list, tuple, dict, set)
# Whoever reads a larger global does not read it as a setting.
_LARGEST = 64

Place = tuple[Mapping[str, Any], str]


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


def places(modules: Iterable[nn.Module]) -> list[Place]:
    """All of these, of all the modules' classes."""
    found = []
    for kind in {type(module) for module in modules}:
        found += [(table, name) for name, table in (*class_data(kind).items(), *global_data(kind).items())]
    return found


def _own_classes(kind: type) -> list[type]:
    theirs = ("torch", "builtins", __name__.split(".")[0])
    return [cls for cls in kind.__mro__ if cls.__module__.split(".")[0] not in theirs]


def _is_data(value: Any) -> bool:
    return isinstance(value, _DATA) and (not hasattr(value, "__len__") or len(value) <= _LARGEST)
