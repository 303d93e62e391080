"""Moves tensors between meshes: copies for an op, parameters for good, gradients to their parameters."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from ..observe import instruction_log
from ..workers.layout import Axes, fitting
from ..workers.stream import Mesh
from ..workers.transfer import wire_axis
from . import scope
from .op_plans import contiguous
from .tensor import SignalTensor, new_handle


def consider_adoption(t: SignalTensor) -> None:
    """Place a parameter or buffer by the first context that uses it, unless views of it exist."""
    home = t._ref.home
    if not home.hooked and getattr(t, "_is_param", False):
        _welcome_parameter(t)
    if home.parameter and not home.adopted:
        placement = scope.current()
        if placement is not None and torch._C._current_graph_task_id() == -1:
            if home.mesh != placement.mesh and home.refs == 1:
                adopt_handle(t, placement)
            home.adopted = True


def _welcome_parameter(p: SignalTensor) -> None:
    """Register a parameter when first seen: from now on its gradients are laid out like it."""
    home = p._ref.home
    home.parameter = home.hooked = True
    placement = scope.current()
    if home.adopted and placement is not None and home.mesh == placement.mesh and home.refs == 1:
        # Created inside the context, as data; now apply the signal's placement of parameters.
        if any(axis is not None for axis in placement.parameters) and placement.parameters != placement.axes:
            adopt_handle(p, placement)
        else:
            gather_for_use(p, placement)
    if p.requires_grad and p.is_leaf:
        weak = weakref.ref(p)
        p.register_hook(lambda grad: _settled(grad, weak()))


def _settled(grad: Tensor, p: SignalTensor | None) -> Tensor | None:
    """Return the gradient on its parameter's mesh and in its layout, or None if it is already."""
    if p is None or not isinstance(grad, SignalTensor):
        return None
    mesh = p._ref.home.mesh
    moved = grad if grad._ref.home.mesh == mesh else move(grad, mesh, ())
    settled = laid_out_as(moved, p)
    return None if settled is grad else settled


def laid_out_as(x: SignalTensor, p: SignalTensor) -> SignalTensor:
    """Return x, which is on the parameter's mesh, in the parameter's layout."""
    mesh = p._ref.home.mesh
    if len(mesh.workers) == 1:
        return x
    numbers = (x._ref.number, p._ref.number)
    settled = new_handle(p._ref.engine, mesh, x._tensor_meta)
    number = settled._ref.number
    p._ref.engine.record("settle", (number, *numbers), mesh.workers, "settle", numbers, (number,))
    return settled


def adopt_handle(t: SignalTensor, placement: scope.Placement) -> None:
    """Move a parameter or buffer itself to where the signal places parameters."""
    mesh = placement.mesh
    copy = spread(t, mesh, placement.parameters if isinstance(t, torch.nn.Parameter) else ())
    home, new = t._ref.home, copy._ref
    old_number, old_mesh = t._ref.number, home.mesh
    # The handle and everything that shares its id change together.
    t._ref.number, new.number = new.number, old_number
    home.mesh, new.home.mesh = mesh, old_mesh
    home.adopted = True
    gather_for_use(t, placement)


def gather_for_use(t: SignalTensor, placement: scope.Placement) -> None:
    """Mark a parameter to be gathered for ops that use it, if the signal says so."""
    if placement.gathers and isinstance(t, torch.nn.Parameter):
        ref = t._ref
        content = (ref.number, placement.gathers)
        ref.engine.record("gather", content, ref.home.mesh.workers, "gather", (ref.number,))


def move(t: SignalTensor, mesh: Mesh, axes: Axes) -> SignalTensor:
    """Return a copy on another mesh, sharded along `axes` unless a shard would be empty."""
    engine, meta = t._ref.engine, t._tensor_meta
    source = t._ref.home.mesh
    axes = fitting(meta.shape, axes, mesh.shape)
    wire = wire_axis(meta.shape, source.shape, mesh.shape, axes[0])
    made = new_handle(engine, mesh, contiguous(meta.shape, meta.dtype))
    number = made._ref.number
    workers = tuple(sorted({*source.workers, *mesh.workers}))
    content = (
        number, t._ref.number, source.number, mesh.number, axes, wire, meta.shape, str(meta.dtype)[6:]
    )  # fmt: skip
    engine.record("move", content, workers, "move", (t._ref.number,), (number,))
    if instruction_log.active:
        instruction_log.move(t._ref.number, number, source, mesh, axes, meta)
    return made


def spread(t: SignalTensor, mesh: Mesh, axes: Axes) -> SignalTensor:
    """Return a copy of `t` on `mesh`, sharded along `axes` unless a shard would be empty."""
    if t._ref.home.mesh != mesh:
        return move(t, mesh, axes)
    engine = t._ref.engine
    axes = fitting(t.shape, axes, mesh.shape)
    made = new_handle(engine, mesh, contiguous(t.shape, t.dtype))
    number = made._ref.number
    content = (number, t._ref.number, mesh.number, axes)
    engine.record("spread", content, mesh.workers, "spread", (t._ref.number,), (number,))
    return made
