"""Versions of dictionaries: two versions of a dictionary are equal if it was not written to in between."""

import operator
from typing import Any

import torch


class Contents:
    """The keys and values of a dictionary in order, compared by identity.

    >>> table = {"a": 1.5}
    >>> before = Contents(table)
    >>> before == Contents(table), table.update(a=2.5), before == Contents(table)
    (True, None, False)
    """

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("entries",)

    def __init__(self, table: dict[Any, Any]):
        self.entries = [*table, *table.values()]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Contents) or len(self.entries) != len(other.entries):
            return False
        return all(map(operator.is_, self.entries, other.entries))


def _sees_attributes(version: Any) -> bool:
    """Return whether a dictionary's version changes when an attribute of its object is set.

    CPython 3.13 stores attributes outside the object's dictionary, and such writes do not change the version.
    """

    class Probe:
        pass

    probe: Any = Probe()
    probe.value = 1
    before = version(vars(probe))
    probe.value = 2
    return before != version(vars(probe))


_number = torch._C._dynamo.guards.dict_version
# True if reading a version takes constant time. One version check then replaces checks of several entries.
ARE_CHEAP = _sees_attributes(_number)
dict_version: Any = _number if ARE_CHEAP else Contents
