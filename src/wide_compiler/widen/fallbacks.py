"""Fallbacks for an op without a working rule: vmap of the op, then a loop over lanes.

`wide` tells for each leaf of (args, kwargs), in order, whether it carries lanes: a tensor on axis 0, or a
tuple of per-lane Python numbers.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..errors import ArgumentError
from ..lane_values import LaneValues


def vmap_over_lanes(op: Callable[..., Any], wide: tuple[bool, ...], *args: Any, **kwargs: Any) -> Any:
    """Call `op` under `torch.vmap` over the lane axis."""
    leaves, spec = _tree.flatten((args, kwargs))
    lanes = [leaf for leaf, w in zip(leaves, wide, strict=True) if w]

    def one_lane(*mapped: Any) -> Any:
        mapped_iter = iter(mapped)
        filled = [next(mapped_iter) if w else leaf for leaf, w in zip(leaves, wide, strict=True)]
        a, k = _tree.unflatten(filled, spec)
        return op(*a, **k)

    return torch.vmap(one_lane, randomness="different")(*lanes)


@contextlib.contextmanager
def vmap_must_be_whole() -> Iterator[None]:
    """Make vmap raise for an op that it would run as a slow loop, so that ours is used and reported."""
    functorch: Any = torch._C._functorch
    enabled = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(enabled)


def loop_over_lanes(op: Callable[..., Any], wide: tuple[Any, ...], n: int, *args: Any, **kwargs: Any) -> Any:
    """Run `op` once per lane and stack the results. Writes take effect, because each slice is a view."""
    return stack_results([lane_call(op, wide, i, args, kwargs) for i in range(n)])


def loop_in_place(
    op: Callable[..., Any], wide: tuple[Any, ...], n: int, x: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """`loop_over_lanes` for an op that writes its first argument and returns it.

    Each lane writes a copy, and all are written back at once: autograd would treat a write into one lane's
    view as a change of the tensors saved for the others.
    """
    lanes = [x[i].clone() for i in range(n)]
    written = [lane_call(op, (False, *wide[1:]), i, (lanes[i], *args), kwargs) for i in range(n)]
    return x.copy_(torch.stack(written))


def lane_call(op: Callable[..., Any], wide: tuple[Any, ...], lane: int, args: Any, kwargs: Any) -> Any:
    """`op` for one lane: leaves marked wide are indexed at `lane`."""
    flags = iter(wide)

    def pick(tree: Any) -> Any:
        # Not by pytree: a tuple of per-lane numbers is one marked leaf.
        if isinstance(tree, (list, tuple)) and not isinstance(tree, LaneValues):
            return type(tree)(pick(item) for item in tree)
        if isinstance(tree, dict):
            return {key: pick(item) for key, item in tree.items()}
        return tree[lane] if next(flags) else tree

    picked_args = pick(args)
    return op(*picked_args, **pick(kwargs))


def stack_results(results: list[Any]) -> Any:
    """Stack N results of one structure: every tensor gets a lane axis."""
    flat = [_tree.flatten(result) for result in results]
    spec = flat[0][1]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return _tree.unflatten([_stack_column(column) for column in columns], spec)


def _stack_column(column: tuple[Any, ...]) -> Any:
    if isinstance(column[0], Tensor):
        return torch.stack(column)
    if any(leaf != column[0] for leaf in column):
        raise ArgumentError(f"a Python number differs between lanes: {column[:4]}")
    return column[0]
