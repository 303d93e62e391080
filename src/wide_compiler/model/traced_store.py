"""Numbered storage for objects created while torch.compile traces, which can only return plain numbers."""

from typing import Any


class TracedStore:
    """Stores each object as a separate attribute.

    Dynamo does not see items appended to a list it has read, and would guard on the length of a list.
    """

    def keep(self, thing: Any) -> int:
        number = len(vars(self))
        setattr(self, f"thing_{number}", thing)
        return number

    def get(self, number: int) -> Any:
        return getattr(self, f"thing_{number}")
