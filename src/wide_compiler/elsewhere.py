"""Tensors whose values lie outside of this process, as those of `signals` do: how the rest meets them.

Such a class has `memory_id`, a number that tensors which share memory have in common; its `cpu()` gives the
values; and it may have `lane_runner`.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

_OWN = (Tensor, nn.Parameter)


def memory_id(tensor: Tensor) -> int | None:
    """Which memory it lies in, if that is not of this process; else None."""
    return None if type(tensor) in _OWN else getattr(tensor, "memory_id", None)


def lane_runner(graph: Any, lanes: list[bool], arguments: list[Any], n: int) -> Callable[..., Any] | None:
    """What runs a lane graph where its arguments lie, if its class has a `lane_runner` and that takes it.

    lanes: which of the arguments have a lane axis.
    """
    kinds = [type(a) for a in arguments if isinstance(a, Tensor) and memory_id(a) is not None]
    make = getattr(kinds[0], "lane_runner", None) if kinds else None
    return None if make is None else make(graph, lanes, arguments, n)


def address(tensor: Tensor) -> int:
    """`data_ptr()`, or what stands for it where the values lie elsewhere."""
    number = memory_id(tensor)
    return tensor.data_ptr() if number is None else number


def here(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of its values if they lie elsewhere; outside autograd then."""
    return tensor if memory_id(tensor) is None else tensor.detach().cpu()
