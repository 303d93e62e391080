"""A wide model that is kept from call to call: as long as all its members live, and are what they were."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..work import Bail
from .copies import Copies
from .facts import Facts
from .members import Members
from .straight import Straight


class Kept:
    """A wide model, and its members as they were when their numbers were copied."""

    def __init__(self, column: int, members: Members, call: Straight, copies: Copies, facts: Facts):
        self.column = column
        self.members = members
        self.call = call
        self.wide = call.wide
        self.copies = copies
        self.facts = facts
        self.looked = threading.local()  # what the guards' look at the members has found in this call

    def look(self, columns: Sequence[Any]) -> bool:
        """Has nothing but numbers changed in any member, and nothing that their graph has baked in?"""
        self.looked.tensors = None
        models = columns[self.column]
        if type(models) not in (list, tuple) or not self.members.are(models):
            return False
        self.looked.tensors = self.members.now(models) if self.facts.hold() else None
        return self.looked.tensors is not None

    def tensors_now(self) -> list[Tensor] | None:
        """The members' tensors, as the look at them in this call has found them; None if they are other
        members, or changed."""
        return getattr(self.looked, "tensors", None)

    def renewed(self, tensors: list[Tensor]) -> list[int]:
        """Copy the numbers of those members where they are seen to have changed; which ones. Those that are
        not looked at are copied by the call."""
        lanes = [] if self.members.unchanged(tensors) else self._renew(tensors)
        if not self.members.all_read:
            self.copies.look_for_unread(tensors)
        return lanes

    def _renew(self, tensors: list[Tensor]) -> list[int]:
        lanes = self.members.changed(tensors)
        if lanes is None:
            raise Bail("a parameter has another shape or type")
        if self.copies.renew(tensors, lanes):
            self.call.known = None  # the route was that of a buffer without lanes
        self.members.note(tensors)
        return lanes


def forget(plan: Any) -> Callable[[Any], None]:
    """For when a member is gone: nobody can call them all again, so what is kept for them goes too."""
    held = weakref.ref(plan)

    def gone(member: Any) -> None:
        plan = held()
        memory = {} if plan is None else plan.memory
        if "wide" in memory and member in memory["wide"].members.models:
            memory.pop("wide", None)

    return gone
