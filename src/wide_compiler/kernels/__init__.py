"""GPU kernels over lanes, written in Triton.

The modules with kernels import triton, so callers import them only where `available()` is True.
"""

from torch import Tensor

from ._triton import available, precision, supports

__all__ = ["available", "can_run", "precision", "supports"]


def can_run(*tensors: Tensor) -> bool:
    """Return whether the kernels can run on these tensors on this machine."""
    return available() and supports(*tensors)
