"""Pytree functions: flattening, paths and signatures."""

import copy
import enum
import gc
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree

from .errors import WrongTypeError

TreeSpec = _pytree.TreeSpec


def flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of `tree` in order, and the spec for `unflatten`."""
    return _pytree.tree_flatten(tree)


def unflatten(leaves: Sequence[Any], spec: "TreeSpec | ObjectSpec") -> Any:
    if isinstance(spec, ObjectSpec):
        return spec.unflatten(iter(leaves))
    return _pytree.tree_unflatten(list(leaves), spec)


class ObjectSpec:
    """Structure of a tree in which some leaves are objects that hold tensors in attributes.

    >>> import types
    >>> leaves, spec = flatten_output([types.SimpleNamespace(x=torch.ones(2), name="a"), 3])
    >>> leaves[1:], unflatten(leaves, spec)[0].name
    (['a', 3], 'a')
    """

    def __init__(self, outer: TreeSpec, inner: list[tuple[type, tuple[str, ...], Any] | None]):
        self.outer, self.inner = outer, inner  # per leaf: class, attributes and their structure

    def is_leaf(self) -> bool:
        return False

    def unflatten(self, leaves: Iterator[Any]) -> Any:
        return _pytree.tree_unflatten([self._leaf(part, leaves) for part in self.inner], self.outer)

    def _leaf(self, part: tuple[type, tuple[str, ...], Any] | None, leaves: Iterator[Any]) -> Any:
        if part is None:
            return next(leaves)
        cls, names, spec = part
        new: Any = cls.__new__(cls)  # type: ignore[call-overload]
        count = spec.num_leaves
        for name, value in zip(names, unflatten([next(leaves) for _ in range(count)], spec), strict=True):
            object.__setattr__(new, name, value)
        return new

    @property
    def num_leaves(self) -> int:
        return sum(1 if part is None else part[2].num_leaves for part in self.inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectSpec) and (self.outer, self.inner) == (other.outer, other.inner)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = [p if p is None else (p[0].__name__, p[1]) for p in self.inner]
        return f"ObjectSpec({self.outer}, {parts})"


def flatten_output(tree: Any) -> tuple[list[Any], "TreeSpec | ObjectSpec"]:
    """Like `flatten`, but also opens objects that hold tensors in attributes (a dataclass, a namespace)."""
    leaves, spec = _pytree.tree_flatten(tree)
    if not any(map(_opens, leaves)):
        return leaves, spec
    flat: list[Any] = []
    inner: list[tuple[type, tuple[str, ...], Any] | None] = []
    for leaf in leaves:
        if not _opens(leaf):
            flat.append(leaf)
            inner.append(None)
            continue
        attributes = _attributes(leaf)
        opened, own = flatten_output(list(attributes.values()))
        flat += opened
        inner.append((type(leaf), tuple(attributes), own))
    return flat, ObjectSpec(spec, inner)


_CLOSED = (
    *(torch.Tensor, torch.nn.Module, torch.SymInt, torch.SymFloat, torch.SymBool),
    *(bool, int, float, complex, str, bytes, type(None), type),
)


def _opens(leaf: Any) -> bool:
    """Return whether an object of a plain class holds tensors in its attributes."""
    kind = type(leaf)
    plain = kind.__new__ is object.__new__ or isinstance(leaf, types.SimpleNamespace)
    return plain and not isinstance(leaf, _CLOSED) and any(map(holds_tensor, _attributes(leaf).values()))


def holds_tensor(value: Any, depth: int = 6) -> bool:
    """Return whether an object holds a tensor, directly or nested, also in a set, an iterator or a
    closure."""
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, _CLOSED) or not depth:
        return False
    leaves = _pytree.tree_flatten(value)[0]
    if len(leaves) == 1 and leaves[0] is value:
        leaves = [*_attributes(value).values(), *_referents(value)]
    return any(holds_tensor(leaf, depth - 1) for leaf in leaves)


def _referents(value: Any) -> list[Any]:
    """Return the objects that a non-plain object refers to."""
    if isinstance(value, types.FunctionType):
        cells = value.__closure__ or ()
        return [referent for cell in cells for referent in gc.get_referents(cell)]
    if isinstance(value, types.GeneratorType):
        return [] if value.gi_frame is None else list(value.gi_frame.f_locals.values())
    if isinstance(value, (types.ModuleType, type, np.ndarray)) and not _holds_objects(value):
        return []
    found = gc.get_referents(value)
    return [x for x in found if not isinstance(x, (type, types.ModuleType))]


def _holds_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes by name, from `__dict__` and slots."""
    if isinstance(value, (types.FunctionType, types.ModuleType, types.BuiltinFunctionType)):
        return {}
    slots = [
        name
        for cls in type(value).__mro__
        for name, member in vars(cls).items()
        if isinstance(member, types.MemberDescriptorType) and name != "__dict__"
    ]
    own = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    table = getattr(value, "__dict__", None)
    return {**own, **table} if isinstance(table, dict) else own


def is_fake(value: Any) -> bool:
    """Return whether it is a fake tensor of a trace."""
    return isinstance(value, FakeTensor)


def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any:
    return _pytree.tree_map(fn, tree)


def rebuild(structure: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Invert `signature` with new tensors. Only for lists, tuples, dicts and plain values."""
    if structure == "tensor":
        return next(tensors)
    kind, *parts = structure
    if kind in ("list", "tuple"):
        items = [rebuild(part, tensors) for part in parts]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: rebuild(part, tensors) for key, part in parts}
    if kind == "float":
        return float(parts[0])
    if kind in ("NoneType", "bool", "int", "str"):
        return parts[0]
    raise WrongTypeError(f"cannot rebuild {kind}")


def leaf_paths(tree: Any) -> list[str]:
    """Return a printable path for each leaf, in `flatten` order: `["[0]", "['mask']"]`."""
    pairs, _ = _pytree.tree_flatten_with_path(tree)
    return [_pytree.keystr(path) for path, _ in pairs]


def output_paths(tree: Any) -> list[str]:
    """Like `leaf_paths`, in `flatten_output` order: `["[0]", ".logits"]`."""
    paths: list[str] = []
    for path, leaf in _pytree.tree_flatten_with_path(tree)[0]:
        name = _pytree.keystr(path)
        if isinstance(leaf, _CLOSED) or not holds_tensor(leaf):
            paths.append(name)
            continue
        for attribute, value in _attributes(leaf).items():
            paths += [f"{name}.{attribute}{inner}" for inner in output_paths(value)]
    return paths


def argument_paths(args: tuple, kwargs: dict) -> list[str]:
    """Return leaf paths in terms of arguments: `argument 0`, `argument 'mask'['key']`."""
    paths = [f"argument {i}{p}" for i, a in enumerate(args) for p in leaf_paths(a)]
    return paths + [f"argument {k!r}{p}" for k in kwargs for p in leaf_paths(kwargs[k])]


class Unkeyed:
    """Represents in a signature a leaf that cannot be compared by value: equal only to the same object."""

    def __init__(self, leaf: Any):
        self.leaf = leaf

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unkeyed) and other.leaf is self.leaf

    def __hash__(self) -> int:
        return id(self.leaf)


_VALUES = (
    bytes,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    torch.memory_format,
    enum.Enum,
    type,
)


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray) and leaf.dtype != object:
        return ("array", str(leaf.dtype), leaf.shape, leaf.tobytes())
    return leaf if isinstance(leaf, _VALUES) else Unkeyed(leaf)


def own_copy(leaf: Any) -> Any:
    """Return a leaf that is no tensor, or a copy of it if it can be changed."""
    plain = leaf is None or isinstance(leaf, (bool, int, float, complex, str, *_VALUES))
    return leaf if plain else copy.deepcopy(leaf)


def unkeyed_leaf(tree: Any) -> Any:
    """Return a leaf that a graph would bake in although it may change between calls, or None."""
    for leaf in flatten(tree)[0]:
        plain = leaf is None or isinstance(leaf, (bool, int, float, str, torch.Tensor))
        if not plain and isinstance(_plain(leaf), Unkeyed):
            return leaf
    return None


def signature(tree: Any) -> Any:
    """Return a hashable key of a pytree: its structure and non-tensor leaves.

    Plain recursion, because `torch.compile` can trace it, whereas it cannot hash a `TreeSpec`.
    """
    if isinstance(tree, torch.Tensor):
        return "tensor"
    if tree is None or isinstance(tree, (bool, int, str)):
        return (type(tree).__name__, tree)
    if isinstance(tree, float):
        return ("float", str(tree))  # as text: -0.0 == 0.0, and nan != nan
    if isinstance(tree, complex):
        return ("complex", str(tree))
    if type(tree) in (list, tuple):
        return (type(tree).__name__, *[signature(item) for item in tree])
    if type(tree) is dict:
        return ("dict", *[(key, signature(item)) for key, item in tree.items()])
    leaves, spec = flatten(tree)
    if len(leaves) == 1 and leaves[0] is tree:
        return _plain(tree)
    return (repr(spec), *[signature(leaf) for leaf in leaves])
