"""The doors of a wide model: how its hooks run around each, and the arguments of `each` by lane."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..errors import InputError
from .replayed_call import CHANGED, hook_tables

# Which door a call has come through, on its way through nn.Module's hooks to `forward`.
_door: ContextVar[str] = ContextVar("door", default="packed")


def enter(model: Any, door: str, args: tuple, kwargs: dict) -> Any:
    """A call through a door other than `wide(packed)`, with the model's hooks around it."""
    # First of all, and in this order: the host is what a small model on a GPU waits for, and a trace must not
    # look further than at the first question.
    if not torch.compiler.is_dynamo_compiling() and model.replayed is not None and not kwargs:
        result = model.replayed.replay(args, door)
        if result is not CHANGED:
            return result
    if not any(hook_tables(model)):
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
    door = "packed" if torch.compiler.is_dynamo_compiling() else _door.get()
    if door != "packed":
        _door.set("packed")
    elif model.traced_door != "packed":  # traced, perhaps by a tracer that has given up since
        door, model.traced_door = model.traced_door, "packed"
    return door


@dataclass(frozen=True)
class LaneArguments:
    """The arguments of `each`, every one a list of one per lane."""

    args: tuple[Sequence[Any], ...]
    kwargs: dict[str, Sequence[Any]]
    n: int

    def check(self) -> None:
        for name, value in [*enumerate(self.args), *self.kwargs.items()]:
            if not isinstance(value, (list, tuple)) or len(value) != self.n:
                got = f"{len(value)} entries" if isinstance(value, (list, tuple)) else type(value).__name__
                raise InputError(
                    f"each: argument {name!r} must be a list of {self.n}, one per lane, got {got}"
                )

    def lane(self, lane: int) -> tuple[tuple, dict]:
        """The (args, kwargs) of one lane."""
        return tuple([a[lane] for a in self.args]), {k: v[lane] for k, v in self.kwargs.items()}

    def tensors(self) -> list[Tensor]:
        """Those of all lanes."""
        return [leaf for leaf in _tree.flatten((self.args, self.kwargs))[0] if isinstance(leaf, Tensor)]
