"""Entry points of a wide model (packed, each, stacked, shared): hooks, and arguments of `each` per lane."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..errors import InputError
from .replayed_call import CHANGED, hook_tables

# Entry point of the current call, carried through nn.Module's hooks to `forward`.
_door: ContextVar[str] = ContextVar("door", default="packed")


def enter(model: Any, door: str, args: tuple, kwargs: dict) -> Any:
    """Call the model through an entry point other than `wide(packed)`, with the model's hooks."""
    # The order of these checks matters: host time dominates a small model on a GPU, and a trace must stop at
    # the first condition.
    if not torch.compiler.is_dynamo_compiling() and model.replayed is not None and not kwargs:
        result = model.replayed.replay(args, door)
        if result is not CHANGED:
            return result
    if not any(hook_tables(model)):
        return model._through(door, args, kwargs)
    if torch.compiler.is_dynamo_compiling():  # dynamo traces attributes but not context variables
        model.traced_door = door
        return model(*args, **kwargs)
    token = _door.set(door)
    try:
        return model(*args, **kwargs)
    finally:
        _door.reset(token)


def entered_door(model: Any) -> str:
    """Return the entry point of the call that reached `forward`, and reset it for nested calls."""
    door = "packed" if torch.compiler.is_dynamo_compiling() else _door.get()
    if door != "packed":
        _door.set("packed")
    elif model.traced_door != "packed":  # left by a trace, perhaps an aborted one
        door, model.traced_door = model.traced_door, "packed"
    return door


@dataclass(frozen=True)
class LaneArguments:
    """Arguments of `each`: every argument is a sequence of N, one per lane."""

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
        """Return (args, kwargs) of one lane."""
        return tuple([a[lane] for a in self.args]), {k: v[lane] for k, v in self.kwargs.items()}

    def tensors(self) -> list[Tensor]:
        """Return the tensors of all lanes."""
        return [leaf for leaf in _tree.flatten((self.args, self.kwargs))[0] if isinstance(leaf, Tensor)]
