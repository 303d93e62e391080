"""A tape that stands: kept from one call to the next while all that the body reads is the same.

A tape does not know how the body came to its steps. But the body is pure, and whatever it reads outside of
its items lies on a path that the guards fetch at every call. If each path still leads to the same number or
text, or to the same array with the same contents, and the items look the same, then the body would take the
same steps again.
"""

import operator
import types
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..look import column_look
from ..proof.guards import Guards
from ..proof.kinds import CONSTANTS, is_numpy_scalar
from ..work import Work

if TYPE_CHECKING:
    from .part_tape import PartTape

MOST_BYTES = 2**16  # of arrays that are compared at each call, and of those that a tape holds
# Of these the guards check the type, and have a path for each of their attributes, cells and defaults that is
# read.
CALLABLES = (types.FunctionType, types.MethodType)
OF_PYTORCH = (torch.Tensor, torch.nn.Module)


class Standing:
    """A tape, what was read when it was made, and how the items looked."""

    def __init__(self, tape: "PartTape", arrays: int, reads: "Reads", looks: list[Any]):
        self.tape, self.arrays, self.reads, self.looks = tape, arrays, reads, looks

    @staticmethod
    def of(work: Work, tape: "PartTape", arrays: int) -> "Standing | None":
        """None if it cannot be told next time whether all is the same."""
        if work.seen is None or not tape.is_of_lanes or _bytes(tape.constants) > MOST_BYTES:
            return None
        reads = Reads.of(work.plan.guards, work.seen)
        return None if reads is None else Standing(tape, arrays, reads, _looks(work))


def standing(work: Work) -> Standing | None:
    """The tape of an earlier call, if this one reads the same."""
    if work.stands is None:  # not asked yet
        kept: Standing | None = work.plan.memory.get("standing")
        same = kept is not None and work.seen is not None and kept.reads.same(work.seen)
        work.stands = kept if same else False
    return work.stands or None


def again(work: Work) -> bool:
    """Would all steps be those of an earlier call, on items that look the same?"""
    kept = standing(work)
    return kept is not None and kept.looks == _looks(work)


def forget(work: Work) -> None:
    work.plan.memory.pop("standing", None)


def _looks(work: Work) -> list[Any]:
    return list(map(column_look, work.items.columns))


def keep(work: Work, tape: "PartTape", arrays: int) -> None:
    """For calls to come. A plan that has no use for it is not asked again."""
    memory = work.plan.memory
    if work.seen is not None and memory.get("standing", work) is not None:
        memory["standing"] = Standing.of(work, tape, arrays)


class Reads:
    """What the paths of some guards led to. No object of the user's is kept alive by it."""

    def __init__(self) -> None:
        self.constants: list[tuple[int, Any]] = []
        self.arrays: list[tuple[int, weakref.ref[np.ndarray], Any, bytes]] = []
        self.objects: list[int] = []  # paths to anything: the body may ask what is what
        self.pattern: list[int] = []  # which of these lead to the same object

    @staticmethod
    def of(guards: Guards, seen: Sequence[Any]) -> "Reads | None":
        made = Reads()
        for slot, (fetch, _, _) in enumerate(guards.steps):
            if guards.vector[slot]:
                if fetch != "item":
                    return None  # items with parts of their own
                continue
            identical = fetch == "const" or guards.checks.get(slot, ("",))[0] == "is"
            if not identical and not made._add(slot, seen[slot]):
                return None
            made.objects.append(slot)
        if _bytes(seen[slot] for slot, *_ in made.arrays) > MOST_BYTES:
            return None
        made.pattern = made._pattern(seen)
        return made

    def _add(self, slot: int, value: Any) -> bool:
        kind = type(value)
        if kind in CONSTANTS or is_numpy_scalar(kind):
            self.constants.append((slot, value))
        elif kind is np.ndarray and not value.dtype.hasobject and value.nbytes <= MOST_BYTES:
            self.arrays.append((slot, weakref.ref(value), _layout(value), value.tobytes()))
        else:
            return kind in CALLABLES or (_is_users(kind) and not isinstance(value, OF_PYTORCH))
        return True

    def same(self, seen: Sequence[Any]) -> bool:
        """Would the body find the same?"""
        for slot, constant in self.constants:
            if seen[slot] is not constant and not _equal(seen[slot], constant):
                return False
        for slot, array, layout, contents in self.arrays:
            now = array()
            if now is None or now is not seen[slot] or _layout(now) != layout or now.tobytes() != contents:
                return False
        return self._pattern(seen) == self.pattern

    def _pattern(self, seen: Sequence[Any]) -> list[int]:
        first: dict[int, int] = {}
        return list(map(first.setdefault, map(id, map(seen.__getitem__, self.objects)), self.objects))


def _equal(a: Any, b: Any) -> bool:
    """The same number or text, bit by bit."""
    if type(a) is not type(b) or isinstance(a, (complex, np.complexfloating)):
        return False
    return bool(a == b) and bool(a != 0)  # of zeros there are two


_layout = operator.attrgetter("shape", "dtype", "strides")


def _bytes(values: Iterable[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


def _is_users(kind: type) -> bool:
    """A class written in Python, and all it inherits from."""
    return all("__dict__" in vars(base) or "__slots__" in vars(base) for base in kind.__mro__[:-1])
