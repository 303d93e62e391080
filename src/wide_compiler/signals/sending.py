"""Data of this process to the workers: to each its part only, and again only if it has changed."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from ..observe import instruction_log
from ..workers.layout import Axes, fitting, part_of, places
from ..workers.memory import write_payload
from ..workers.stream import Mesh
from . import runtime, scope
from .plans import look_of
from .tensor import Home, Ref, SignalTensor


def put_on(x: Tensor, mesh: Mesh, axes: Axes) -> SignalTensor:
    """A plain tensor to workers: to each its part only."""
    engine = runtime.engine()
    x = x.detach().cpu()
    axes = fitting(x.shape, axes, mesh.shape)
    number = next(engine.ids)
    parts = [part_of(x, axes, mesh.shape, place) for place in places(mesh.shape)]
    dtype = str(x.dtype).removeprefix("torch.")
    contents = [
        (number, mesh.number, axes, tuple(x.shape), dtype, write_payload(part, engine.pool.payloads))
        for part in parts
    ]
    made = SignalTensor(
        Ref(engine, number, Home(mesh)), look_of(torch.empty(x.shape, dtype=x.dtype, device="meta"))
    )
    engine.record_each("put", contents, mesh, (number,))
    if instruction_log.active:
        instruction_log.create("put", number, mesh, axes, made._look)
    return made


def put(x: Tensor) -> SignalTensor:
    """A plain tensor to the active signal's workers, or to worker 0."""
    placement = scope.current()
    if placement is None:
        return put_on(x, runtime.engine().mesh((0,)), ())
    made = put_on(x, placement.mesh, placement.axes)
    made._ref.home.adopted = True
    return made


_sent: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
_copies: dict[tuple[int, int], tuple[int, SignalTensor]] = {}


def put_operand(x: Tensor, mesh: Mesh) -> SignalTensor:
    """A plain operand, replicated on the mesh. Sent again only if it has changed."""
    key = (id(x), mesh.number)
    known = _copies.get(key)
    if (
        known is not None
        and _sent.get(id(x)) is x
        and known[0] == x._version
        and not known[1]._ref.engine.closed
    ):
        return known[1]
    made = put_on(x, mesh, ())
    if not x.requires_grad and x.numel() > 1:
        _remember_copy(x, key, made)
    return made


def _remember_copy(x: Tensor, key: tuple[int, int], made: SignalTensor) -> None:
    try:
        version = x._version
    except RuntimeError:
        return  # inference tensors do not count their writes
    if _sent.get(id(x)) is not x:
        _sent[id(x)] = x
        weakref.finalize(x, _forget_copies, id(x))
    _copies[key] = (version, made)


def _forget_copies(number: int) -> None:
    for key in [k for k in _copies if k[0] == number]:
        del _copies[key]


def forget_all_copies() -> None:
    _copies.clear()
