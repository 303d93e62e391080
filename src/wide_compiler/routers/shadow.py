"""Shadows: replacements for modules that share their `__dict__`, but have other children or another call.

They let some children of a module run by plans while the module's own Python runs, without writing to the
module: everything that the forward reads or sets is the module's.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import nn


class _Children(MutableMapping[str, Any]):
    """A module's children with replacements for some; writes go to the module's table.

    A replacement applies only while the child is the one it was made for.
    """

    def __init__(self, own: dict[str, Any], stand_ins: Mapping[str, nn.Module]):
        self.own, self.stand_ins = own, stand_ins
        self.replaced = {name: original_of(stand_in) for name, stand_in in stand_ins.items()}

    def __getitem__(self, name: str) -> Any:
        child = self.own[name]
        return self.stand_ins[name] if child is not None and child is self.replaced.get(name) else child

    def __setitem__(self, name: str, value: Any) -> None:
        self.own[name] = original_of(value)

    def __delitem__(self, name: str) -> None:
        del self.own[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)


class _Shadow:
    """Base class of all shadow classes, before the module's class in the MRO."""

    _shadow_original: nn.Module

    def __init_subclass__(cls, **options: Any) -> None:
        """Does not call the base, so that shadow classes appear in no registry of subclasses."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return original_of, (self._shadow_original,)


class _Parent(_Shadow):
    """Base class of shadows with replaced children."""

    _shadow_children: _Children

    @property
    def _modules(self) -> _Children:
        return type(self)._shadow_children

    def __getattr__(self, name: str) -> Any:
        children = type(self)._shadow_children
        return children[name] if name in children.stand_ins else super().__getattr__(name)  # type: ignore[misc]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, original_of(value))


def shadow(
    module: nn.Module,
    stand_ins: Mapping[str, nn.Module] | None = None,
    call: Callable[..., Any] | None = None,
    **methods: Callable[..., Any],
) -> Any:
    """Make a shadow of `module`: with replaced children by name, or one that runs `call` when called.

    Args:
        methods: attributes of its class that override the module's.
    """
    kind = type(module)
    content: dict[str, Any] = {
        "_shadow_original": module,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        **methods,
    }
    if stand_ins:
        content["_shadow_children"] = _Children(module._modules, stand_ins)
    if call is not None:
        content["__call__"] = staticmethod(call)
    metaclass: Any = type(kind)
    made = metaclass(kind.__name__, (_Parent if stand_ins else _Shadow, kind), content)
    new = object.__new__(made)
    object.__setattr__(new, "__dict__", module.__dict__)
    return new


def original_of(value: Any) -> Any:
    """Return the module of a shadow; any other value is returned as it is."""
    return type(value)._shadow_original if isinstance(value, _Shadow) else value


def shadow_of_tree(
    module: nn.Module, calls: Mapping[str, Callable[..., Any]], **methods: Callable[..., Any]
) -> Any:
    """Return a shadow of `module` in which the modules at these paths run `calls` instead."""
    below: dict[str, dict[str, Callable[..., Any]]] = {}
    for path, call in calls.items():
        name, _, rest = path.partition(".")
        below.setdefault(name, {})[rest] = call
    stand_ins = {}
    for name, inner in below.items():
        child: Any = module._modules[name]
        stand_ins[name] = shadow(child, call=inner[""]) if "" in inner else shadow_of_tree(child, inner)
    return shadow(module, stand_ins, **methods)
