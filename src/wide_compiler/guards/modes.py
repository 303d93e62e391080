"""What surrounds a call: whether it may be measured or replayed, and on what its kernels depend.

Asked at every call, so the plain C functions are asked, not the Python around them.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext


def plain_world() -> bool:
    """No transform, no mode, no trace around the call: tensors and functions are what they seem. None of them
    may have a tangent either, which most ways of going wide would drop."""
    return (
        _transform() is None
        and forward_ad._current_level < 0
        and _dispatch_modes() == 0
        and _trace() is None
        and (_function_modes() == 0 or all(isinstance(mode, torch.device) for mode in function_modes()))
    )


@contextlib.contextmanager
def no_inference_mode() -> Iterator[None]:
    """Inference mode is off; gradients are recorded or not as before (leaving it switches them on)."""
    gradients = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(gradients):
        yield


def function_modes() -> tuple[Any, ...]:
    """What stands between a call of PyTorch's functions and the functions: the default device where one is
    set, and the class of anybody's mode, which may do something else instead."""
    count = _function_modes()
    if not count:
        return ()
    modes = map(torch._C._get_function_stack_at, range(count))
    return tuple(mode.device if type(mode) is DeviceContext else type(mode) for mode in modes)


def defaults() -> tuple[Any, ...]:
    """The default dtype, unless it is float32, and the modes above: what a new tensor becomes."""
    dtype = torch.get_default_dtype()
    modes = function_modes()
    return modes if dtype is torch.float32 else (dtype, *modes)


def ambient_modes() -> tuple[Any, ...]:
    """What a capture bakes in of its surroundings: autocast, default dtype and device, function modes."""
    return autocast_state(), defaults()


def capturing() -> bool:
    """Is somebody recording a CUDA graph? Then nothing may wait for the GPU."""
    return torch.cuda.is_initialized() and torch._C._cuda_isCurrentStreamCapturing()


def current_stream() -> tuple[int, int, int]:
    """Stream, device and kind of the stream that kernels go to."""
    return torch._C._cuda_getCurrentStream(torch._C._cuda_getDevice())


def autocast_state() -> tuple[Any, ...]:
    """For each kind of device under autocast: which, and to what dtype."""
    if not _autocast():
        return ()
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds)


def precision(kinds: tuple[str, ...] = ("cuda", "mkldnn")) -> tuple[Any, ...]:
    """With how many digits float32 is multiplied, on each kind of device."""
    return tuple(_precision(kind, op) for kind in kinds for op in ("all", "matmul", "conv"))


def launch_settings() -> tuple[Any, ...]:
    """What kernels read when they are launched, and a recording therefore holds."""
    precisions: tuple[Any, ...]
    try:
        precisions = torch._C._get_float32_matmul_precision(), torch._C._get_cudnn_allow_tf32()
    except RuntimeError:  # the old flags cannot be read once the new ones disagree
        precisions = precision(("cuda",))
    return (
        precisions,
        torch._C._get_cudnn_benchmark(),
        torch._C._get_deterministic_algorithms(),
        torch.is_inference_mode_enabled(),
        torch._C._cuda_getDevice(),
    )


def launch_state() -> tuple[Any, ...]:
    """The settings, and who launches where: all that surrounds a call of a model on CUDA.

    Without what a `TensorGuard` sees. Asked for each call of a small model, so written for speed.
    """
    try:
        return (
            _matmul_precision(),
            _convolution_tf32(),
            _cudnn_benchmark(),
            _deterministic(),
            _grad_enabled(),
            _capturing(),
            _stream(_device()),
            _autocast() and autocast_state(),
            _transform(),
            forward_ad._current_level,
            _dispatch_modes(),
            _function_modes() and function_modes(),
            _trace(),
        )
    except RuntimeError:
        settled = launch_settings(), _grad_enabled(), _capturing(), current_stream()
        return (
            *settled,
            autocast_state(),
            _transform(),
            forward_ad._current_level,
            _dispatch_modes(),
            function_modes(),
            _trace(),
        )


# Looked up once.
_transform: Any = torch._C._functorch.peek_interpreter_stack  # torch.func's vmap, grad, ...
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack  # fake tensors, make_fx, a profiler of ops
_function_modes: Any = torch._C._len_torch_function_stack
_trace: Any = torch._C._get_tracing_state
_autocast: Any = torch._C._is_any_autocast_enabled
_precision: Any = torch._C._get_fp32_precision_getter
# Only builds of PyTorch for CUDA have the last three.
_matmul_precision: Any = torch._C._get_float32_matmul_precision
_convolution_tf32: Any = torch._C._get_cudnn_allow_tf32
_cudnn_benchmark: Any = torch._C._get_cudnn_benchmark
_deterministic: Any = torch._C._get_deterministic_algorithms
_grad_enabled: Any = torch.is_grad_enabled
_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_stream: Any = getattr(torch._C, "_cuda_getCurrentStream", None)
_device: Any = getattr(torch._C, "_cuda_getDevice", None)
