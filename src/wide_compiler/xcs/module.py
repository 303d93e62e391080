"""`module`: a frozen dataclass registered as a pytree with PyTorch and JAX. Fields are leaves or static."""

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

from torch.utils import _pytree

from ..errors import ArgumentError, WrongTypeError

C = TypeVar("C", bound=type)
_trees: dict[type, "_Tree"] = {}


def static(**options: Any) -> Any:
    """Return a dataclass field that is part of the pytree structure, not a leaf: `n: int = static()`.

    Structures are compared by their static fields, so the value must be hashable.
    """
    metadata = {**options.pop("metadata", {}), "static": True}
    return dataclasses.field(metadata=metadata, **options)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field, static))
def module(cls: C) -> C:
    """Make a class a frozen dataclass, compared by identity and registered as a pytree.

    A subclass must be decorated as well; otherwise its instances are leaves.

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
        raise WrongTypeError(f"module takes a class, got {cls!r}")
    if cls in _trees:
        return cls
    if "__dataclass_fields__" in vars(cls):
        raise WrongTypeError(
            f"{cls.__qualname__} is a dataclass already; remove @dataclass, since module makes it one"
        )
    made: Any = dataclasses.dataclass(frozen=True, eq=False)(cls)
    _trees[made] = _Tree(made)
    return made


def get_tree_functions(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]] | None:
    """Return `(flatten, unflatten)` of a class decorated with `module`, or None for any other class."""
    if not isinstance(cls, type):
        raise WrongTypeError(f"get_tree_functions takes a class, got {cls!r}: give its type(...)")
    tree = _trees.get(cls)
    return None if tree is None else (tree.flatten, tree.unflatten)


class _Tree:
    """The pytree registration of one class with PyTorch, and with JAX if installed."""

    def __init__(self, kind: Any):
        self.kind, fields = kind, dataclasses.fields(kind)
        self.fixed = tuple(f.name for f in fields if f.metadata.get("static", False))
        self.moving = tuple(f.name for f in fields if f.name not in self.fixed)
        _pytree.register_pytree_node(
            kind,
            self.flatten,
            self.unflatten,
            serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
            to_dumpable_context=self.dump,
            from_dumpable_context=ast.literal_eval,
            flatten_with_keys_fn=self.with_keys(_pytree.GetAttrKey),
        )
        if importlib.util.find_spec("jax") is not None:
            tree = importlib.import_module("jax").tree_util
            keyed, back = self.with_keys(tree.GetAttrKey), lambda fixed, leaves: self.unflatten(leaves, fixed)
            tree.register_pytree_with_keys(kind, keyed, back, self.flatten)

    def flatten(self, value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, n) for n in self.moving], tuple(getattr(value, n) for n in self.fixed)

    def with_keys(self, key: Callable[[str], Any]) -> Callable[[Any], tuple[list[Any], tuple[Any, ...]]]:
        """Return a function like `flatten` that returns (key, leaf) pairs, with keys from field names."""
        keys = [key(name) for name in self.moving]
        return lambda value: (list(zip(keys, self.flatten(value)[0], strict=True)), self.flatten(value)[1])

    def unflatten(self, leaves: Any, structure: Any) -> Any:
        new, leaves, structure = object.__new__(self.kind), list(leaves), list(structure)
        if (len(leaves), len(structure)) != (len(self.moving), len(self.fixed)):
            has = f"{self.kind.__qualname__} has leaves {self.moving} and static fields {self.fixed}"
            raise ArgumentError(f"{has}, got {len(leaves)} and {len(structure)} values")
        for name, held in zip((*self.moving, *self.fixed), (*leaves, *structure), strict=True):
            object.__setattr__(new, name, held)
        return new

    def dump(self, structure: tuple[Any, ...]) -> str:
        """Return the static fields as a Python literal, for `torch.export.save`.

        Raises:
            WrongTypeError: a static field is not a literal.
        """
        text = repr(tuple(structure))
        with contextlib.suppress(ValueError, SyntaxError):
            if repr(ast.literal_eval(text)) == text:
                return text
        raise WrongTypeError(
            f"static fields {self.fixed} of {self.kind.__qualname__} must be Python literals to be saved, "
            f"got {text}"
        )
