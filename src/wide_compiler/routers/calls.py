"""Arguments of several towers, and what ran earlier calls that look alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _tree
from ..guards.modes import ambient_modes
from ..guards.tensors import LookGuard
from ..model.program import Call
from ..model.routes import Routes

_grad_enabled = torch.is_grad_enabled
# Types of arguments besides tensors that a cache key may contain, by value.
_CONSTANTS = (type(None), bool, int, float, str)


def tensors_in(values: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return the plain tensors among the arguments."""
    return tuple([x for x in values if type(x) is Tensor])


def _constants_in(values: Sequence[Any]) -> list[tuple[int, Any]]:
    """(index, constant) of the other arguments, see `_constant`."""
    return [(i, _constant(x)) for i, x in enumerate(values) if type(x) is not Tensor]


def _constant(x: Any) -> Any:
    """Return type and value of a constant as text (-0.0 == 0.0, True == 1); None for anything else."""
    return (type(x), str(x)) if type(x) in _CONSTANTS else None


class SameLook:
    """A fast check whether other calls look like this one.

    They do if they have tensors of the same metadata and equal constants, under the same modes.
    """

    def __init__(self, args: tuple, kwargs: dict):
        values = (*args, *kwargs.values())
        self.count, self.keywords, self.constants = len(args), tuple(kwargs), _constants_in(values)
        self.guard = LookGuard(tensors_in(values))
        self.grad, self.modes = torch.is_grad_enabled(), ambient_modes()

    def holds(self, args: tuple, kwargs: dict) -> bool:
        """Return whether this call looks like the first one."""
        if len(args) != self.count or tuple(kwargs) != self.keywords:
            return False
        values = (*args, *kwargs.values()) if kwargs else args
        if self.constants:
            if _constants_in(values) != self.constants:
                return False
            values = tensors_in(values)
        return self.guard.holds(values) and _grad_enabled() is self.grad and ambient_modes() == self.modes


class KnownCall(NamedTuple):
    """An earlier call and what ran it; `circumstances` are what else the answer depends on."""

    circumstances: Any
    look: SameLook
    answer: Any


class KnownCalls:
    """What ran earlier calls of plain tensors and constants.

    A call like the latest is found by one fast check, others by their key. This does not affect results, so
    all instances are equal, and a copy starts empty.
    """

    __slots__ = ("known", "latest")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.known = Routes()
        self.latest: KnownCall | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnownCalls)

    def __reduce__(self) -> Any:
        return type(self), ()

    def find(self, circumstances: Any, args: tuple, kwargs: dict) -> Any:
        """Return what ran an earlier call that looks like this one; None if there is none."""
        latest = self.latest
        if latest is not None and latest[0] == circumstances and latest[1].holds(args, kwargs):
            return latest[2]
        key = _key(circumstances, args, kwargs)
        known = None if key is None else self.known.get(key)
        if known is None or not known.look.holds(args, kwargs):
            return None
        self.latest = known
        return known.answer

    def keep(self, circumstances: Any, args: tuple, kwargs: dict, answer: Any) -> None:
        """Remember what ran this call, if it has a key."""
        key = _key(circumstances, args, kwargs)
        self.latest = None
        if key is not None:
            self.latest = self.known[key] = KnownCall(circumstances, SameLook(args, kwargs), answer)

    def clear(self) -> None:
        self.known.clear()
        self.latest = None


def _key(circumstances: Any, args: tuple, kwargs: dict) -> Any:
    """Cache key of a call with plain tensors and constants; None for any other call."""
    looks = [_look(x) for x in (*args, *kwargs.values())]
    if None in looks or not tensors_in((*args, *kwargs.values())):
        return None
    return (circumstances, len(args), *kwargs, *looks, torch.is_grad_enabled(), ambient_modes())


def _look(x: Any) -> Any:
    if type(x) is not Tensor:
        return _constant(x)
    return None if x.is_nested else (x.shape, x.dtype, x.device, x.requires_grad)


def first_that(known: list[Any], holds: Callable[[Any], bool]) -> Any:
    """Return the first entry that holds, moved to the front; None if there is none."""
    for position, entry in enumerate(known):
        if holds(entry):
            if position:
                known.insert(0, known.pop(position))
            return entry
    return None


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
        """Return a call with the same arguments for every lane."""
        call = call_of(args, kwargs)
        tensors = call.tensors
        own = lambda: cls.shared(*_tree.tree_map(without_history, (args, kwargs)))  # noqa: E731
        return cls(call, lambda lane: (args, kwargs), tensors, lambda: tensors, own)

    def some(self, lanes: list[int]) -> "Calls":
        """Return the call restricted to some of the lanes that run."""
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


def call_of(args: tuple, kwargs: dict) -> Call:
    """Return a call whose tensors have no lanes."""
    leaves, spec = _tree.flatten((args, kwargs))
    wide = (False,) * sum(isinstance(leaf, Tensor) for leaf in leaves)
    return Call(leaves, spec, wide, _tree.signature((args, kwargs)))


def without_history(x: Any) -> Any:
    return x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
