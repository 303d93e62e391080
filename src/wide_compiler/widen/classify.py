"""Small questions about values and ops that several files of this room ask."""

import operator
from typing import Any

import torch
from torch import fx

from .builder import LaneScalar, Val

# Ops whose result is unset memory: nothing to compare.
_UNSET = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}


def op_name(op: Any) -> str:
    """`softmax` for `aten.softmax.int`; '' for anything that is no registered op."""
    return op._schema.name.split("::")[-1] if hasattr(op, "_schema") else ""


def is_wide(value: Any) -> bool:
    return isinstance(value, LaneScalar) or value.wide


def is_random(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def is_unset(op: Any) -> bool:
    return op_name(op) in _UNSET


def is_size(op: Any) -> bool:
    """Reads a size: no computation, so it is not counted as one."""
    return op_name(op).startswith("sym_")


def used_results(node: fx.Node) -> set[int] | None:
    """Which of an op's several results are read at all; None for all."""
    if node.users and all(user.target is operator.getitem for user in node.users):
        return {user.args[1] for user in node.users}  # type: ignore[misc]
    return None


def wide_flags(tree: Any) -> tuple[bool, ...]:
    """For each leaf of nested arguments, in order: does it carry lanes?"""
    if isinstance(tree, (Val, LaneScalar)):
        return (is_wide(tree),)
    if isinstance(tree, (list, tuple)):
        return tuple(f for item in tree for f in wide_flags(item))
    if isinstance(tree, dict):
        return tuple(f for item in tree.values() for f in wide_flags(item))
    return (False,)
