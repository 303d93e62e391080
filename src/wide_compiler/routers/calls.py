"""Arguments of several towers, and cache keys of calls."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..guards.modes import ambient_modes
from ..guards.tensors import LookGuard
from ..model.program import Call

_grad_enabled = torch.is_grad_enabled
# Types of arguments besides tensors that a cache key may contain, by value.
_CONSTANTS = (type(None), bool, int, float, str)


def plain_look(args: tuple, kwargs: dict) -> tuple[Any, ...] | None:
    """Cache key of a call with plain tensors only, with the ambient modes; None for any other call."""
    tensors = (*args, *kwargs.values())
    if not all(type(x) is Tensor and not x.is_nested for x in tensors):
        return None
    looks = [(x.shape, x.dtype, x.device, x.requires_grad) for x in tensors]
    return (len(args), *kwargs, *looks, torch.is_grad_enabled(), ambient_modes())


def constants_in(args: tuple, kwargs: dict) -> tuple[Any, ...] | None:
    """(index, type, value) of the arguments that are plain constants; None if an argument is neither a
    constant nor a tensor."""
    values = (*args, *kwargs.values())
    found = tuple([(i, type(x), x) for i, x in enumerate(values) if type(x) is not Tensor])
    return found if all(kind in _CONSTANTS for _, kind, _ in found) else None


def tensors_in(args: tuple, kwargs: dict) -> tuple[Tensor, ...]:
    """The tensors among the arguments."""
    return tuple([x for x in (*args, *kwargs.values()) if type(x) is Tensor])


class SameLook:
    """A fast check whether other calls have the same `plain_look` as this one."""

    def __init__(self, args: tuple, kwargs: dict):
        self.count, self.keywords = len(args), tuple(kwargs)
        self.guard = LookGuard((*args, *kwargs.values()))
        self.grad, self.modes = torch.is_grad_enabled(), ambient_modes()

    def holds(self, args: tuple, kwargs: dict) -> bool:
        """Whether this call has the same cache key."""
        return (
            len(args) == self.count
            and tuple(kwargs) == self.keywords
            and self.guard.holds((*args, *kwargs.values()) if kwargs else args)
            and _grad_enabled() is self.grad
            and ambient_modes() == self.modes
        )


@dataclass
class Calls:
    """One call of some lanes.

    Attributes:
        call: the leaves of (args, kwargs); tensors are `[n, ...]` where lanes have their own.
        for_lane: returns the arguments of the i-th lane that runs.
        sources: the tensors as given by the caller.
        gather: builds the call's tensors from `sources` again, to measure the cost.
        alone: returns the same call on detached tensors, for measuring: if one tensor was computed from
            another, a backward to both would run through the ops between them. None uses the call as it is.
    """

    call: Call
    for_lane: Callable[[int], tuple[tuple, dict]]
    sources: list[Tensor]
    gather: Callable[[], list[Tensor]]
    alone: "Callable[[], Calls] | None" = None

    @classmethod
    def shared(cls, args: tuple, kwargs: dict) -> "Calls":
        """A call with the same arguments for every lane."""
        leaves, spec = _tree.flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        call = Call(leaves, spec, (False,) * len(tensors), _tree.signature((args, kwargs)))
        own = lambda: cls.shared(*_tree.tree_map(without_history, (args, kwargs)))  # noqa: E731
        return cls(call, lambda lane: (args, kwargs), tensors, lambda: tensors, own)

    def some(self, lanes: list[int]) -> "Calls":
        """The call restricted to some of the lanes that run."""
        flags = iter(self.call.wide)
        leaves = [
            (torch.stack([x[lane] for lane in lanes]) if next(flags) else x) if isinstance(x, Tensor) else x
            for x in self.call.leaves
        ]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        call = replace(self.call, leaves=leaves)
        alone = self.alone
        own = None if alone is None else lambda: alone().some(lanes)
        return Calls(call, lambda i: self.for_lane(lanes[i]), tensors, lambda: tensors, own)


def without_history(x: Any) -> Any:
    return x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
