"""`module`: a frozen dataclass that is a pytree. Its fields are leaves, or static with
`field(metadata=...)`."""

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

from .. import _tree

C = TypeVar("C", bound=type)
_functions: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {}


def static(**options: Any) -> Any:
    """A field that is part of the structure, not of the data: `size: int = static(default=3)`."""
    metadata = {**options.pop("metadata", {}), "static": True}
    return dataclasses.field(metadata=metadata, **options)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field, static))
def module(cls: C) -> C:
    """Make a class a frozen dataclass with identity comparison, known to PyTorch (and JAX) as a pytree.

    >>> @module
    ... class Scale:
    ...     factor: float
    ...     def __call__(self, x):
    ...         return x * self.factor
    >>> leaves, structure = get_tree_functions(Scale)[0](Scale(2.0))
    >>> leaves
    [2.0]
    """
    made: Any = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(made)
    fixed = tuple(f.name for f in fields if f.metadata.get("static", False))
    moving = tuple(f.name for f in fields if f.name not in fixed)

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, n) for n in moving], tuple(getattr(value, n) for n in fixed)

    def unflatten(leaves: Any, structure: Any) -> Any:
        new = object.__new__(made)
        for name, held in (*zip(moving, leaves, strict=True), *zip(fixed, structure, strict=True)):
            object.__setattr__(new, name, held)
        return new

    _functions[made] = (flatten, unflatten)
    _tree.register(made, flatten, unflatten)
    if importlib.util.find_spec("jax") is not None:
        jax = importlib.import_module("jax")
        jax.tree_util.register_pytree_node(made, lambda v: flatten(v), lambda s, leaves: unflatten(leaves, s))
    return made


def get_tree_functions(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]] | None:
    """`(flatten, unflatten)` of a class made by `module`, or None for any other."""
    return _functions.get(cls)
