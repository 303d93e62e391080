"""Support for tensors whose values are outside this process, such as those of `signals`.

Such a class has `memory_id`, a number that tensors with shared memory have in common; `cpu()`, which returns
the values; and optionally `lane_runner`.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

_OWN = (Tensor, nn.Parameter)


def memory_id(tensor: Tensor) -> int | None:
    """Return the memory id of a tensor outside this process; None for one inside."""
    return None if type(tensor) in _OWN else getattr(tensor, "memory_id", None)


def lane_runner(graph: Any, lanes: list[bool], arguments: list[Any], n: int) -> Callable[..., Any] | None:
    """Return a function that runs a lane graph where its arguments are, or None if not supported.

    `lanes`: which of the arguments have a lane axis.
    """
    kinds = [type(a) for a in arguments if isinstance(a, Tensor) and memory_id(a) is not None]
    make = getattr(kinds[0], "lane_runner", None) if kinds else None
    return None if make is None else make(graph, lanes, arguments, n)


def address(tensor: Tensor) -> int:
    """Return `data_ptr()`, or the memory id of a tensor outside this process."""
    number = memory_id(tensor)
    return tensor.data_ptr() if number is None else number


def to_local(tensor: Tensor) -> Tensor:
    """Return the tensor, or a detached local copy if it is outside this process."""
    return tensor if memory_id(tensor) is None else tensor.detach().cpu()
