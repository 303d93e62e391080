"""Ordinary modules on the workers: `adopt`, and adoption when a module first meets a handle or a signal."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_iter, tree_map_only

from ..errors import UsageError
from ..global_hooks import HARMLESS
from ..workers.layout import Axes
from ..workers.stream import Mesh
from . import runtime, scope
from .moving import gather_for_use, laid_out_as
from .sending import put, put_on
from .tensor import SignalTensor, respread


def adopt(module: nn.Module) -> nn.Module:
    """Move a module's parameters and buffers to the workers, in place, so optimisers keep working.

    Placed as the active signal says for parameters; outside any context on worker 0, from where the first
    context that uses them moves them. Returns the module.
    """
    for part in module.modules():
        _adopt_own(part)
    return module


def _adopt_own(module: nn.Module) -> None:
    if isinstance(module, nn.RNNBase):
        # RNNBase holds its weights by weak references, and tensors with weak references cannot be swapped.
        # The attribute must exist, because PyTorch reads it to see whether weights were replaced; it is
        # rebuilt below.
        module._flat_weight_refs = []
    for name, x in (*module._parameters.items(), *module._buffers.items()):
        if x is not None and _is_plain(x):
            _swap(x, f"{type(module).__name__}.{name}")
        if isinstance(x, SignalTensor):
            x._ref.home.parameter = True
    if isinstance(module, nn.RNNBase):
        module._flat_weight_refs = [w if w is None else weakref.ref(w) for w in module._flat_weights]


def _swap(x: Tensor, name: str) -> None:
    """Move `x` to where the active signal places parameters, else to worker 0."""
    placement = scope.current()
    if placement is None:
        swap(x, runtime.engine().mesh((0,)), (), name, adopted=False)
        return
    axes = placement.parameters if isinstance(x, nn.Parameter) else ()
    swap(x, placement.mesh, axes, name, adopted=True)
    gather_for_use(x, placement)  # type: ignore[arg-type]


def swap(x: Tensor, mesh: Mesh, axes: Axes, name: str, adopted: bool) -> None:
    """Make the plain tensor `x` a handle, keeping its identity. adopted: it stays on this mesh."""
    handle = put_on(x, mesh, axes)
    handle._ref.home.parameter = True
    handle._ref.home.adopted = adopted
    grad = x.grad
    become(x, handle, name)
    if grad is not None:
        x.grad = grad if isinstance(grad, SignalTensor) else put_on(grad, mesh, axes)


def become(x: Tensor, handle: Tensor, name: str) -> None:
    """Make the plain tensor `x` a handle, for all references to it."""
    if isinstance(x, nn.Parameter):
        handle = nn.Parameter(handle, x.requires_grad)
    else:
        handle.requires_grad_(x.requires_grad)
    hooks = x._backward_hooks, x._post_accumulate_grad_hooks
    try:
        torch.utils.swap_tensors(x, handle)
    except RuntimeError as error:
        raise UsageError(
            f"{name} cannot go to the workers now: a graph that is still alive, or a weak reference, "
            f"holds it ({error}); "
            "call signals.adopt(model) before the first forward, or drop that loss first"
        ) from None
    if hooks[0] is not None:  # assigned again, as autograd's own list of them went with the plain tensor
        x._backward_hooks = hooks[0]
    if hooks[1] is not None:
        x._post_accumulate_grad_hooks = hooks[1]


def _is_plain(x: Any) -> bool:
    """Return whether x is an ordinary dense tensor of this process, whose values can be sent."""
    return (
        type(x) in (Tensor, nn.Parameter)
        and x.layout == torch.strided
        and x.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


listener = runtime.Listener()  # called with each module that is called


def _before_forward(module: nn.Module, args: tuple) -> tuple | None:
    """Adopt a module called with handles or inside a signal's context.

    Inside a context, the tensors among its arguments are sent to the workers too.
    """
    if torch.compiler.is_dynamo_compiling():  # must come first: a trace must not execute the rest
        return None
    if listener.hear is not None:
        listener.hear(module)
    placement = scope.current()
    # A global forward hook does not receive keyword arguments; read them from the caller, which passes them
    # on.
    kwargs = sys._getframe(1).f_locals.get("kwargs") or {}
    if placement is None and not _called_with_handles(args, kwargs):
        return None
    if (
        torch.compiler.is_compiling()  # torch.export
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    ):
        return None
    own = (*module._parameters.values(), *module._buffers.values())
    if any(x is not None and _is_plain(x) for x in own):
        _adopt_own(module)
    if placement is None or all(x.__class__ is SignalTensor for x in (*args, *kwargs.values())):
        return None
    for name, value in kwargs.items():
        kwargs[name] = _all_placed(value)
    return _all_placed(tuple(args))


def _called_with_handles(args: tuple, kwargs: dict[str, Any]) -> bool:
    if any(x.__class__ is SignalTensor for x in args):
        return True
    return any(isinstance(x, SignalTensor) for x in tree_iter((args, kwargs)))


def _all_placed(batch: Any) -> Any:
    return tree_map_only(
        (Tensor, PackedSequence), _placed, batch, is_leaf=lambda x: isinstance(x, PackedSequence)
    )


def _placed(x: Any) -> Any:
    """Place a plain tensor by the signal; differentiable."""
    if isinstance(x, PackedSequence):  # recurrent layers read its other fields here
        return x._replace(data=_placed(x.data))
    if not _is_plain(x):
        return x
    return respread(x, scope.current()) if x.requires_grad else put(x)


def _states_follow(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Place an optimiser's state like its parameter, also if it was loaded or created before."""
    for p, state in optimizer.state.items():
        if type(p) is SignalTensor:
            for name, value in state.items():
                if type(value) is Tensor and name != "step" and value.shape == p._tensor_meta.shape:
                    state[name] = laid_out_as(put_on(value, p._ref.home.mesh, ()), p)


class _DataOfHandles:
    """While workers run, makes `x.data = handle` turn a plain `x` into a handle.

    PyTorch would use the handle's storage, which has no data, as that of `x`.
    """

    def __init__(self) -> None:
        Tensor.data = _DATA  # type: ignore[assignment,method-assign]

    def remove(self) -> None:
        del Tensor.data


_own_data: Any = torch._C.TensorBase.__dict__["data"]


def _data(x: Tensor) -> Tensor:
    return _own_data.__get__(x)


def _set_data(x: Tensor, value: Tensor) -> None:
    if isinstance(value, SignalTensor) and not isinstance(x, SignalTensor):
        become(x, value.detach(), "a tensor whose .data is set")
    else:
        _own_data.__set__(x, value)


_DATA = property(_data, _set_data)
HARMLESS.append(_DATA)  # identical to PyTorch's for plain tensors
HARMLESS.append(_before_forward)  # outside contexts it only looks for handles among the inputs
_hook_forwards: Any = nn.modules.module.register_module_forward_pre_hook
runtime.while_running.append(lambda: _hook_forwards(_before_forward))
runtime.while_running.append(lambda: register_optimizer_step_pre_hook(_states_follow))
runtime.while_running.append(_DataOfHandles)
