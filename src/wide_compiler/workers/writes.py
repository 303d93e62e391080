"""Ops that write to their operands, on sharded values.

Runs the op's functional variant, then stores the result; an op without one runs on whole copies of the
operands it writes, which are then stored. DTensor's in-place ops are not used: they reject changes of
placement and do not handle views of other shards.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from .dtensor_corrections import Op
from .sharded import replicated, run_op
from .sharded_value import ShardedValue, local_of, whole_of
from .worker_state import Ways

aten = torch.ops.aten


def write_op(func: Op, args: tuple, kwargs: dict[str, Any], ways: Ways) -> Any:
    """Run a mutating op on `ShardedValue`s; results other than written operands are DTensors."""
    written = written_values(func, args, kwargs)
    if not written and func in _UPDATES_STATISTICS:  # batch norm without running statistics
        plain_args, plain_kwargs = tree_map_only(
            ShardedValue, ShardedValue.current, ((*args[:3], *args[5:]), kwargs)
        )
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
    if twin is None or (len(written) > 1 and func not in _UPDATES_STATISTICS):
        ways.took("gathered")
        return write_gathered(func, args, kwargs)
    plain_args, plain_kwargs = tree_map_only(ShardedValue, ShardedValue.current, (args, kwargs))
    if func in _UPDATES_STATISTICS:
        # The functional variant returns the new statistics after its results.
        results = run_op(twin, plain_args, plain_kwargs, ways)
        for value, result in zip(written, results[-len(written) :], strict=True):
            value.store(result)
        return results[: len(results) - len(written)]
    written[0].store(run_op(twin, plain_args, plain_kwargs, ways))
    return None


def write_gathered(func: Op, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run a mutating op on whole copies and store what it wrote; returns its other results, replicated."""
    written = written_values(func, args, kwargs)
    mesh = written[0].reduced().device_mesh
    copies: dict[int, Tensor] = {}

    def whole(value: ShardedValue) -> Tensor:
        if id(value) not in copies:
            x = whole_of(value.reduced())
            new = torch.empty_strided(x.shape, value.dtensor.stride(), dtype=x.dtype, device=x.device)
            copies[id(value)] = new.copy_(x)
        return copies[id(value)]

    plain_args, plain_kwargs = tree_map_only(ShardedValue, whole, (args, kwargs))
    result = func(*plain_args, **plain_kwargs)
    for value in written:
        value.store(replicated(copies[id(value)], mesh))
    stored = {id(copies[id(value)]) for value in written}
    results = [r for r in (result if isinstance(result, tuple | list) else [result]) if isinstance(r, Tensor)]
    return [replicated(r, mesh) for r in results if id(r) not in stored]


def written_values(func: Op, args: tuple, kwargs: dict[str, Any]) -> list[ShardedValue]:
    """Return the operands that an op writes to."""
    return [v for v in written_operands(func, args, kwargs) if isinstance(v, ShardedValue)]


def written_operands(func: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    places = [args[i] for i in written_positions(func) if i < len(args)]
    return tree_leaves([*places, *[kwargs[name] for name in _written_names(func) if name in kwargs]])


@functools.cache
def _written_names(func: Op) -> tuple[str, ...]:
    """Return the arguments that an op writes to, by name."""
    return tuple(a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write)


def writes(func: Op) -> bool:
    return bool(written_positions(func) or _written_names(func))


def _on_shards(func: Op, target: ShardedValue, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Run the op in place on the local shards if all operands are laid out alike; returns whether it did."""
    if not target.aliases or any(isinstance(a, ShardedValue) for a in kwargs.values()):
        return False
    first = target.current()
    locals_ = []
    for a in args:
        if isinstance(a, list | tuple):
            return False
        if isinstance(a, ShardedValue):
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
    """Return the positional arguments that an op writes to."""
    if func in _UPDATES_STATISTICS:
        return _UPDATES_STATISTICS[func]
    return tuple(
        i
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write and not argument.kwarg_only
    )


@functools.cache
def functional_twin(func: Op) -> Op | None:
    """Return the functional variant of an in-place op, or None: `aten.add.Tensor` for `aten.add_.Tensor`."""
    if func in _TWINS:
        return _TWINS[func]
    packet = getattr(getattr(torch.ops, func.namespace), func._opname.removesuffix("_"), None)
    if packet is None or not func._opname.endswith("_"):
        return None
    wanted = [str(a.type) for a in func._schema.arguments]
    overloads = [getattr(packet, name) for name in packet.overloads()]
    alike = [o for o in overloads if [str(a.type) for a in o._schema.arguments] == wanted]
    return next((o for o in alike if o._overloadname == func._overloadname), alike[0] if alike else None)


_FILLS = {aten.fill_.Scalar, aten.zero_.default}
_TWINS: dict[Op, Op] = {
    aten.native_batch_norm.default: aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.default: aten._native_batch_norm_legit_functional.default,
}
# Mutated operands, by position. The schema of native_batch_norm does not declare its writes.
_UPDATES_STATISTICS: dict[Op, tuple[int, ...]] = {
    aten.native_batch_norm.default: (3, 4),
    aten._native_batch_norm_legit.default: (3, 4),
}
