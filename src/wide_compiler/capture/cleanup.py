"""Clean up an exported graph: inline regions, remove assertions about shapes and dead nodes."""

import operator
from typing import Any

import torch
from torch import fx

from .aliases import written_args, written_roots, written_tensor
from .as_strided import index_instead_of_strides
from .causal import mark_causal
from .opaque import OPAQUE

aten = torch.ops.aten

# Asserts strides, which differ for lanes.
_DROPPED = {"_assert_tensor_metadata"}
# ShapeGuards check input shapes, so these are kept only if they concern a value (`item`).
_ABOUT_SIZES = {"_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size"}
# Views require strides that a lane's slice of a wide value may not have.
_REPLACED: dict[Any, Any] = {
    aten.view.default: aten.reshape.default,
    aten._unsafe_view.default: aten.reshape.default,
    aten.view_as.default: aten.reshape_as.default,
    aten.detach_.default: aten.detach.default,  # a view cannot be detached in place
}
_REGIONS = {"wrap_with_set_grad_enabled", "wrap_with_autocast", "tag_activation_checkpoint"}
enter_autocast = torch.amp.autocast_mode._enter_autocast
exit_autocast = torch.amp.autocast_mode._exit_autocast


def clean(module: fx.GraphModule, inputs: set[str]) -> fx.Graph:
    """Return a flat copy of the exported graph, without regions, assertions about shapes and dead nodes."""
    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}
    results = _inline(module, graph, env)
    graph.output(results)
    mark_causal(graph)
    index_instead_of_strides(graph)
    _drop_dead(graph, inputs)
    graph.lint()
    return graph


def written_placeholders(graph: fx.Graph) -> set[str]:
    return {root.name for root in written_roots(graph) if root.op == "placeholder"}


def _inline(module: fx.GraphModule, graph: fx.Graph, env: dict[fx.Node, Any]) -> Any:
    for node in module.graph.nodes:
        if node.op == "output":
            return fx.node.map_arg(node.args[0], lambda n: env[n])
        if node in env or _name(node) in _DROPPED or (_name(node) in _ABOUT_SIZES and not _reads_item(node)):
            continue
        if node.op == "get_attr":
            env[node] = getattr(module, node.target)
        elif _name(node) in _REGIONS:
            env[node] = _inline_region(node, graph, env)
        elif node.target is operator.getitem and isinstance(env.get(node.args[0]), (list, tuple)):
            env[node] = env[node.args[0]][node.args[1]]
        else:
            env[node] = graph.node_copy(node, lambda n: env[n])
            env[node].target = _REPLACED.get(node.target, node.target)
    raise AssertionError("a graph without output")


def _inline_region(node: fx.Node, graph: fx.Graph, env: dict[fx.Node, Any]) -> Any:
    args: list[Any] = [env[a] if isinstance(a, fx.Node) else a for a in node.args]
    name = _name(node)
    position = next(i for i, a in enumerate(args) if isinstance(a, fx.GraphModule))
    settings, body, operands = args[:position], args[position], args[position + 1 :]
    context = None
    detached: dict[fx.Node, fx.Node] = {}
    if name == "wrap_with_set_grad_enabled" and settings[0] is False:
        # The grad mode is not switched, so an error cannot leave it wrong: the inputs of a no_grad region are
        # detached instead, and nothing inside can carry a gradient.
        detached = {o: _detach(graph, o) for o in operands if isinstance(o, fx.Node)}
        operands = [detached.get(o, o) if isinstance(o, fx.Node) else o for o in operands]
    elif name == "wrap_with_autocast" and (settings[2] or torch.is_autocast_enabled(settings[0])):
        context = graph.call_function(enter_autocast, tuple(settings))
    placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
    result = _inline(body, graph, dict(zip(placeholders, operands, strict=True)))
    if context is not None:
        graph.call_function(exit_autocast, (context,))
    # A tensor written inside the region keeps its identity and gradient outside of it.
    originals = {inner: outer for outer, inner in detached.items()}
    return fx.node.map_arg(result, lambda n: originals.get(written_tensor(n), n))


def _detach(graph: fx.Graph, node: fx.Node) -> fx.Node:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return node
    detached = graph.call_function(aten.detach.default, (node,))
    detached.meta = dict(node.meta)
    return detached


def _drop_dead(graph: fx.Graph, inputs: set[str]) -> None:
    for node in reversed(list(graph.nodes)):
        if node.users or node.op == "output" or node.name in inputs or is_impure(node):
            continue
        graph.erase_node(node)


def is_impure(node: fx.Node) -> bool:
    """Return whether the node must stay although its result is unused, as an op without results."""
    if isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns:
        return True
    return node.target in (OPAQUE, enter_autocast, exit_autocast) or bool(written_args(node))


def _reads_item(node: fx.Node) -> bool:
    """Return whether the node depends on a Python number that was read from a tensor."""
    sources, seen = list(node.all_input_nodes), set()
    while sources:
        source = sources.pop()
        if _name(source) in ("item", "_local_scalar_dense"):
            return True
        if source not in seen and not isinstance(source.meta.get("val"), torch.Tensor):
            seen.add(source)
            sources += source.all_input_nodes
    return False


def _name(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[-1]
    return getattr(target, "__name__", str(target))
