"""N Python values, one per lane: what a tensor with a lane axis is for numbers that are no tensors."""

from typing import Any


class LaneValues(tuple):
    """A tuple that pytrees take for one leaf. A slice of it is one again, for lanes in chunks."""

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return LaneValues(item) if isinstance(index, slice) else item

    def __repr__(self) -> str:
        return f"LaneValues{super().__repr__()}"
