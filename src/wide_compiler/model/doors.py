"""The doors of a wide model: how its hooks run around each, and the arguments of `each` by lane."""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from ..errors import InputError

# Which door a call has come through, on its way through nn.Module's hooks to `forward`.
_door: ContextVar[str] = ContextVar("door", default="packed")

LaneArguments = list[tuple[tuple, dict]]


def enter(model: Any, door: str, args: tuple, kwargs: dict) -> Any:
    """A call through a door other than `wide(packed)`, with the model's hooks around it."""
    if not _has_hooks(model):
        return model._through(door, args, kwargs)
    if torch.compiler.is_dynamo_compiling():  # a tracer follows attributes, but no context variable
        model.traced_door = door
        return model(*args, **kwargs)
    token = _door.set(door)
    try:
        return model(*args, **kwargs)
    finally:
        _door.reset(token)


def entered_door(model: Any) -> str:
    """The door of the call that has reached `forward`; what the forward calls in turn enters anew."""
    if torch.compiler.is_dynamo_compiling():
        door, model.traced_door = model.traced_door, "packed"
        return door
    door = _door.get()
    if door != "packed":
        _door.set("packed")
    return door


def _has_hooks(model: nn.Module) -> bool:
    return bool(
        model._forward_hooks
        or model._forward_pre_hooks
        or model._backward_hooks
        or model._backward_pre_hooks
        or module_hooks._global_forward_hooks
        or module_hooks._global_forward_pre_hooks
        or module_hooks._global_backward_hooks
        or module_hooks._global_backward_pre_hooks
    )


def lane_arguments(args: Sequence[Any], kwargs: dict[str, Any], n: int) -> LaneArguments:
    """The arguments of `each`, each a list of one per lane, as (args, kwargs) of every lane."""
    for name, value in [*enumerate(args), *kwargs.items()]:
        if not isinstance(value, (list, tuple)) or len(value) != n:
            got = f"{len(value)} entries" if isinstance(value, (list, tuple)) else type(value).__name__
            raise InputError(f"each: argument {name!r} must be a list of {n}, one per lane, got {got}")
    return [(tuple([a[i] for a in args]), {k: v[i] for k, v in kwargs.items()}) for i in range(n)]
