"""Runs one op on DTensors: by DTensor's rule, else by the op's decomposition, else gathered.

Each way gives the values of one process. The way taken is counted, so that tests can check it.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, global_decomposition_table
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from .dtensor_corrections import INDEXING, OWN_RULES, PREPARE, WRONG_RULE, Op, beyond_rules
from .layout import shard_bounds
from .sharded_value import is_partial, local_of, reduced, whole_of, wrap
from .worker_state import Ways

_POST_AUTOGRAD = global_decomposition_table["post_autograd"]
_CORE = core_aten_decompositions()


def run_op(func: Op, args: tuple, kwargs: dict[str, Any], ways: Ways) -> Any:
    """Run a functional op (or a view op) on DTensors of one mesh; results are DTensors of that mesh."""
    if torch.Tag.pointwise in func.tags and not _averages(func):
        result = _pointwise_on_shards(func, args, kwargs)
        if result is not None:
            ways.took("local")
            return result
    if (func in INDEXING and beyond_rules(func, args[1])) or _any_empty(args):
        ways.took("gathered")
        return gathered(func, args, kwargs)
    if kwargs.get("dtype") is not None:
        args = tree_map_only(DTensor, reduced, args)  # rounding before the reduction would change the sum
    own = OWN_RULES.get(func)
    if own is not None:
        result = own(*args, **kwargs)
        if result is not NotImplemented:
            ways.took("own")
            return result
    prepare = PREPARE.get(func)
    if prepare is not None:
        args = prepare(args)
    signature = _signature(func, args, kwargs) if func in _without_rule else None
    way = _found.get(signature)
    if way is None and not _averages(func) and func not in WRONG_RULE:
        try:
            result = func(*args, **kwargs)
            if all(_fits_its_layout(r) for r in (result if isinstance(result, tuple | list) else [result])):
                ways.took("native")
                return _plainly_laid_out(result)
        except Exception as error:
            if not _viewed_out_of_order(error, args):
                _only_if_unsupported(error)
        _without_rule.add(func)
        signature = _signature(func, args, kwargs)
    if way != "gathered":
        inside = Ways()
        result = _decomposed(func, args, kwargs, inside)
        if result is not NotImplemented:
            _remember(signature, "decomposed")
            ways.took("gathered" if inside.total().get("gathered") else "decomposed")
            return result
    _remember(signature, "gathered")
    ways.took("gathered")
    return gathered(func, args, kwargs)


def _decomposed(func: Op, args: tuple, kwargs: dict[str, Any], ways: Ways) -> Any:
    """Run the op's decomposition, or return NotImplemented."""
    decompose = None if is_view(func) else _decomposition(func)
    first = next((x for x in tree_iter((args, kwargs)) if isinstance(x, DTensor)), None)
    if decompose is None or first is None:
        return NotImplemented
    try:
        with _Inside(first.device_mesh, ways):
            result = decompose(*args, **kwargs)
    except Exception as error:
        _only_if_unsupported(error)
        return NotImplemented
    if result is NotImplemented:
        return result
    return tree_map_only(Tensor, lambda t: _as_dtensor(t, first.device_mesh), result)


class _Inside(TorchDispatchMode):
    """Dispatch mode that runs the ops of a decomposition by `run_op`; plain tensors become replicated."""

    def __init__(self, mesh: DeviceMesh, ways: Ways) -> None:
        super().__init__()
        self.mesh, self.ways = mesh, ways

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(issubclass(t, DTensor) for t in types):
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, lambda t: _as_dtensor(t, self.mesh), (args, kwargs))
        if func._schema.is_mutable:
            return func(*args, **kwargs)
        return run_op(func, args, kwargs, self.ways)


def _as_dtensor(x: Tensor, mesh: DeviceMesh) -> DTensor:
    return x if isinstance(x, DTensor) else replicated(x, mesh)


# DTensor takes milliseconds to find that it has no rule, at each call; remember the ops concerned.
_without_rule: set[Op] = set()
_found: dict[Any, str] = {}


def _signature(func: Op, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return the cache key of the way (op, layouts, plain arguments), or None if it is not hashable."""

    def one(x: Any) -> Any:
        if isinstance(x, DTensor):
            return x._spec
        return tuple([one(v) for v in x]) if isinstance(x, list | tuple) else (type(x), x)

    key = (func, one(args), tuple([(name, one(value)) for name, value in kwargs.items()]))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _remember(signature: Any, way: str) -> None:
    if signature is not None:
        if len(_found) > 4096:
            _found.clear()
        _found[signature] = way


def _only_if_unsupported(error: Exception) -> None:
    """Raise the error unless it means that DTensor has no rule, which all workers find alike.

    Any other error may be one worker's alone; continuing there would mispair its collectives.
    """
    text = str(error)
    if isinstance(error, NotImplementedError) or any(known in text for known in _NO_RULE):
        return
    if isinstance(
        error, RuntimeError | AssertionError | ValueError | TypeError | IndexError
    ) and _in_propagation(error):
        return
    raise error


_NO_RULE = (
    "Sharding propagation failed",
    "not supported with DTensor",
    "got mixed torch.Tensor and DTensor",
    "Invalid scalar type",  # gloo rejects the dtype before anything is sent
)


def _in_propagation(error: BaseException) -> bool:
    """Return whether it was raised during sharding propagation, which sees shapes and layouts, not values."""
    trace = error.__traceback__
    while trace is not None:
        if "/distributed/tensor/_sharding_prop" in trace.tb_frame.f_code.co_filename:
            return True
        trace = trace.tb_next
    return False


def _viewed_out_of_order(error: Exception, args: tuple) -> bool:
    """Return whether a view failed because PyTorch 2.11 gathers shards without making them contiguous.

    All workers find that alike: the shards themselves are contiguous by now (`_prepare_view`).
    """
    return "view size is not compatible" in str(error) and args[0].is_contiguous()


def _plainly_laid_out(result: Any) -> Any:
    """Reduce partial results other than plain sums.

    The rules of many ops treat products, norms, extremes and masked sums as sums.
    """
    if not isinstance(result, DTensor):
        return (
            type(result)([_plainly_laid_out(r) for r in result]) if type(result) in (list, tuple) else result
        )
    partial = [p for p in result.placements if p.is_partial()]
    plain = all(type(p) is Partial and p.reduce_op == "sum" for p in partial)
    return result if plain else reduced(result)


def _fits_its_layout(x: Any) -> bool:
    """Return whether the local shard has the size its layout implies and no worker's shard is empty.

    Some of DTensor's rules are wrong, and every worker must reach the same verdict.
    """
    if not isinstance(x, DTensor) or not x.numel():
        return True
    place = x.device_mesh.get_coordinate()
    assert place is not None
    mine, last = list(x.shape), list(x.shape)
    for placement, count, at in zip(x.placements, x.device_mesh.shape, place, strict=True):
        if isinstance(placement, Shard):
            dim = placement.dim
            start, end = shard_bounds(mine[dim], count)[at]
            mine[dim] = end - start
            start, end = shard_bounds(last[dim], count)[-1]
            last[dim] = end - start
    return all(last) and list(local_of(x).shape) == mine


def _any_empty(args: Iterable[Any]) -> bool:
    """Return whether a DTensor operand is empty; DTensor's view rules then search for a layout forever."""
    for a in args:
        if isinstance(a, DTensor):
            if not a.numel():
                return True
        elif isinstance(a, list | tuple) and _any_empty(a):
            return True
    return False


@functools.cache
def _averages(func: Op) -> bool:
    """Return whether the op is a loss with a `reduction`.

    DTensor runs these per shard, so "mean" divides by the rows or weights of one shard. Their decompositions
    use sums and counts.
    """
    return any(a.name == "reduction" for a in func._schema.arguments)


@functools.cache
def is_view(func: Op) -> bool:
    """Return whether the results share memory with an operand that the op does not write to."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def gathered(func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run `func` on whole tensors on every worker; the results are replicated."""
    mesh: DeviceMesh | None = None

    def whole(x: DTensor) -> Tensor:
        nonlocal mesh
        mesh = x.device_mesh
        return whole_of(x).contiguous()

    args, kwargs = tree_map_only(DTensor, whole, (args, kwargs))
    result = func(*args, **kwargs)
    assert mesh is not None, "an op without tensors has nothing to gather"
    return tree_map_only(Tensor, lambda t: replicated(t, mesh), result)


def replicated(x: Tensor, mesh: DeviceMesh) -> DTensor:
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _pointwise_on_shards(func: Op, args: tuple, kwargs: dict[str, Any]) -> DTensor | None:
    """Run an elementwise op on shards of equal shape and placement, without a DTensor rule; None if unfit."""
    first = None
    for a in args:
        if isinstance(a, DTensor):
            if first is None:
                if is_partial(a):
                    return None
                first = a
            elif a.placements != first.placements or a.shape != first.shape or a.stride() != first.stride():
                return None
        elif isinstance(a, list | tuple):
            return None
    if first is None or any(isinstance(a, Tensor) for a in kwargs.values()):
        return None
    local = func(*[local_of(a) if isinstance(a, DTensor) else a for a in args], **kwargs)
    if not isinstance(local, Tensor):
        return None
    return wrap(local, first, first.shape, first.stride())


def _decomposition(func: Op) -> Callable | None:
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return func.decompose
    return _CORE.get(func) or _POST_AUTOGRAD.get(func)
