"""LaneValues: N Python values, one per lane, for values that are not tensors."""

from typing import Any


class LaneValues(tuple):
    """A tuple that pytrees treat as one leaf. Its slices are LaneValues too, for chunks of lanes."""

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return LaneValues(item) if isinstance(index, slice) else item

    def __repr__(self) -> str:
        return f"LaneValues{super().__repr__()}"
