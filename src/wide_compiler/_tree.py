"""Pytrees of arguments."""

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from .errors import WrongTypeError

TreeSpec = _pytree.TreeSpec


def flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Leaves of `tree` in order, and the spec that puts them back."""
    return _pytree.tree_flatten(tree)


def unflatten(leaves: Sequence[Any], spec: TreeSpec) -> Any:
    return _pytree.tree_unflatten(list(leaves), spec)


def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any:
    return _pytree.tree_map(fn, tree)


def rebuild(picture: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The tree of which `signature` gave this picture, with other tensors in it. Plain structures only."""
    if picture == "tensor":
        return next(tensors)
    kind, *parts = picture
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
    """A printable path for each leaf, in `flatten` order: `["[0]", "['mask']"]`."""
    pairs, _ = _pytree.tree_flatten_with_path(tree)
    return [_pytree.keystr(path) for path, _ in pairs]


def argument_paths(args: tuple, kwargs: dict) -> list[str]:
    """Leaf paths as a caller reads them: `argument 0`, `argument 'mask'['key']`."""
    paths = [f"argument {i}{p}" for i, a in enumerate(args) for p in leaf_paths(a)]
    return paths + [f"argument {k!r}{p}" for k in kwargs for p in leaf_paths(kwargs[k])]


class Unkeyed:
    """Stands in a signature for a leaf whose content cannot be told: equal only to the same object."""

    def __init__(self, leaf: Any):
        self.leaf = leaf

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unkeyed) and other.leaf is self.leaf

    def __hash__(self) -> int:
        return id(self.leaf)


_VALUES = (
    complex,
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


def unkeyed_leaf(tree: Any) -> Any:
    """A leaf that a graph would freeze although it may change from call to call, or None."""
    for leaf in flatten(tree)[0]:
        plain = leaf is None or isinstance(leaf, (bool, int, float, str, torch.Tensor))
        if not plain and isinstance(_plain(leaf), Unkeyed):
            return leaf
    return None


def signature(tree: Any) -> Any:
    """A hashable picture of a pytree: its structure, and its leaves other than tensors.

    Written as plain recursion, because `torch.compile` can follow that where it cannot hash a `TreeSpec`.
    """
    if isinstance(tree, torch.Tensor):
        return "tensor"
    if tree is None or isinstance(tree, (bool, int, str)):
        return (type(tree).__name__, tree)
    if isinstance(tree, float):
        return ("float", str(tree))  # by its digits: -0.0 equals 0.0, and nan nothing
    if type(tree) in (list, tuple):
        return (type(tree).__name__, *[signature(item) for item in tree])
    if type(tree) is dict:
        return ("dict", *[(key, signature(item)) for key, item in tree.items()])
    leaves, spec = flatten(tree)
    if len(leaves) == 1 and leaves[0] is tree:
        return _plain(tree)
    return (repr(spec), *[signature(leaf) for leaf in leaves])
