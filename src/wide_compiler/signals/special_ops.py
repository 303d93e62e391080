"""Ops with special handling: aliases, ops answered from the handle itself, and unsupported ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import UnsupportedError
from .tensor import SignalTensor

aten = torch.ops.aten
Op = torch._ops.OpOverload
Handler = Callable[[Op, tuple, dict[str, Any]], Any]


def _alias(func: Op, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """Return another handle of the same id."""
    return SignalTensor(args[0]._ref, args[0]._tensor_meta)


def _scalar(func: Op, args: tuple, kwargs: dict[str, Any]) -> Any:
    return args[0].fetch().item()


def _foreach(func: Op, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run a `_foreach_` op one tensor at a time, because the tensors may be on different meshes."""
    name = func._opname.removeprefix("_foreach_")
    inplace = name.endswith("_")
    count = len(args[0])
    packet = getattr(aten, name)
    results = []
    for i in range(count):
        row = [a[i] if isinstance(a, list | tuple) and len(a) == count else a for a in args]
        named = {k: a[i] if isinstance(a, list | tuple) and len(a) == count else a for k, a in kwargs.items()}
        if name.startswith(("addcmul", "addcdiv")) and len(row) == 4:
            named["value"] = row.pop()  # positional only in the _foreach_ form
        results.append(packet(*row, **named))
    return None if inplace else results


def _turn(func: Op, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """Run an in-place view op such as `t_`: the tensor takes the id and `TensorMeta` of the view."""
    x = args[0]
    view = _VIEWS[func](*args, **kwargs)
    with no_dispatch():
        func(*args, **kwargs)  # on the handle, which has only a shape
    x._ref, x._tensor_meta = view._ref, view._tensor_meta
    return x


def _unscale(func: Op, args: tuple, kwargs: dict[str, Any]) -> None:
    """Run `GradScaler.unscale_` for gradients on any workers, writing to the scaler's own flag."""
    gradients, found, inverse = args
    scale = inverse if isinstance(inverse, SignalTensor) else inverse.item()
    infinite: Any = None
    for gradient in gradients:
        flag = gradient.isfinite().logical_not().any()
        infinite = flag if infinite is None else infinite.logical_or(flag)
        gradient.mul_(scale)
    if infinite is not None:
        found.copy_(
            found.bool().logical_or(infinite if isinstance(found, SignalTensor) else infinite.fetch())
        )


def _pack(func: Op, args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Run `pack_padded_sequence`: the rows are on the workers, the batch sizes stay in this process.

    Recurrent layers read the batch sizes here.
    """
    x, lengths, batch_first = args
    with _disable_current_modes():
        lengths = lengths.fetch() if isinstance(lengths, SignalTensor) else lengths
        sizes = (lengths > torch.arange(int(lengths[0])).unsqueeze(1)).sum(1)
        batch = x.shape[0] if batch_first else x.shape[1]
        index = torch.cat([step * batch + torch.arange(int(size)) for step, size in enumerate(sizes)])
    steps = x.transpose(0, 1) if batch_first else x
    return steps.flatten(0, 1).index_select(0, index), sizes


def special_handler(func: Op) -> Handler | None:
    """Return the op's special handler, or None; raises UnsupportedError for unsupported ops."""
    if func._opname.startswith("_foreach_"):
        return _foreach
    _refuse(func)
    if func.namespace not in ("aten", "prims"):
        return _written_in_python(func)
    if func not in _HANDLERS and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    ):
        # Below autograd and in inference mode a composite op arrives undecomposed, and its schema may declare
        # a copy as a view (`to`, `reshape`).
        return lambda func, args, kwargs: func.decompose(*args, **kwargs)
    return _HANDLERS.get(func)


def _written_in_python(func: Op) -> Handler:
    """Return a handler that calls the Python function of a `torch.library.custom_op` on the handles."""
    definition: Any = OPDEFS.get(f"{func.namespace}::{func._opname}")
    if definition is None:
        raise UnsupportedError(
            f"{func}: workers know PyTorch's own ops and those made with torch.library.custom_op; "
            "fetch the operands "
            "first with x.cpu()"
        )
    function = definition._backend_fns.get("cpu", definition._init_fn)
    return lambda func, args, kwargs: function(*args, **kwargs)


def _refuse(func: Op) -> None:
    if (torch.Tag.inplace_view in func.tags and func not in _VIEWS) or func in _REFUSED:
        raise UnsupportedError(
            f"{func} changes the shape or the memory of a tensor that lives on workers; use the form that "
            "returns a new tensor"
        )
    if func._opname.startswith("_fused_"):
        raise UnsupportedError(f"{func}: fused optimisers are not for tensors on workers; pass fused=False")


_REFUSED = {aten.set_.source_Tensor, aten.set_.source_Storage, aten.resize_.default, aten.set_.default}


_VIEWS: dict[Op, Op] = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
}
_HANDLERS: dict[Op, Handler] = {
    **dict.fromkeys(_VIEWS, _turn),
    aten.detach.default: _alias,
    aten.alias.default: _alias,
    aten.lift_fresh.default: _alias,
    aten._local_scalar_dense.default: _scalar,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    aten._pack_padded_sequence.default: _pack,
    aten.is_same_size.default: lambda func, args, kwargs: args[0].shape == args[1].shape,
    aten.is_pinned.default: lambda func, args, kwargs: False,
}
