"""`module`: a frozen dataclass that is a pytree. Its fields are leaves, or static with
`field(metadata=...)`."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

from ..errors import WrongTypeError
from .module_trees import ModuleTree

C = TypeVar("C", bound=type)
_trees: dict[type, ModuleTree] = {}


def static(**options: Any) -> Any:
    """A field that is part of the structure, not of the data: `size: int = static(default=3)`."""
    metadata = {**options.pop("metadata", {}), "static": True}
    return dataclasses.field(metadata=metadata, **options)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field, static))
def module(cls: C) -> C:
    """Make a class a frozen dataclass with identity comparison, known to PyTorch (and JAX) as a pytree.

    A subclass is one only if it is decorated as well; without that its objects are leaves.

    >>> @module
    ... class Scale:
    ...     factor: float
    ...     def __call__(self, x):
    ...         return x * self.factor
    >>> leaves, structure = get_tree_functions(Scale)[0](Scale(2.0))
    >>> leaves
    [2.0]
    """
    if not isinstance(cls, type):
        raise WrongTypeError(f"module takes a class, got {_described(cls)}")
    if cls in _trees:
        return cls
    if "__dataclass_fields__" in vars(cls):
        raise WrongTypeError(
            f"{cls.__qualname__} is a dataclass already: leave @dataclass away, module makes it one"
        )
    made: Any = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(made)
    fixed = tuple(f.name for f in fields if f.metadata.get("static", False))
    moving = tuple(f.name for f in fields if f.name not in fixed)
    tree = ModuleTree(made, moving, fixed)
    tree.register()
    _trees[made] = tree
    return made


def get_tree_functions(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]] | None:
    """`(flatten, unflatten)` of a class made by `module`, or None for any other."""
    if not isinstance(cls, type):
        raise WrongTypeError(f"get_tree_functions takes a class, got {_described(cls)}: give its type(...)")
    tree = _trees.get(cls)
    return None if tree is None else (tree.flatten, tree.unflatten)


def _described(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return f"the {type(value).__name__} {name}" if name else f"an object of class {type(value).__qualname__}"
