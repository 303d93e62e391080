"""What was built while torch.compile is tracing, by number: a tracer takes only a plain number from there."""

from typing import Any


class Numbered:
    """Each thing is an attribute of its own: a tracer does not see what is appended to a list it has read,
    and a guard on one thing is no guard on how many there are."""

    def keep(self, thing: Any) -> int:
        number = len(vars(self))
        setattr(self, f"thing_{number}", thing)
        return number

    def get(self, number: int) -> Any:
        return getattr(self, f"thing_{number}")
