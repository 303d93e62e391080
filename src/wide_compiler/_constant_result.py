"""Marks for torch.compile that do not import torch.compile: that takes a second."""

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)


def constant_result(fn: Function) -> Function:
    """`torch.compiler.assume_constant_result` without its import of `torch._dynamo`.

    torch.compile calls `fn` while it traces and takes the result as a constant. Both set the same attribute;
    a test holds them against each other.
    """
    fn._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return fn
