"""Ops that write to their operands, on sharded values.

One mechanism: run the op's functional twin, then store the result where it belongs. DTensor's own in-
place ops are not used: they refuse what would change the placement, and know nothing of views of other
shards.
"""

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ..errors import UnsupportedError
from .corrections import Op
from .sharded import run_op
from .table import Ways
from .values import Value, local_of

aten = torch.ops.aten


def write_op(func: Op, args: tuple, kwargs: dict[str, Any], ways: Ways) -> Any:
    """Run a mutating op on `Value`s; the results (other than what was written) are DTensors."""
    written = [args[i] for i in written_positions(func) if args[i] is not None]
    if not written:  # a batch norm that keeps no statistics
        plain_args, plain_kwargs = tree_map_only(Value, Value.current, ((*args[:3], *args[5:]), kwargs))
        return run_op(aten._native_batch_norm_legit.no_stats, plain_args, plain_kwargs, ways)
    for value in written:
        value.reduced()
    if func is aten.copy_.default:
        ways.took("local")
        written[0].store(args[1].current())
        return None
    if (
        len(written) == 1
        and (torch.Tag.pointwise in func.tags or func in _FILLS)
        and _on_shards(func, written[0], args, kwargs)
    ):
        ways.took("local")
        written[0].root.writes += 1
        return None
    twin = functional_twin(func)
    plain_args, plain_kwargs = tree_map_only(Value, Value.current, (args, kwargs))
    if func in _UPDATES_STATISTICS:
        # Its twin returns the new statistics after its results.
        results = run_op(twin, plain_args, plain_kwargs, ways)
        for value, result in zip(written, results[-len(written) :], strict=True):
            value.store(result)
        return results[: len(results) - len(written)]
    written[0].store(run_op(twin, plain_args, plain_kwargs, ways))
    return None


def _on_shards(func: Op, target: Value, args: tuple, kwargs: dict[str, Any]) -> bool:
    """In place on each worker's own shard, if all operands are laid out alike."""
    if not target.aliases or any(isinstance(a, Value) for a in kwargs.values()):
        return False
    first = target.current()
    locals_ = []
    for a in args:
        if isinstance(a, list | tuple):
            return False
        if isinstance(a, Value):
            x = a.current()
            if x.placements != first.placements or x.shape != first.shape:
                return False
            locals_.append(local_of(x))
        else:
            locals_.append(a)
    func(*locals_, **kwargs)
    return True


@functools.cache
def written_positions(func: Op) -> tuple[int, ...]:
    """Which positional arguments an op writes to."""
    if func in _UPDATES_STATISTICS:
        return _UPDATES_STATISTICS[func]
    return tuple(
        i
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write and not argument.kwarg_only
    )


@functools.cache
def functional_twin(func: Op) -> Op:
    """`aten.add.Tensor` for `aten.add_.Tensor`."""
    if func in _TWINS:
        return _TWINS[func]
    packet = getattr(getattr(torch.ops, func.namespace), func._opname.removesuffix("_"), None)
    twin = getattr(packet, func._overloadname, None) if func._opname.endswith("_") else None
    if twin is None:
        raise UnsupportedError(f"{func} has no functional twin; write it as x.copy_(...) of the result")
    return twin


_FILLS = {aten.fill_.Scalar, aten.zero_.default}
_TWINS: dict[Op, Op] = {
    aten.native_batch_norm.default: aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.default: aten._native_batch_norm_legit_functional.default,
}
# Mutated operands, by position. The schema of native_batch_norm does not say that it writes.
_UPDATES_STATISTICS: dict[Op, tuple[int, ...]] = {
    aten.native_batch_norm.default: (3, 4),
    aten._native_batch_norm_legit.default: (3, 4),
}
