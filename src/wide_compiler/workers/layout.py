"""Where the rows of a tensor lie: the arithmetic of `torch.chunk`, which DTensor follows."""

from collections.abc import Sequence


def shard_bounds(size: int, parts: int) -> list[tuple[int, int]]:
    """Start and end of each part of a dimension.

    >>> shard_bounds(100, 3)
    [(0, 34), (34, 68), (68, 100)]
    """
    step = -(-size // parts) if size else 0
    return [(min(i * step, size), min((i + 1) * step, size)) for i in range(parts)]


def shardable(shape: Sequence[int], axis: int | None, parts: int) -> bool:
    """Can this shape be cut along `axis` with no part empty?

    >>> shardable((100, 4), 0, 3), shardable((5,), 0, 4), shardable((8,), 1, 2)
    (True, False, False)
    """
    if axis is None or axis >= len(shape):
        return False
    start, end = shard_bounds(shape[axis], parts)[-1]
    return start < end
