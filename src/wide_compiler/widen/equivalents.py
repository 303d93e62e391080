"""Equivalent forms of an op: without its write, or decomposed into smaller ops.

An op without a rule is tried in these forms before the loop over lanes.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..capture.aliases import is_written
from .classify import op_name
from .fallbacks import vmap_over_lanes


@functools.cache
def functional_of(op: Any) -> Any | None:
    """Return the functional form of an op that writes and returns its first argument: `aten.abs.default` for
    `aten.abs_.default`. None if there is none."""
    returns, arguments = op._schema.returns, op._schema.arguments
    writes = [a for a in arguments if is_written(a)]
    if len(returns) != 1 or writes != arguments[:1] or not op_name(op).endswith("_"):
        return None
    return _overload(op, op_name(op)[:-1])


@functools.cache
def view_of(op: Any) -> Any | None:
    """Return the view form of an op: `aten.permute.default` for `aten.permute_copy.default`."""
    return _overload(op, op_name(op).removesuffix("_copy")) if op_name(op).endswith("_copy") else None


def _overload(op: Any, name: str) -> Any | None:
    """Return the overload of another op in the same namespace with the same argument types."""
    packet = getattr(getattr(torch.ops, op.namespace), name, None)
    for overload in packet.overloads() if packet is not None else ():
        candidate = getattr(packet, overload)
        if _kinds(candidate) == _kinds(op):
            return candidate
    return None


def _kinds(op: Any) -> list[tuple[str, bool]]:
    return [(str(a.type), a.kwarg_only) for a in op._schema.arguments]


@functools.cache
def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """Return a function of the op's arguments that computes it from smaller ops; None if there is none."""
    from torch._decomp import decomposition_table  # slow to import, and rarely needed

    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return op.decompose
    return decomposition_table.get(op)


def vmap_parts_over_lanes(op: Any, wide: tuple[bool, ...], *args: Any, **kwargs: Any) -> Any:
    """`vmap_over_lanes` of an op's decomposition."""
    # torch.compile can trace the op, but not into its composite kernel.
    form = None if torch.compiler.is_dynamo_compiling() else decomposition_of(op)
    return vmap_over_lanes(form or op, wide, *args, **kwargs)
