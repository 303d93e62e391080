"""Bounds of shards, computed as `torch.chunk` and DTensor do.

A layout is one axis (or None: replicated) for each dimension of a mesh. If two mesh dimensions shard the same
axis, the second splits the shards of the first.
"""

import itertools
from collections.abc import Sequence

from torch import Tensor

Axes = tuple[int | None, ...]


def shard_bounds(size: int, parts: int) -> list[tuple[int, int]]:
    """Return (start, end) of each of `parts` shards of a dimension.

    >>> shard_bounds(100, 3)
    [(0, 34), (34, 68), (68, 100)]
    """
    step = -(-size // parts) if size else 0
    return [(min(i * step, size), min((i + 1) * step, size)) for i in range(parts)]


def nested_bounds(size: int, mesh: Sequence[int]) -> list[tuple[int, int]]:
    """Return (start, end) of each worker's shard if every mesh dimension shards the same axis.

    >>> nested_bounds(10, (2, 2))
    [(0, 3), (3, 5), (5, 8), (8, 10)]
    """
    bounds = [(0, size)]
    for parts in mesh:
        bounds = [(a + s, a + e) for a, b in bounds for s, e in shard_bounds(b - a, parts)]
    return bounds


def fitting(shape: Sequence[int], axes: Axes, mesh: Sequence[int]) -> Axes:
    """Return `axes` with None wherever a shard would be empty, padded with None to the mesh's dimensions.

    >>> fitting((100, 4), (0,), (3,)), fitting((5,), (0,), (4,)), fitting((8, 3), (0, 1), (2, 4))
    ((0,), (None,), (0, None))
    """
    sizes = [{size} for size in shape]
    found: list[int | None] = []
    for parts, axis in itertools.zip_longest(mesh, axes[: len(mesh)]):
        if axis is not None and axis < len(shape):
            cut = [shard_bounds(size, parts) for size in sizes[axis]]
            if all(start < end for bounds in cut for start, end in bounds):
                sizes[axis] = {end - start for bounds in cut for start, end in bounds}
                found.append(axis)
                continue
        found.append(None)
    return tuple(found)


def part_of(whole: Tensor, axes: Axes, mesh: Sequence[int], place: Sequence[int]) -> Tensor:
    """Return the shard of the worker at coordinates `place` of the mesh; a view."""
    for axis, parts, at in zip(axes, mesh, place, strict=True):
        if axis is not None:
            start, end = shard_bounds(whole.shape[axis], parts)[at]
            whole = whole.narrow(axis, start, end - start)
    return whole


def places(mesh: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the mesh coordinates of each worker, in order.

    >>> places((2, 2))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    return list(itertools.product(*map(range, mesh)))
