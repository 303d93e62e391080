"""`module`: a frozen dataclass that is a pytree of PyTorch and JAX. Its fields are leaves, or static."""

import ast
import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import numpy as np
import torch
from torch.utils import _pytree

from ..errors import ArgumentError, WrongTypeError


class Statics(tuple[Any, ...]):
    """The values of static fields, in order. Compared by type and value, arrays by their contents: their own
    `==` gives an array, and their text leaves out most of a long one."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        try:
            return isinstance(other, tuple) and _key(tuple(self)) == _key(tuple(other))
        except Exception:  # two objects that cannot be compared
            return False

    def __ne__(self, other: object) -> bool:  # a tuple has its own
        return not self == other

    def __hash__(self) -> int:
        return hash(_key(tuple(self)))

    def __repr__(self) -> str:
        return repr(_shown(tuple(self)))


def _key(value: Any) -> Any:
    """Something with a hash that is equal where the value is; what has none is equal to itself alone."""
    kind = type(value)
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return _contents(value)
    if isinstance(value, (list, tuple)):
        return kind, tuple(map(_key, value))
    if isinstance(value, dict):
        return kind, frozenset((_key(name), _key(part)) for name, part in value.items())
    if isinstance(value, set):
        return kind, frozenset(value)
    return kind, id(value) if kind.__hash__ is None else value


def _contents(array: Any) -> tuple[Any, ...]:
    """Stands for an array or tensor: equal where all of its bits are."""
    if isinstance(array, torch.Tensor):
        flat = array.detach().resolve_conj().resolve_neg().reshape(-1)
        held: Any = id(array) if array.is_meta else flat.view(torch.uint8).cpu().numpy().tobytes()
    else:
        held = _key(array.tolist()) if array.dtype.hasobject else array.tobytes()
    digest = hashlib.sha256(held).hexdigest()[:16] if isinstance(held, bytes) else held
    return type(array), str(array.dtype), str(getattr(array, "device", "")), tuple(array.shape), digest


def _shown(value: Any) -> Any:
    """The value with a digest of all of its contents in place of each array."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return _contents(value)
    if type(value) in (list, tuple):
        return type(value)(map(_shown, value))
    return {name: _shown(part) for name, part in value.items()} if type(value) is dict else value


C = TypeVar("C", bound=type)
_trees: dict[type, "_Tree"] = {}


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
        raise WrongTypeError(f"module takes a class, got {cls!r}")
    if cls in _trees:
        return cls
    if "__dataclass_fields__" in vars(cls):
        raise WrongTypeError(
            f"{cls.__qualname__} is a dataclass already: leave @dataclass away, module makes it one"
        )
    made: Any = dataclasses.dataclass(frozen=True, eq=False)(cls)
    _trees[made] = _Tree(made)
    return made


def get_tree_functions(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]] | None:
    """`(flatten, unflatten)` of a class made by `module`, or None for any other."""
    if not isinstance(cls, type):
        raise WrongTypeError(f"get_tree_functions takes a class, got {cls!r}: give its type(...)")
    tree = _trees.get(cls)
    return None if tree is None else (tree.flatten, tree.unflatten)


class _Tree:
    """How objects of one class come apart into leaves and structure, told to PyTorch, and to JAX where it is
    installed."""

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
            from_dumpable_context=lambda text: Statics(ast.literal_eval(text)),
            flatten_with_keys_fn=self.with_keys(_pytree.GetAttrKey),
        )
        if importlib.util.find_spec("jax") is not None:
            tree = importlib.import_module("jax").tree_util
            keyed, back = self.with_keys(tree.GetAttrKey), lambda fixed, leaves: self.unflatten(leaves, fixed)
            tree.register_pytree_with_keys(kind, keyed, back, self.flatten)

    def flatten(self, value: Any) -> tuple[list[Any], Statics]:
        return [getattr(value, n) for n in self.moving], Statics([getattr(value, n) for n in self.fixed])

    def with_keys(self, key: Callable[[str], Any]) -> Callable[[Any], tuple[list[tuple[Any, Any]], Statics]]:
        """Like `flatten`, with the name of its field beside each leaf."""
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

    def dump(self, structure: Statics) -> str:
        """The static fields as Python literals, for a file that `torch.export.save` writes."""
        text = repr(tuple(structure))
        with contextlib.suppress(ValueError, SyntaxError):
            if Statics(ast.literal_eval(text)) == structure:
                return text
        raise WrongTypeError(
            f"static fields {self.fixed} of {self.kind.__qualname__} are no literals: {text}"
        )
