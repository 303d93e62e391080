"""Python numbers that a forward reads from tensors and returns (`return loss, hits.item()`)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..lane_values import joined

_ITEM = torch.ops.aten.item.default
_ASSERT = torch.ops.aten._assert_scalar.default
OUTPUT_TENSOR = object()  # marks leaves of `out_statics` that are graph outputs


@dataclass(frozen=True)
class OutputNumber:
    """Marks a leaf of `out_statics` that is a graph output and that members return as a Python number."""

    dtype: torch.dtype

    def of(self, x: Tensor) -> Any:
        """Return the number, or a `LaneValues` if lanes differ; `x` has one element per lane."""
        return joined(x.detach().reshape(-1).tolist())


def is_output(leaf: Any) -> bool:
    """Return whether a leaf of `out_statics` is computed by the graph."""
    return leaf is OUTPUT_TENSOR or isinstance(leaf, OutputNumber)


def numbers_as_tensors(graph: fx.Graph, statics: list[Any]) -> list[Any]:
    """Make the graph return the tensors whose `item()` is returned; return the new `out_statics`."""
    output = next(node for node in graph.nodes if node.op == "output")
    given = list(output.args[0])
    statics = list(statics)
    positions = [place for place, leaf in enumerate(statics) if is_output(leaf)]
    for number, (place, node) in enumerate(zip(positions, given, strict=True)):
        if isinstance(node, fx.Node) and node.target is _ITEM and _is_only_returned(node):
            source: Any = node.args[0]
            statics[place], given[number] = OutputNumber(source.meta["val"].dtype), source
    output.args = (tuple(given),)
    for node in [node for node in graph.nodes if node.target is _ITEM]:
        if _is_only_returned(node) and output not in node.users:
            for user in reversed(_flowing_from(node)):
                graph.erase_node(user)
            graph.erase_node(node)
    return statics


def _is_only_returned(item: fx.Node) -> bool:
    """Return whether the number is returned and used otherwise only by the assertions on a bool."""
    source: Any = item.args[0]
    checks = _flowing_from(item)
    boolean = source.meta["val"].dtype == torch.bool
    return not checks or (boolean and all(node.users or node.target is _ASSERT for node in checks))


def _flowing_from(node: fx.Node) -> list[fx.Node]:
    """Return all nodes that depend on a node, without the output, in graph order."""
    found: dict[fx.Node, None] = {}
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if user.op != "output" and user not in found:
                found[user] = None
                waiting.append(user)
    return sorted(found)
