"""Own GPU kernels over lanes, in Triton. Their modules are imported where they are used: they need triton."""

from torch import Tensor

from ._triton import available, precision, supports

__all__ = ["available", "can_run", "precision", "supports"]


def can_run(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors here and now."""
    return available() and supports(*tensors)
