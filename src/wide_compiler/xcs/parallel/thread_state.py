"""What belongs to a thread and decides about results: taken along to another one, or a reason to stay."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ...guards.modes import autocast_state, function_modes


@contextlib.contextmanager
def modes(
    grad: bool, inference: bool, casts: list[tuple[str, Any]], devices: tuple[torch.device, ...]
) -> Iterator[None]:
    """The thread-local modes of PyTorch, as they are where the function was called."""
    with contextlib.ExitStack() as stack:
        for default in devices:
            stack.enter_context(default)
        if inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(grad))
        for device, dtype in casts:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        yield


def current_modes() -> tuple[bool, bool, list[tuple[str, Any]], tuple[torch.device, ...]]:
    casts = list(autocast_state())
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), casts, function_modes()


def flushing() -> bool:
    """Does this thread take the smallest numbers for zero?"""
    return _smallest * 0.5 == 0.0


_smallest = sys.float_info.min  # of normal numbers: its half is none


def saves_are_seen() -> bool:
    """Does somebody here see what PyTorch saves for gradients?"""
    return _hooks(False) is not None


def saved_as_ever() -> bool:
    """Does nobody here see, or forbid to see, what PyTorch saves for gradients?"""
    return not saves_are_seen() and _hooks_allowed()


_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks  # its argument: even under a trace
_hooks_allowed: Any = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]
