"""LaneValues: N Python values, one per lane, for values that are not tensors."""

from collections.abc import Sequence
from typing import Any

from . import _tree


class LaneValues(tuple):
    """A tuple that pytrees treat as one leaf. Its slices are LaneValues too, for chunks of lanes."""

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return LaneValues(item) if isinstance(index, slice) else item

    def __repr__(self) -> str:
        return f"LaneValues{super().__repr__()}"


def joined(values: Sequence[Any]) -> Any:
    """Return the value that all lanes have, or a `LaneValues` if lanes differ."""
    return values[0] if all(alike(value, values[0]) for value in values) else LaneValues(values)


def alike(a: Any, b: Any) -> bool:
    """Return whether two lanes have one value; True, 1 and 1.0 are different, and 0.0 and -0.0."""
    if a is b or _tree.signature(a) == _tree.signature(b):
        return True
    return type(a) is type(b) and isinstance(_tree.signature(a), _tree.Unkeyed) and bool(a == b)
