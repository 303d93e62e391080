"""Parts of a graph that run under an autocast of their own, as modules that torch.compile can trace.

A captured graph enters and leaves autocast by two calls. Dynamo follows a `with` statement, whose end comes
even if tracing what is inside fails, better than two calls that nothing holds together.
"""

import operator
from typing import Any

import torch
from torch import fx, nn

from ..capture.cleanup import enter_autocast, exit_autocast


class AutocastRegion(nn.Module):
    """`body` under `torch.autocast(*settings)`."""

    def __init__(self, body: nn.Module, settings: tuple[Any, ...]):
        super().__init__()
        self.body, self.settings = body, settings

    def forward(self, *args: Any) -> Any:
        with torch.autocast(*self.settings):
            return self.body(*args)


def with_autocast_regions(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph, each stretch between entering and leaving autocast in a module of its own."""
    nodes = list(module.graph.nodes)
    if not any(node.target is enter_autocast for node in nodes):
        return module
    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}
    parts: dict[str, nn.Module] = {}
    position = 0
    while position < len(nodes):
        node = nodes[position]
        if node.target is not enter_autocast:
            env[node] = graph.node_copy(node, lambda n: env[n])
            position += 1
            continue
        end = _end_of(nodes, position)
        inside = nodes[position + 1 : end]
        name = f"autocast_{len(parts)}"
        inputs, outputs = _inputs(inside), _outputs(inside)
        parts[name] = AutocastRegion(_body(module, inside, inputs, outputs), tuple(node.args))
        results = graph.call_module(name, tuple(env[n] for n in inputs))
        for i, output in enumerate(outputs):
            env[output] = graph.call_function(operator.getitem, (results, i))
        position = end + 1
    held = {n.target for n in graph.nodes if n.op in ("get_attr", "call_module")} - {*parts}
    return fx.GraphModule({**parts, **{name: operator.attrgetter(name)(module) for name in held}}, graph)


def _end_of(nodes: list[fx.Node], position: int) -> int:
    """Where the autocast is left that is entered at `position`."""
    entered = nodes[position]
    return next(i for i, n in enumerate(nodes) if n.target is exit_autocast and n.args[0] is entered)


def _inputs(inside: list[fx.Node]) -> list[fx.Node]:
    own = set(inside)
    return list(dict.fromkeys(n for node in inside for n in node.all_input_nodes if n not in own))


def _outputs(inside: list[fx.Node]) -> list[fx.Node]:
    own = set(inside)
    return [node for node in inside if any(user not in own for user in node.users)]


def _body(
    module: fx.GraphModule, inside: list[fx.Node], inputs: list[fx.Node], outputs: list[fx.Node]
) -> fx.GraphModule:
    graph = fx.Graph()
    env = {node: graph.placeholder(node.name) for node in inputs}
    for node in inside:
        env[node] = graph.node_copy(node, lambda n: env[n])
    graph.output(tuple(env[node] for node in outputs))
    return with_autocast_regions(fx.GraphModule(module, graph))
