"""`as_strided` written as an index: lanes lie in memory otherwise than members, but hold the same numbers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .aliases import root_of, written_args

aten = torch.ops.aten

_READS = {aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_.default}


def index_instead_of_strides(graph: fx.Graph) -> None:
    """Replace `as_strided` of a contiguous tensor by `x.reshape(-1)[places]`.

    `places` is `arange(x.numel())` with the same strides: one tensor for all lanes. Tensors that are written,
    or lie otherwise in memory, are left alone.
    """
    writers: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        for argument in written_args(node):
            writers.setdefault(root_of(argument), []).append(node)
    for node in [node for node in graph.nodes if node.target in _READS]:
        x = node.args[0]
        written = [writer for writer in writers.get(root_of(node), ()) if writer is not node]
        if written or not _is_contiguous(x.meta.get("val")):
            continue
        with graph.inserting_before(node):
            places = _places(graph, x, node.args[1:], node.kwargs.get("storage_offset"))
            flat = graph.call_function(aten.reshape.default, (x, [-1]))
            result = graph.call_function(aten.index.Tensor, (flat, [places]))
        result.meta = dict(node.meta)
        places.meta["nn_module_stack"] = flat.meta["nn_module_stack"] = node.meta.get("nn_module_stack")
        if node.target is aten.as_strided_.default:  # the tensor itself looks like this from here on
            for user in [user for user in x.users if user > node]:
                user.replace_input_with(x, result)
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def _is_contiguous(value: Any) -> bool:
    """Are its numbers all that its memory holds, in order?"""
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
    # Not the tensor's own offset: a contiguous tensor begins where its memory does.
    return graph.call_function(
        aten.as_strided.default, (numbers, size, strides, rest[0] if rest else offset or 0)
    )
