"""Joins small linear layers that read one input (heads, the A factors of adapters) into one product.

Shapes: N lanes, I in-features, O out-features, `*` any number of axes.
"""

import operator
from typing import Any

import torch
from torch import Tensor, fx

from .linear import gradient_in_one_piece, wide_linear

# The weights are concatenated at every call: worth it for few outputs, where launches dominate.
MOST_OUTPUTS = 256
_CASTS = (torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default)


def joined_linear(
    x: Tensor, weights: list[Tensor], biases: list[Tensor] | None, strategy: str = "auto"
) -> tuple[Tensor, ...]:
    """Run `wide_linear(x, weight, bias)` for each of several weights, as one product.

    The weights `[N, O, I]` may differ in O. Returns for each of them `[N, *, O]`, a view of one result.
    """
    bias = None if biases is None else torch.cat(biases, 1)
    y = wide_linear(x, torch.cat([*map(gradient_in_one_piece, weights)], 1), bias, strategy)
    return y.split([weight.shape[1] for weight in weights], -1)


def find_joinable(graph: fx.Graph) -> list[list[fx.Node]]:
    """Return every group of two or more linear layers that can be joined."""
    groups: dict[Any, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.target is not wide_linear:
            continue
        args: tuple[Any, ...] = node.args
        x, weight, bias, strategy = args
        shape = weight.meta.get("shape")
        given = [weight] if bias is None else [weight, bias]
        if shape is None or any(part.op != "placeholder" for part in given):
            continue
        group = groups.setdefault((_source(x), shape[-1], bias is None, str(strategy)), [])
        if shape[1] + sum(_outputs(linear) for linear in group) <= MOST_OUTPUTS:
            group.append(node)
    return [group for group in groups.values() if len(group) > 1]


def join_products(graph: fx.Graph) -> None:
    """Replace each group found by `find_joinable` by one `joined_linear` node."""
    for group in find_joinable(graph):
        first: tuple[Any, ...] = group[0].args
        x, _, bias, strategy = first
        weights = [linear.args[1] for linear in group]
        biases = None if bias is None else [linear.args[2] for linear in group]
        with graph.inserting_before(group[0]):
            joined = graph.call_function(joined_linear, (x, weights, biases, strategy))
            joined.meta["path"] = group[0].meta.get("path", "")
            parts = [graph.call_function(operator.getitem, (joined, i)) for i in range(len(group))]
        for linear, part in zip(group, parts, strict=True):
            part.meta = dict(linear.meta)
            linear.replace_all_uses_with(part)
            graph.erase_node(linear)


def _source(x: fx.Node) -> Any:
    """Return a key of the input; equal casts of one tensor have equal keys."""
    return (x.target, x.args, tuple(x.kwargs.items())) if x.target in _CASTS else x


def _outputs(linear: fx.Node) -> int:
    weight: Any = linear.args[1]
    return weight.meta["shape"][1]
