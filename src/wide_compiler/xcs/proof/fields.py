"""Fields of objects: does a read of one still come to what the proof has found there?"""

from typing import Any

from ...guards.tensors import versions
from .behaviour import bases, table_of
from .guards import static_lookup

MISSING = object()


class Fields:
    """What a class has of certain names. An object's own field is what a read of it gives, unless the class
    has a descriptor of that name that also takes writes, such as a property, or reads in a way of its own.

    One for each class, whatever its fields: asking costs next to nothing until somebody writes to the class.
    """

    def __init__(self, kind: type):
        self.kind = kind
        self.fixed: dict[str, Any] = {}  # must be what they are
        self.shown: dict[str, Any] = {}  # may become anything that a field of an object comes before
        self.mro = kind.__mro__
        self.tables = [table_of(base) for base in bases([kind])]
        self.versions = versions(self.tables)
        self.fix("__getattribute__")

    def fix(self, *names: str) -> None:
        self.fixed |= {name: on_class(self.kind, name) for name in names}

    def show(self, *names: str) -> None:
        self.shown |= {name: on_class(self.kind, name) for name in names}

    def holds(self) -> bool:
        now = versions(self.tables)  # before they are read: a write meanwhile must be seen the next time
        if self.kind.__mro__ is not self.mro:
            return False
        if now == self.versions:
            return True
        fixed = all(on_class(self.kind, name) is had for name, had in self.fixed.items())
        if not fixed or not all(self._is_shown(name, had) for name, had in self.shown.items()):
            return False
        self.versions = now
        return True

    def _is_shown(self, name: str, had: Any) -> bool:
        now = on_class(self.kind, name)
        return now is had or not takes_writes(now)


def on_class(kind: type, name: str) -> Any:
    """What lies in a class or one it inherits from, or `MISSING`."""
    try:
        return static_lookup(kind, name)
    except AttributeError:
        return MISSING


def takes_writes(found: Any) -> bool:
    """Does it come before an object's own field of its name?"""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")
