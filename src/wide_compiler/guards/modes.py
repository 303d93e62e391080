"""The PyTorch modes around a call: autocast, default dtype and device, transforms, streams, precision.

These functions run at every call, so they use PyTorch's C functions rather than the Python wrappers.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext


def plain_world() -> bool:
    """Return whether no transform, forward-mode AD, trace, dispatch mode or function mode is active.

    The default device is the only function mode allowed. Forward-mode AD is excluded because most wide
    strategies would drop tangents.
    """
    return (
        _transform() is None
        and forward_ad._current_level < 0
        and _dispatch_modes() == 0
        and _trace() is None
        and (_function_modes() == 0 or all(isinstance(mode, torch.device) for mode in function_modes()))
    )


def in_backward() -> bool:
    """Return whether this thread runs inside a backward pass; False in a trace."""
    return not torch.compiler.is_dynamo_compiling() and torch._C._current_graph_task_id() != -1


@contextlib.contextmanager
def no_inference_mode() -> Iterator[None]:
    """Turn inference mode off and keep the grad mode (leaving inference mode alone enables gradients)."""
    gradients = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(gradients):
        yield


def function_modes() -> tuple[Any, ...]:
    """Return the active torch function modes: a device for a default device, otherwise the mode's class."""
    count = _function_modes()
    if not count:
        return ()
    modes = map(torch._C._get_function_stack_at, range(count))
    return tuple(mode.device if type(mode) is DeviceContext else type(mode) for mode in modes)


def defaults() -> tuple[Any, ...]:
    """Return what decides how new tensors are made: the default dtype (unless float32) and function modes."""
    dtype = torch.get_default_dtype()
    modes = function_modes()
    return modes if dtype is torch.float32 else (dtype, *modes)


def ambient_modes() -> tuple[Any, ...]:
    """Return the modes that a capture depends on: autocast, default dtype and device, function modes."""
    return autocast_state(), defaults()


def capturing() -> bool:
    """Return whether a CUDA graph is being captured; synchronising with the GPU is then forbidden."""
    return torch.cuda.is_initialized() and torch._C._cuda_isCurrentStreamCapturing()


def current_stream() -> tuple[int, int, int]:
    """Return the current CUDA stream as (stream id, device index, device type)."""
    return torch._C._cuda_getCurrentStream(torch._C._cuda_getDevice())


def autocast_state() -> tuple[Any, ...]:
    """Return (device type, dtype) for each device type with autocast enabled."""
    if not _autocast():
        return ()
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds)


def precision(kinds: tuple[str, ...] = ("cuda", "mkldnn")) -> tuple[Any, ...]:
    """Return the precision of float32 operations for each backend in `kinds`."""
    return tuple(_precision(kind, op) for kind in kinds for op in ("all", "matmul", "conv"))


def launch_settings() -> tuple[Any, ...]:
    """Return the settings that kernels read at launch and that a recorded CUDA graph keeps."""
    try:
        precisions: Any = _matmul_precision(), _convolution_tf32()
    except RuntimeError:  # PyTorch refuses to read the old flags when they disagree with the new ones
        precisions = precision(("cuda",))
    inference = torch.is_inference_mode_enabled()
    return precisions, _cudnn_benchmark(), _deterministic(), inference, _device()


def launch_state() -> tuple[Any, ...]:
    """Return the launch settings, modes and CUDA stream that a call of a model depends on.

    What `TensorGuard` checks is left out. This runs at every call of a small model, so it is written for
    speed.
    """
    try:
        precisions: Any = _matmul_precision(), _convolution_tf32()
    except RuntimeError:  # as in `launch_settings`
        precisions = precision(("cuda",))
    return (
        precisions, _cudnn_benchmark(), _deterministic(), _grad_enabled(), _capturing(), _stream(_device()),
        _autocast() and autocast_state(), _transform(), forward_ad._current_level, _dispatch_modes(),
        _function_modes() and function_modes(), _trace(),
    )  # fmt: skip


# Looked up once, because attribute lookup is part of every call.
_transform: Any = torch._C._functorch.peek_interpreter_stack  # torch.func's vmap, grad, ...
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack  # fake tensors, make_fx, a profiler of ops
_function_modes: Any = torch._C._len_torch_function_stack
_trace: Any = torch._C._get_tracing_state
_autocast: Any = torch._C._is_any_autocast_enabled
_precision: Any = torch._C._get_fp32_precision_getter
# The last three exist in CUDA builds of PyTorch only.
_matmul_precision: Any = torch._C._get_float32_matmul_precision
_convolution_tf32: Any = torch._C._get_cudnn_allow_tf32
_cudnn_benchmark: Any = torch._C._get_cudnn_benchmark
_deterministic: Any = torch._C._get_deterministic_algorithms
_grad_enabled: Any = torch.is_grad_enabled
_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_stream: Any = getattr(torch._C, "_cuda_getCurrentStream", None)
_device: Any = getattr(torch._C, "_cuda_getDevice", None)
