"""Small predicates on values and ops, shared by the files of this folder."""

import operator
from typing import Any

import torch
from torch import fx

from ..capture.confirm import UNSET
from .builder import LaneScalar, Val, leaves_in

_SPARSE = {"sparse", "sparse_grad"}

# Ops that share or resize storage; as_strided and similar ops are recognised by their arguments.
_LAYOUT = {"set_", "set", "resize", "resize_", "resize_as_", "resize_as"}


def op_name(op: Any) -> str:
    """`softmax` for `aten.softmax.int`; '' for anything that is not a registered op."""
    return op._schema.name.split("::")[-1] if hasattr(op, "_schema") else ""


def is_wide(value: Any) -> bool:
    return isinstance(value, LaneScalar) or value.wide


def is_random(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def draws(node: fx.Node) -> bool:
    """Return whether this node draws random numbers; attention and dropout do so only with a dropout rate."""
    if not is_random(node.target):
        return False
    target: Any = node.target
    named = dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    if "dropout_p" in named or op_name(node.target) == "scaled_dot_product_attention":
        return bool(named.get("dropout_p", 0.0))
    if "dropout" in named:  # recurrent networks
        return bool(named["dropout"]) and bool(named.get("train", True))
    return bool(named.get("train", named.get("training", True)))


def depends_on_values(op: Any, args: Any) -> bool:
    """Return whether the result is a Python number, or has a shape, that depends on the lane's values."""
    if torch.Tag.data_dependent_output in getattr(op, "tags", ()):
        return True
    if torch.Tag.dynamic_output_shape not in getattr(op, "tags", ()):
        return False
    if op_name(op) in ("index", "_unsafe_index"):
        return any(i is not None and i.wide and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if op_name(op) == "one_hot":
        return len(args) < 2 or args[1] == -1
    return True


def with_dense_gradient(op: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments without sparse gradients, which slices of a stacked tensor cannot have."""
    names = [argument.name for argument in op._schema.arguments]
    dense = [False if name in _SPARSE else arg for name, arg in zip(names, args, strict=False)]
    return tuple(dense), {name: False if name in _SPARSE else arg for name, arg in kwargs.items()}


def reads_layout(op: Any) -> bool:
    """Return whether the op uses strides or offsets of memory, which differ for a lane's slice."""
    if op_name(op) in _LAYOUT:
        return True
    return any(argument.name == "storage_offset" for argument in op._schema.arguments)


def is_unset(op: Any) -> bool:
    return op_name(op) in UNSET


def is_size(op: Any) -> bool:
    """Return whether the op reads a size; such ops are not counted as computation."""
    return op_name(op).startswith("sym_")


def used_results(node: fx.Node) -> set[int] | None:
    """Return the indices of an op's results that are used; None for all."""
    if node.users and all(user.target is operator.getitem for user in node.users):
        return {user.args[1] for user in node.users}  # type: ignore[misc]
    return None


def wide_flags(tree: Any) -> tuple[bool, ...]:
    """For each leaf of nested arguments, in order, whether it carries lanes."""
    return tuple(isinstance(x, (Val, LaneScalar)) and is_wide(x) for x in leaves_in(tree))
