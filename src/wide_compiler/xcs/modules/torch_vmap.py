"""The rung "torch vmap": one PyTorch function or module over tensors of one shape, by `torch.func.vmap`."""

import contextlib
import operator
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..exceptions import raise_interrupt
from ..lanes.results import BLOCK_BYTES
from ..proof.class_tables import TENSORS
from ..work import Bail, Work
from .trial import examine, finite, no_gradients, storage

BATCH_BYTES = 2**28


def able(work: Work) -> bool:
    """Return whether a loop variable is a tensor, and the body has no condition and no events."""
    if work.cond is not None or work.events or work.site.config.exact or not TENSORS.holds():
        return False
    return any(type(c) is Tensor or type(c[0]) is Tensor for c in work.items.columns)


def mapped(work: Work) -> list[Any]:
    """Return the values of all items in order, in disjoint memory. Raises `Bail`."""
    examine(work)
    gathered = [_gathered(c) for c in work.items.columns]
    finite(gathered)
    dims = tuple(0 if type(g) is Tensor else None for g in gathered)
    try:
        # vmap warns about operators without a batching rule. Checked for new signatures only:
        # `catch_warnings` makes Python forget which warnings were already shown.
        with warnings.catch_warnings(action="error") if work.new else contextlib.nullcontext():
            run = torch.func.vmap(work.body, in_dims=dims, randomness="error", chunk_size=_at_once(work))
            out = run(*gathered)
    except Exception as error:
        raise_interrupt(error)
        raise Bail(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None
    leaves = out if type(out) is tuple else (out,)
    no_gradients(leaves)
    finite(leaves)
    _check_memory(leaves, gathered)
    return apart(out, work.items.n)


def _at_once(work: Work) -> int | None:
    """Return the number of items per vmap call (None for all), which limits memory."""
    of_one = work.plan.memory["bytes of an item"]
    return None if of_one * work.items.n <= BATCH_BYTES else max(BATCH_BYTES // of_one, 1)


def _check_memory(leaves: Iterable[Any], gathered: list[Any]) -> None:
    """Raise `Bail` unless each result has its own memory and is contiguous per item."""
    used = {storage(g) for g in gathered if type(g) is Tensor}
    for leaf in leaves:
        if type(leaf) is not Tensor:
            continue
        if storage(leaf) in used or leaf.stride(0) == 0:
            raise Bail("a result shares memory with an item or another result")
        if not leaf[0].is_contiguous():
            raise Bail("a result is not contiguous")
        used.add(storage(leaf))


def _gathered(column: Any) -> Any:
    if type(column) is Tensor:
        _check_items([column[0]])
        return column
    first = column[0]
    if type(first) is not Tensor:
        if all(c is first for c in column):
            return first
        raise Bail(f"items of type {type(first).__name__} beside tensors")
    _check_items(column)
    if any(map(Tensor.is_inference, column)) and not torch.is_inference_mode_enabled():
        raise Bail("inference tensors outside of inference mode")
    try:
        return torch.stack(list(column))  # checks shapes and devices
    except RuntimeError:
        raise Bail("tensors of different shapes or devices") from None


def _check_items(tensors: Sequence[Tensor]) -> None:
    if tensors[0].dim() == 0:
        raise Bail("tensors with 0 dimensions, for which type promotion differs")
    check_alike(tensors)


def check_alike(tensors: Sequence[Tensor]) -> None:
    """Raise `Bail` unless all tensors are dense, of one dtype, and contiguous.

    Stacking would promote them to a common dtype, but checks devices and shapes itself.
    """
    first = tensors[0]
    if len(tensors) > 1 and len(set(map(_look, tensors))) > 1:
        raise Bail("tensors of different data types or layouts")
    if first.layout is not torch.strided or first.is_nested:
        raise Bail("sparse or nested tensors")
    if not all(map(Tensor.is_contiguous, tensors)):
        raise Bail("a tensor is not contiguous, so results of the loop would not be either")


_data = cast(Any, Tensor.data).__get__
_look = operator.attrgetter("dtype", "requires_grad", "layout")


def apart(out: Any, n: int) -> list[Any]:
    """Split stacked results [n, ...] into n rows with separate version counters, so that autograd treats
    them as independent tensors."""
    if type(out) is Tensor:
        out = out.contiguous()  # results of single items usually are; the comparison detects others
        if out.nbytes > BLOCK_BYTES:  # one row must not keep all of it alive
            return [row.clone() for row in out.unbind(0)]
        if out.dim() > 1 and out.numel():  # creates separate version counters, not views
            lanes, rows, *rest = out.shape
            return list(torch.unsafe_split_with_sizes(out.view(-1, *rest), [rows] * lanes))
        return list(map(_data, out.unbind(0)))
    if type(out) is tuple:
        return list(zip(*[apart(o, n) for o in out], strict=True))
    raise Bail(f"a result of type {type(out).__name__}")
