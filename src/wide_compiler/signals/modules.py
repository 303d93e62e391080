"""Ordinary modules on the workers: `adopt`, and modules that meet a handle or a signal for the first time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ..global_hooks import HARMLESS
from ..workers.layout import Axes
from ..workers.stream import Mesh
from . import runtime, scope
from .moving import gather_for_use
from .sending import put_on
from .tensor import SignalTensor


def adopt(module: nn.Module) -> nn.Module:
    """Move a module's parameters and buffers to the workers, in place: optimisers that hold them go on.

    Laid out as the active signal says of parameters; outside any context on worker 0, from where the first
    context that uses them takes them.
    """
    for part in module.modules():
        _adopt_own(part)
    return module


def _adopt_own(module: nn.Module) -> None:
    if isinstance(module, nn.RNNBase):
        # It holds its weights by weak references, and what is held so cannot be swapped. The list is there
        # for the next one who asks whether weights were replaced, and made anew.
        module._flat_weight_refs = []
    _adopt_tensors(module)
    if isinstance(module, nn.RNNBase):
        module._flat_weight_refs = [w if w is None else weakref.ref(w) for w in module._flat_weights]


def _adopt_tensors(module: nn.Module) -> None:
    for tensors in (module._parameters, module._buffers):
        for x in tensors.values():
            if x is not None and not isinstance(x, SignalTensor):
                _swap(x)
            if isinstance(x, SignalTensor):
                x._ref.home.parameter = True


def _swap(x: Tensor) -> None:
    """Move `x` to where the active signal says parameters go, else to worker 0."""
    placement = scope.current()
    if placement is None:
        swap(x, runtime.engine().mesh((0,)), (), adopted=False)
        return
    swap(x, placement.mesh, placement.parameters if isinstance(x, nn.Parameter) else (), adopted=True)
    assert isinstance(x, SignalTensor)
    gather_for_use(x, placement)


def swap(x: Tensor, mesh: Mesh, axes: Axes, adopted: bool) -> None:
    """`x` keeps its identity and becomes a handle. adopted: it stays on this mesh."""
    handle: Tensor = put_on(x, mesh, axes)
    assert isinstance(handle, SignalTensor)
    handle._ref.home.parameter = True
    handle._ref.home.adopted = adopted
    grad = x.grad
    if isinstance(x, nn.Parameter):
        handle = nn.Parameter(handle, x.requires_grad)
    else:
        handle.requires_grad_(x.requires_grad)
    torch.utils.swap_tensors(x, handle)
    if grad is not None:
        x.grad = grad if isinstance(grad, SignalTensor) else put_on(grad, mesh, axes)


def _before_forward(module: nn.Module, inputs: Any) -> None:
    """A module that is called with handles, or inside a signal's context, lives on the workers from now
    on."""
    plain = [
        x
        for x in (*module._parameters.values(), *module._buffers.values())
        if x is not None and not isinstance(x, SignalTensor)
    ]
    if plain and any(isinstance(x, SignalTensor) for x in inputs):
        _adopt_own(module)


HARMLESS.append(_before_forward)  # it looks for handles among the inputs, and finds none
runtime.while_running.append(lambda: nn.modules.module.register_module_forward_pre_hook(_before_forward))
