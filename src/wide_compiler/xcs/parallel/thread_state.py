"""Thread-local state that results depend on: carried to another thread, or a reason to stay in this one."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ...guards.modes import autocast_state, function_modes

Modes = tuple[bool, bool, list[tuple[str, Any]], tuple[torch.device, ...]]


def current_modes() -> Modes:
    """Gradients, inference, autocast and default devices of PyTorch in this thread."""
    casts = list(autocast_state())
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), casts, function_modes()


@contextlib.contextmanager
def modes(grad: bool, inference: bool, casts: list[tuple[str, Any]], devices: tuple) -> Iterator[None]:
    """The modes of another thread, in this one."""
    with contextlib.ExitStack() as stack:
        for default in devices:
            stack.enter_context(default)
        if inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(grad))
        for device, dtype in casts:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        yield


def flushing() -> bool:
    """Does this thread round denormal numbers to zero?"""
    return _smallest_normal * 0.5 == 0.0


_smallest_normal = sys.float_info.min


def saves_are_seen() -> bool:
    """Are there hooks in this thread for tensors that are saved for gradients?"""
    return _hooks(False) is not None


def saved_as_ever() -> bool:
    """Are such hooks neither present nor forbidden in this thread?"""
    return not saves_are_seen() and _hooks_allowed()


_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks  # its argument: even under a trace
_hooks_allowed: Any = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]
