"""Which graph values share memory, and which nodes write into it.

Training IR is not functional: a write through a view changes its base. The ops' schemas tell what a node
writes and which value is the base of a view chain.
"""

import operator
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

# Ops that write statistics without a mark in the schema: indices of mean, var and flag (None: always writes).
_NORMS = (aten.batch_norm, aten.instance_norm, aten.native_batch_norm, aten._batch_norm_impl_index)
_RUNNING_STATS: dict[Any, tuple[int, int, int | None]] = {
    **{op.default: (3, 4, 5) for op in (*_NORMS, aten.cudnn_batch_norm, aten.miopen_batch_norm)},
    aten.batch_norm_gather_stats.default: (3, 4, None),
    aten.batch_norm_gather_stats_with_counts.default: (3, 4, None),
    aten.batch_norm_update_stats.default: (1, 2, None),
}


def written_args(node: fx.Node) -> list[fx.Node]:
    """Return the argument nodes whose memory `node` writes."""
    if node.op != "call_function":
        return []
    if node.target in _RUNNING_STATS:
        mean, var, flag = _RUNNING_STATS[node.target]
        stats = [node.args[mean], node.args[var]]
        return [s for s in stats if isinstance(s, fx.Node)] if flag is None or node.args[flag] else []
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    values = [value for value, argument in _bound(node) if is_written(argument)]
    flat = [v for value in values for v in (value if isinstance(value, (list, tuple)) else [value])]
    return [value for value in flat if isinstance(value, fx.Node)]


def is_written(argument: Any) -> bool:
    """Return whether an op writes this argument of its schema, or returns what it has written."""
    return argument.alias_info is not None and argument.alias_info.is_write


def _bound(node: fx.Node) -> list[tuple[Any, Any]]:
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    pairs = list(zip(node.args, arguments, strict=False))
    return pairs + [(node.kwargs[a.name], a) for a in arguments if a.name in node.kwargs]


def base_of(node: fx.Node) -> fx.Node | None:
    """Return the argument whose memory the result of `node` may share; None if the result is a new tensor."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        return node.args[0]  # type: ignore[return-value]
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    if not any(r.alias_info is not None for r in node.target._schema.returns):
        return None
    for value, argument in _bound(node):
        if argument.alias_info is not None and isinstance(value, fx.Node):
            return value
    return None


def written_tensor(node: fx.Node) -> fx.Node:
    """Return the tensor that a chain of in-place ops writes and returns; for another node the node itself."""
    while (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and any(map(is_written, node.target._schema.returns[:1]))
    ):
        node = node.args[0]  # type: ignore[assignment]
    return node


def root_of(node: fx.Node) -> fx.Node:
    """Return the value at the start of the view chain that ends in `node`."""
    while (base := base_of(node)) is not None:
        node = base
    return node


def written_roots(graph: fx.Graph) -> set[fx.Node]:
    return {root_of(arg) for node in graph.nodes for arg in written_args(node)}


def writes_after_views(graph: fx.Graph) -> bool:
    """Return whether memory is written of which a view was made before."""
    viewed: set[fx.Node] = set()
    for node in graph.nodes:
        if torch.Tag.inplace_view in getattr(node.target, "tags", ()):
            return True
        if any(root_of(argument) in viewed for argument in written_args(node)):
            return True
        if base_of(node) is not None and written_tensor(node) is node:
            viewed.add(root_of(node))
    return False


_RESHAPES = {aten.view.default, aten.reshape.default, aten.flatten.using_ints, aten.unflatten.int}


def roots_written_through_reshape(graph: fx.Graph) -> set[fx.Node]:
    """Roots that are both written and reshaped: their wide form must be contiguous to stay a view."""
    written = written_roots(graph)
    return {root_of(n) for n in graph.nodes if n.op == "call_function" and n.target in _RESHAPES} & written
