"""Isolation from transforms, traces, modes and hooks around a call, for building programs.

The first call of its kind may happen inside `torch.func.grad`, `torch.vmap`, activation checkpointing or
`torch.export`. Its tensors are then wrappers or fakes, and every op would be recorded. All of this state is
per thread.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from ..guards.modes import function_modes, no_inference_mode

_functorch: Any = torch._C._functorch
_autograd: Any = torch._C._autograd
_set_tracing_state: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]


@contextlib.contextmanager
def isolated_from_transforms() -> Iterator[None]:
    """Context manager without torch's transforms, traces, modes and hooks.

    Gradient mode, autocast, the default device and users' function modes stay, since a program may depend on
    them.
    """
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack  # slow import

    with (
        no_inference_mode(),
        temporarily_clear_interpreter_stack(),
        _disable_current_modes(),
        torch._guards.tracing(None),
        _no_function_modes_of_torch(),
        no_saved_tensors_hooks(),
        _no_jit_trace(),
        _kept_export_state(),
    ):
        yield


def _is_users(kind: type) -> bool:
    return kind.__module__.split(".")[0] != "torch"


def kept_function_modes() -> tuple[Any, ...]:
    """Return the modes kept by `isolated_from_transforms`: a default device, or the class of the mode."""
    return tuple(m for m in function_modes() if isinstance(m, torch.device) or _is_users(m))


@contextlib.contextmanager
def _no_function_modes_of_torch() -> Iterator[None]:
    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        for mode in reversed(modes):  # the default device and users' modes stay
            if type(mode) is DeviceContext or _is_users(type(mode)):
                torch._C._push_on_torch_function_stack(mode)
        yield
    finally:
        for _ in range(torch._C._len_torch_function_stack()):
            torch._C._pop_torch_function_stack()
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


@contextlib.contextmanager
def no_saved_tensors_hooks() -> Iterator[None]:
    """Context manager without saved-tensor hooks; activation checkpointing counts saved tensors by them."""
    hooks = []
    while (top := _autograd._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextlib.contextmanager
def _no_jit_trace() -> Iterator[None]:
    state = torch._C._get_tracing_state()
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)


@contextlib.contextmanager
def _kept_export_state() -> Iterator[None]:
    """Context manager that restores module variables of `torch.export`, which a nested export clears."""
    from torch.export import _trace

    names = ("_EXPORT_FLAGS", "_EXPORT_MODULE_HIERARCHY")
    noted = {name: getattr(_trace, name) for name in names if getattr(_trace, name, None) is not None}
    try:
        yield
    finally:
        vars(_trace).update(noted)


def is_plain(tensor: Tensor) -> bool:
    """Return whether the tensor holds data, without a transform, a trace or a tangent."""
    if _functorch.is_functorch_wrapped_tensor(tensor) or _has_no_numbers(tensor):
        return False
    return forward_ad._current_level < 0 or forward_ad.unpack_dual(tensor).tangent is None


def _has_no_numbers(tensor: Tensor) -> bool:
    """Return whether it is a fake tensor of a trace."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return False
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(tensor, (FakeTensor, FunctionalTensor))


def stand_in(tensor: Tensor, learns: bool) -> Tensor:
    """Return a plain tensor with the metadata of `tensor` and one example of its values, invented for fakes.

    Call it only inside `isolated_from_transforms`.
    """
    batch_dims = []
    while _functorch.is_functorch_wrapped_tensor(tensor):
        batch_dims.append(_functorch.maybe_get_bdim(tensor))
        tensor = _functorch.get_unwrapped(tensor)
    for batch_dim in reversed(batch_dims):  # each indexes the tensor inside its wrapper
        tensor = tensor.select(batch_dim, 0) if batch_dim >= 0 else tensor
    if _has_no_numbers(tensor):
        return made_up(tuple(map(int, tensor.shape)), tensor.dtype, tensor.device, learns)
    if forward_ad._current_level >= 0:
        tensor = forward_ad.unpack_dual(tensor).primal
    with torch.enable_grad():  # a non-leaf, since in-place ops on leaves fail
        return tensor.detach().requires_grad_(learns).clone()


def made_up(shape: Any, dtype: torch.dtype, device: torch.device, learns: bool) -> Tensor:
    """Return values that most forwards accept: distinct floats, zeros for integers (may be indices)."""
    count = math.prod(shape)
    if dtype == torch.bool:  # alternating, so that no mask is empty
        return (torch.arange(count, device=device) % 2 == 0).view(shape)
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype, device=device)
    values = torch.linspace(-1, 1, max(count, 1)).sin()[:count].view(shape)
    return values.to(device, dtype).requires_grad_(learns)


def plain_call(call: Any) -> Any:
    """Return the call with stand-ins for tensors that are not plain."""

    def plain(leaf: Any) -> Any:
        needs = isinstance(leaf, Tensor) and (leaf.is_inference() or not is_plain(leaf))
        return stand_in(leaf, leaf.requires_grad) if needs else leaf

    return replace(call, leaves=[plain(leaf) for leaf in call.leaves])


@contextlib.contextmanager
def plain_states(places: Sequence[Any], stand_ins: set[str]) -> Iterator[None]:
    """Context manager with stand-ins for tensors that are not plain; their paths are in `stand_ins`."""
    swapped = [(place, place.home.get(place.name)) for place in places]
    swapped = [(place, tensor) for place, tensor in swapped if tensor is not None and not is_plain(tensor)]
    try:
        for place, tensor in swapped:
            place.home[place.name] = stand_in(tensor, tensor.requires_grad)
            stand_ins.add(place.path)
        yield
    finally:
        stand_ins.clear()
        for place, tensor in swapped:
            place.home[place.name] = tensor
