"""Pytrees of arguments. The only file that touches PyTorch's private pytree module."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree

TreeSpec = _pytree.TreeSpec


def flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Leaves of `tree` in order, and the spec that puts them back."""
    return _pytree.tree_flatten(tree)


def unflatten(leaves: Sequence[Any], spec: TreeSpec) -> Any:
    return _pytree.tree_unflatten(list(leaves), spec)


def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any:
    return _pytree.tree_map(fn, tree)


def leaf_paths(tree: Any) -> list[str]:
    """A printable path for each leaf, in `flatten` order: `["[0]", "['mask']"]`."""
    pairs, _ = _pytree.tree_flatten_with_path(tree)
    return [_pytree.keystr(path) for path, _ in pairs]


def is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def argument_paths(args: tuple, kwargs: dict) -> list[str]:
    """Leaf paths as a caller reads them: `argument 0`, `argument 'mask'['key']`."""
    paths = [f"argument {i}{p}" for i, a in enumerate(args) for p in leaf_paths(a)]
    return paths + [f"argument {k!r}{p}" for k in sorted(kwargs) for p in leaf_paths(kwargs[k])]


def signature(tree: Any) -> Any:
    """A hashable picture of a pytree: its structure, and its leaves other than tensors.

    Written as plain recursion, because `torch.compile` can follow that where it cannot hash a `TreeSpec`.
    """
    if isinstance(tree, torch.Tensor):
        return "tensor"
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return (type(tree).__name__, tree)
    if type(tree) in (list, tuple):
        return (type(tree).__name__, *[signature(item) for item in tree])
    if type(tree) is dict:
        return ("dict", *[(key, signature(item)) for key, item in tree.items()])
    leaves, spec = flatten(tree)
    if len(leaves) == 1 and leaves[0] is tree:
        return repr(tree)
    return (repr(spec), *[signature(leaf) for leaf in leaves])
