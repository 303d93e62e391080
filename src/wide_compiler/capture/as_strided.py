"""Replace `as_strided` and `resize_` by indexing, because lanes have other strides than members."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .aliases import root_of, written_args

aten = torch.ops.aten

_STRIDED = {aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_.default}
_RESIZED = {aten.resize_.default, aten.resize_as_.default}


def index_instead_of_strides(graph: fx.Graph) -> None:
    """Replace `as_strided` of a contiguous tensor by `x.reshape(-1)[places]`, and a shrinking `resize_` by
    the first elements.

    `places` is `arange(x.numel())` with the same strides, one tensor for all lanes. Tensors that are written
    or not contiguous are left unchanged.
    """
    writers: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        for argument in written_args(node):
            writers.setdefault(root_of(argument), []).append(node)
    for node in [node for node in graph.nodes if node.target in _STRIDED | _RESIZED]:
        x = node.args[0]
        written = [writer for writer in writers.get(root_of(node), ()) if writer is not node]
        if written or not _is_contiguous(x.meta.get("val")):
            continue
        if node.target in _RESIZED and not _is_shortened(x.meta["val"], node.meta.get("val")):
            continue
        with graph.inserting_before(node):
            flat = graph.call_function(aten.reshape.default, (x, [-1]))
            if node.target in _RESIZED:
                shape = list(node.meta["val"].shape)
                chosen = graph.call_function(aten.slice.Tensor, (flat, 0, 0, math.prod(shape)))
                result = graph.call_function(aten.reshape.default, (chosen, shape))
            else:
                chosen = _places(graph, x, node.args[1:], node.kwargs.get("storage_offset"))
                result = graph.call_function(aten.index.Tensor, (flat, [chosen]))
        result.meta = dict(node.meta)
        chosen.meta["nn_module_stack"] = flat.meta["nn_module_stack"] = node.meta.get("nn_module_stack")
        # In place: later uses of the tensor see the new shape.
        if node.target in {aten.as_strided_.default} | _RESIZED:
            for user in [user for user in x.users if user > node]:
                user.replace_input_with(x, result)
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def _is_shortened(before: Tensor, after: Any) -> bool:
    """Return whether the resized tensor has a static shape and no more elements than before."""
    sizes = [*before.shape, *after.shape] if isinstance(after, Tensor) else [None]
    return all(isinstance(size, int) for size in sizes) and math.prod(after.shape) <= math.prod(before.shape)


def _is_contiguous(value: Any) -> bool:
    """Return whether it is contiguous and covers its whole storage."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.storage_offset() != 0:
        return False
    return value.is_contiguous() and value.untyped_storage().nbytes() == value.numel() * value.itemsize


def _places(graph: fx.Graph, x: fx.Node, geometry: Sequence[Any], offset: Any) -> fx.Node:
    size, strides, *rest = geometry
    value = x.meta["val"]
    count = value.numel()
    if isinstance(count, torch.SymInt):
        count = graph.call_function(aten.sym_numel.default, (x,))
    numbers = graph.call_function(aten.arange.default, (count,), {"device": value.device})
    # Offset 0 by default, because the tensor starts at the beginning of its storage.
    start = rest[0] if rest else offset or 0
    return graph.call_function(aten.as_strided.default, (numbers, size, strides, start))
