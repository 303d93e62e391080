"""Stack, unstack, pack and unpack for any pytree.

Legend: N lanes, B batch, C channels. *Stacked* is `[N, B, C, ...]`, the internal layout; *packed* is
`[B, N*C, ...]`, the layout of `wide(packed)`, with lane i in channel block i.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _tree
from .errors import InputError
from .guards.modes import plain_world
from .lane_values import LaneValues, alike
from .remote_tensors import memory_id


def own_gradient(t: Tensor) -> Tensor:
    """Return a view of t whose gradient shares no memory with that of another tensor.

    Autograd passes one gradient through sums and views, and a leaf keeps the view that it gets as `.grad`.
    What accumulation or clipping then writes into one leaf's gradient would show in another's.
    """
    # The backward of `narrow` copies, that of most views does not; and its result may be written in place.
    return t.narrow(0, 0, t.shape[0]) if t.requires_grad and torch.is_grad_enabled() else t


def copied_if_met(gradient: Tensor, places: set[int]) -> Tensor:
    """Return a gradient, or a copy if its memory is in `places`, to which it is added.

    For gradients that are all seen here before they are handed out: no copy is made of those met once.
    """
    place = gradient.untyped_storage().data_ptr()
    if place in places:
        return gradient.clone()
    places.add(place)
    return gradient


def _columns(trees: Sequence[Any], what: str) -> tuple[list[tuple[Any, ...]], list[str], _tree.TreeSpec]:
    """Return the i-th leaves of all trees as tuples. Raise `InputError` if the structures differ."""
    if isinstance(trees, (Tensor, str, bytes)) or not isinstance(trees, Sequence):
        raise InputError(f"{what} takes a list with one entry per lane, got {type(trees).__name__}")
    if not trees:
        raise InputError(f"{what} needs at least one lane, got an empty list")
    flat = [_tree.flatten(tree) for tree in trees]
    spec = flat[0][1]
    for lane, (_, other) in enumerate(flat):
        if other != spec:
            raise InputError(f"{what}: lane {lane} has structure {other}, lane 0 has {spec}")
    paths = _tree.leaf_paths(trees[0])
    return list(zip(*(leaves for leaves, _ in flat), strict=True)), paths, spec


def _stack_column(column: tuple[Any, ...], path: str, what: str) -> Any:
    first = column[0]
    for lane, leaf in enumerate(column):
        if isinstance(first, Tensor) != isinstance(leaf, Tensor):
            raise InputError(
                f"{what}: lane {lane}{path} is {type(leaf).__name__}, lane 0 has {type(first).__name__}"
            )
        if not isinstance(first, Tensor):
            if not alike(leaf, first):
                raise InputError(
                    f"{what}: lane {lane}{path} is {leaf!r}, lane 0 has {first!r}; only tensors may differ"
                )
        elif leaf.shape != first.shape or leaf.dtype != first.dtype:
            raise InputError(
                f"{what}: lane {lane}{path} is {tuple(leaf.shape)} {leaf.dtype}, "
                f"lane 0 has {tuple(first.shape)} {first.dtype}"
            )
    return own_gradient(torch.stack(column)) if isinstance(first, Tensor) else first


def stack(trees: Sequence[Any], what: str = "stack") -> Any:
    """Stack a list of N pytrees into one with `[N, ...]` tensors; other leaves must be equal.

    >>> stack([{"x": torch.zeros(2)}, {"x": torch.ones(2)}])["x"].shape
    torch.Size([2, 2])
    """
    columns, paths, spec = _columns(trees, what)
    return _tree.unflatten([_stack_column(c, p, what) for c, p in zip(columns, paths, strict=True)], spec)


def unstack(tree: Any, n: int) -> list[Any]:
    """Split a pytree of `[N, ...]` tensors into a list of N pytrees; other leaves are repeated.

    >>> [t["x"].item() for t in unstack({"x": torch.tensor([1.0, 2.0])}, 2)]
    [1.0, 2.0]
    """
    _check_count(n)
    leaves, spec = _tree.flatten_output(tree)
    for path, leaf in zip(_tree.output_paths(tree), leaves, strict=True):
        if isinstance(leaf, Tensor) and (leaf.dim() == 0 or leaf.shape[0] != n):
            raise InputError(f"unstack: leaf{path} is {tuple(leaf.shape)}, expected {n} lanes on axis 0")
    rows = [_rows(leaf, n) for leaf in leaves]
    return [_tree.unflatten([row[i] for row in rows], spec) for i in range(n)]


def hand_out(tree: Any, n: int, reached: Callable[[Any, list[bool]], None] | None = None) -> list[Any]:
    """Like `unstack`, for a result with no other references: tensors are contiguous and writable in place.

    `reached` is called in a backward pass with its node, and for each lane whether its tensor has a gradient.
    """
    plain = not torch.compiler.is_dynamo_compiling() and plain_world()
    if isinstance(tree, Tensor):
        return list(_handed_out(tree, n, plain, reached))
    leaves, spec = _tree.flatten_output(tree)
    memory = [_storage_key(x) for x in leaves if plain and _is_dense(x)]
    if len(set(memory)) < len(leaves):
        reached = None  # gradients of views arrive by other nodes
    rows: list[Sequence[Any]] = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            rows.append(_rows(leaf, n))
        elif plain and _is_dense(leaf) and memory.count(_storage_key(leaf)) > 1:
            rows.append([leaf[i] for i in range(n)])  # views: a write must be visible in the other output
        else:
            rows.append(_handed_out(leaf, n, plain, reached))
    return [_tree.unflatten([row[i] for row in rows], spec) for i in range(n)]


def _storage_key(leaf: Tensor) -> int:
    number = memory_id(leaf)
    return leaf.untyped_storage()._cdata if number is None else number


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided


def _handed_out(stacked: Tensor, n: int, plain: bool, reached: Any = None) -> Sequence[Tensor]:
    if not _is_dense(stacked):
        return stacked.unbind(0)
    if plain and stacked.requires_grad and torch.is_grad_enabled():
        return _learning_rows(stacked, reached)
    if not stacked[0].is_contiguous():
        stacked = stacked.contiguous()
    if plain:
        return rows_apart(stacked)
    return [stacked[i] for i in range(n)]  # traces and transforms handle writes to views


def rows_apart(stacked: Tensor) -> list[Tensor]:
    """Split `[N, ...]` into N tensors in its memory that are no views for autograd.

    Each counts its own writes. Gradients are not recorded.
    """
    if stacked.dim() > 1 and stacked.numel() and stacked.is_contiguous():  # the same as below, in one call
        n, length, *rest = stacked.shape
        with torch.no_grad():
            return list(torch.unsafe_split_with_sizes(stacked.view(n * length, *rest), [length] * n))
    return [row.data for row in stacked.unbind(0)]


def _learning_rows(stacked: Tensor, reached: Callable[[Any, list[bool]], None] | None) -> list[Tensor]:
    """Like `rows_apart`, with gradients. The rows are copies, because backward may have saved `stacked`."""
    split: Any
    if stacked.dim() > 1:
        copy = stacked.clone(memory_format=torch.contiguous_format)
        n, length, *rest = copy.shape
        rows = list(torch.unsafe_split_with_sizes(copy.view(n * length, *rest), [length] * n))
        split, before = rows[0].grad_fn, copy.grad_fn
    else:
        copy = stacked.view_as(stacked)
        numbers = copy.unbind(0)
        split, before = numbers[0].grad_fn, copy.grad_fn
        rows = [number.clone() for number in numbers]
    if reached is not None:
        # `before` instead of the node itself, which would hold itself by its hook.
        split.register_prehook(lambda gradients: reached(before, [g is not None for g in gradients]))
    return rows


def _check_count(n: Any) -> None:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise InputError(f"the number of lanes must be a positive integer, got {n!r}")


def _rows(leaf: Any, n: int) -> Sequence[Any]:
    if isinstance(leaf, Tensor):
        return leaf.unbind(0)
    return leaf if isinstance(leaf, LaneValues) else [_tree.own_copy(leaf) for _ in range(n)]


def pack(inputs: Sequence[Any]) -> Any:
    """Pack N inputs, each `[B, C, ...]`, into one `[B, N*C, ...]`, lane i in channel block i. Any pytree.

    >>> pack([torch.zeros(4, 3), torch.ones(4, 3)]).shape
    torch.Size([4, 6])
    """
    columns, paths, spec = _columns(inputs, "pack")
    for path, column in zip(paths, columns, strict=True):
        if isinstance(column[0], Tensor):
            _needs_channels(column[0], 2, f"leaf{path}", "pack")
    packed = [
        join_lanes(_stack_column(c, p, "pack")) if isinstance(c[0], Tensor) else _stack_column(c, p, "pack")
        for c, p in zip(columns, paths, strict=True)
    ]
    return _tree.unflatten(packed, spec)


def unpack(output: Any, n: int) -> list[Any]:
    """Split `[B, N*C, ...]` into a list of N `[B, C, ...]`. The inverse of `pack`.

    >>> [x.shape for x in unpack(torch.zeros(4, 6), n=2)]
    [torch.Size([4, 3]), torch.Size([4, 3])]
    """
    return unstack(packed_to_stacked(output, n), n)


def packed_to_stacked(tree: Any, n: int) -> Any:
    """Convert every tensor leaf `[B, N*C, ...]` to `[N, B, C, ...]`, a view."""
    return _packed_to_stacked(tree, n, [f"input{path}" for path in _tree.leaf_paths(tree)])


def packed_arguments_to_stacked(args: tuple, kwargs: dict, n: int) -> tuple[tuple, dict]:
    """Convert a call's arguments as `packed_to_stacked` does; errors name the argument."""
    return _packed_to_stacked((args, kwargs), n, _tree.argument_paths(args, kwargs))


def _packed_to_stacked(tree: Any, n: int, names: list[str]) -> Any:
    _check_count(n)
    leaves, spec = _tree.flatten(tree)
    return _tree.unflatten(
        [
            split_lanes(x, n, name) if isinstance(x, Tensor) else x
            for x, name in zip(leaves, names, strict=True)
        ],
        spec,
    )


def stacked_to_packed(tree: Any) -> Any:
    """Convert every tensor leaf `[N, B, C, ...]` to `[B, N*C, ...]`."""
    leaves, spec = _tree.flatten_output(tree)
    paths = _tree.output_paths(tree)
    for leaf, path in zip(leaves, paths, strict=True):
        if isinstance(leaf, Tensor):
            _needs_channels(leaf, 3, f"leaf{path}", "packed")
    return _tree.unflatten([join_lanes(x) if isinstance(x, Tensor) else x for x in leaves], spec)


def split_lanes(x: Tensor, n: int, name: str = "input") -> Tensor:
    """Convert `[B, N*C, ...]` to `[N, B, C, ...]`, a view."""
    _needs_channels(x, 2, name, "packed")
    if x.shape[1] % n:
        raise InputError(
            f"packed {name} is {tuple(x.shape)}: its {x.shape[1]} channels (dim 1) are not divisible "
            f"by {n} lanes; pack one [B, C, ...] per lane with wide_compiler.pack, or use wide.shared(x) for "
            f"one input for all lanes"
        )
    return own_gradient(x.unflatten(1, (n, x.shape[1] // n)).movedim(1, 0))


def join_lanes(x: Tensor) -> Tensor:
    """Convert `[N, B, C, ...]` to `[B, N*C, ...]`."""
    return x.movedim(0, 1).flatten(1, 2)


def _needs_channels(x: Tensor, dims: int, name: str, what: str) -> None:
    if x.dim() < dims:
        member = tuple(x.shape[dims - 2 :])
        raise InputError(
            f"{what}: {name} is {member} per lane, but packing joins lanes on dim 1 and needs at least "
            f"2 dims; use wide.shared(x) for one input for all lanes, wide.each(...) or wide.stacked(...)"
        )


# Aliases kept for users of the first WideCompiler.
pack_inputs = pack
unpack_outputs = unpack
