"""Fused linear layers and activations: one layer, or a whole small MLP, in one kernel.

A chain is several ops of the member, so it has no wide rule: the functions here are passes over the finished
lane graph.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .. import kernels
from ..kernels._triton import ACTIVATIONS
from ._lanes import autocast_dtype
from .linear import tensor_core_fits, wide_linear

aten = torch.ops.aten

_ACTIVATIONS = {getattr(aten, name).default: name for name in ("relu", "gelu", "tanh", "sigmoid", "silu")}


def wide_chain(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], activations: Sequence[str]
) -> Tensor:
    """Run linear layers with activations in every lane: one kernel if it fits, else one per layer.

    x is `[N, B, I]`; each layer has a weight `[N, O, I]`, a bias `[N, O]` or None, and an activation: 'none'
    or one of `_ACTIVATIONS`.
    """
    if x.is_cuda and kernels.can_run(x):
        from ..kernels.lane_chain import fits, lane_chain

        compute = autocast_dtype(x)
        if fits(x, weights, compute):
            return lane_chain(x, list(weights), list(biases), list(activations), compute)
    for weight, bias, activation in zip(weights, biases, activations, strict=True):
        x = ACTIVATIONS[activation](wide_linear(x, weight, bias))
    return x


def wide_linear_activation(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """Run `wide_linear` on tensor cores with the activation (as in `wide_chain`) inside the kernel."""
    if not tensor_core_fits(x):
        return ACTIVATIONS[activation](wide_linear(x, weight, bias, "tensor_core"))
    from ..kernels.lane_linear import lane_linear

    return lane_linear(x, weight, bias, activation, autocast_dtype(x))


def only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _activation_of(node: fx.Node) -> fx.Node | None:
    """Return the activation that is the only user of `node`, or None."""
    user = only_user(node)
    return user if user is not None and user.target in _ACTIVATIONS and not user.kwargs else None


def fuse(graph: fx.Graph, nodes: Sequence[fx.Node], function: Any, args: tuple[Any, ...]) -> None:
    """Replace `nodes`, which only the last one leaves, by one call of `function` with `args`."""
    with graph.inserting_after(nodes[-1]):
        fused = graph.call_function(function, args)
    fused.meta["path"] = nodes[0].meta.get("path", "")
    nodes[-1].replace_all_uses_with(fused)
    for node in reversed(nodes):
        graph.erase_node(node)


def fuse_activations(graph: fx.Graph) -> None:
    """Replace each `wide_linear` with strategy "tensor_core" and its activation by one fused node."""
    for node in list(graph.nodes):
        if node.target is not wide_linear or node.args[-1] != "tensor_core":
            continue
        end = _activation_of(node)
        if end is not None:
            name = _ACTIVATIONS[end.target]  # type: ignore[index]
            fuse(graph, [node, end], wide_linear_activation, (*node.args[:3], name))


def _links(node: fx.Node) -> list[tuple[fx.Node, str, fx.Node]]:
    """Return the consecutive layers from `node` on: (linear, activation name, node of the layer's result)."""
    layers = []
    while True:
        end = _activation_of(node) or node
        activation = _ACTIVATIONS[end.target] if end is not node else "none"  # type: ignore[index]
        layers.append((node, activation, end))
        user = only_user(end)
        if user is None or user.target is not wide_linear or user.args[0] is not end:
            return layers
        node = user


def find_chains(graph: fx.Graph) -> list[list[tuple[fx.Node, str, fx.Node]]]:
    """Return every run of two or more consecutive linear layers on `[N, B, I]` inputs."""
    chains, seen = [], set()
    for node in graph.nodes:
        if node.target is wide_linear and node not in seen and node.meta.get("rank") == 2:
            links = _links(node)
            seen |= {linear for linear, _, _ in links}
            if len(links) > 1:
                chains.append(links)
    return chains


def fuse_chains(graph: fx.Graph) -> None:
    """Replace each chain found by `find_chains` by one `wide_chain` node."""
    for links in find_chains(graph):
        linears, activations, _ = zip(*links, strict=True)
        nodes = list(dict.fromkeys(node for linear, _, end in links for node in (linear, end)))
        weights, biases = ([linear.args[i] for linear in linears] for i in (1, 2))
        fuse(graph, nodes, wide_chain, (linears[0].args[0], weights, biases, activations))
