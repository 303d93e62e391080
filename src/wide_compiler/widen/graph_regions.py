"""Regions of a graph as submodules: code under autocast, and code recomputed in the backward pass.

A captured graph enters and leaves autocast by two calls. Dynamo handles a `with` statement better, because it
ends even if tracing its body fails.
"""

import functools
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from ..capture.aliases import written_args
from ..capture.cleanup import enter_autocast, exit_autocast
from ..capture.opaque import OPAQUE
from ..capture.zipping import module_path


class AutocastRegion(nn.Module):
    """`body` under `torch.autocast(*settings)`."""

    def __init__(self, body: nn.Module, settings: tuple[Any, ...]):
        super().__init__()
        self.body, self.settings = body, settings

    def forward(self, *args: Any) -> Any:
        with torch.autocast(*self.settings):
            return self.body(*args)


class CheckpointRegion(nn.Module):
    """Runs `body` under checkpointing: only its inputs are kept for the backward pass."""

    def __init__(self, body: nn.Module, draws: bool):
        super().__init__()
        self.body, self.draws = body, draws

    def forward(self, *args: Any) -> Any:
        # Saving the random state cannot be captured in a CUDA graph.
        return checkpoint(self.body, *args, use_reentrant=False, preserve_rng_state=self.draws)


@dataclass
class _Span:
    """Nodes `start` to `end` of a graph that leave it; those in `body` go into a module."""

    start: int
    end: int
    body: list[fx.Node]
    wrap: Callable[[fx.GraphModule], nn.Module]


def with_autocast_regions(module: fx.GraphModule) -> fx.GraphModule:
    """Return the graph with each autocast region in a submodule."""
    nodes = list(module.graph.nodes)
    spans: list[_Span] = []
    for i, node in enumerate(nodes):
        if node.target is enter_autocast and (not spans or i >= spans[-1].end):
            end = next(k for k, n in enumerate(nodes) if n.target is exit_autocast and n.args[0] is node)
            wrap = functools.partial(_under_autocast, tuple(node.args))
            spans.append(_Span(i, end + 1, nodes[i + 1 : end], wrap))
    return _folded(module, nodes, spans)


def with_checkpoints(module: fx.GraphModule, paths: Collection[str], draws: bool) -> fx.GraphModule:
    """Return the graph with what the submodules at `paths` compute in checkpointed submodules.

    Regions that write tensors, or call the members' Python, are left out, because they would run twice.
    """
    module = with_autocast_regions(module)
    nodes = list(module.graph.nodes)
    spans: list[_Span] = []
    start = 0
    while start < len(nodes):
        path = _region(nodes[start], paths)
        end = start + 1
        while path is not None and end < len(nodes) and _region(nodes[end], paths) == path:
            end += 1
        body = nodes[start:end]
        once = any(node.target is OPAQUE or written_args(node) for node in body)
        if path is not None and len(body) > 1 and not once:
            spans.append(_Span(start, end, body, lambda inner: CheckpointRegion(inner, draws)))
        start = end
    return _folded(module, nodes, spans)


def _under_autocast(settings: tuple[Any, ...], body: fx.GraphModule) -> nn.Module:
    return AutocastRegion(with_autocast_regions(body), settings)


def _region(node: fx.Node, paths: Collection[str]) -> str | None:
    """Return the outermost of `paths` that contains this node."""
    if node.op not in ("call_function", "call_module"):
        return None
    own = node.meta.get("path", module_path(node))
    return min((p for p in paths if own == p or own.startswith(f"{p}.")), key=len, default=None)


def _folded(module: fx.GraphModule, nodes: list[fx.Node], spans: list[_Span]) -> fx.GraphModule:
    if not spans:
        return module
    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}
    parts: dict[str, nn.Module] = {}
    position = 0
    for span in spans:
        for node in nodes[position : span.start]:
            env[node] = graph.node_copy(node, lambda n: env[n])
        name = f"region_{len(parts)}"
        inputs, outputs = _inputs(span.body), _outputs(span.body)
        parts[name] = span.wrap(_body(module, span.body, inputs, outputs))
        results = graph.call_module(name, tuple(env[n] for n in inputs))
        results.meta["path"] = path = span.body[0].meta.get("path", module_path(span.body[0]))
        for i, output in enumerate(outputs):
            env[output] = graph.call_function(operator.getitem, (results, i))
            env[output].meta = {**output.meta, "path": path}
        position = span.end
    for node in nodes[position:]:
        env[node] = graph.node_copy(node, lambda n: env[n])
    held = {str(n.target) for n in graph.nodes if n.op in ("get_attr", "call_module")} - {*parts}
    return fx.GraphModule({**parts, **{name: operator.attrgetter(name)(module) for name in held}}, graph)


def _inputs(body: list[fx.Node]) -> list[fx.Node]:
    own = set(body)
    return list(dict.fromkeys(n for node in body for n in node.all_input_nodes if n not in own))


def _outputs(body: list[fx.Node]) -> list[fx.Node]:
    own = set(body)
    return [node for node in body if any(user not in own for user in node.users)]


def _body(
    module: fx.GraphModule, body: list[fx.Node], inputs: list[fx.Node], outputs: list[fx.Node]
) -> fx.GraphModule:
    graph = fx.Graph()
    env = {node: graph.placeholder(node.name) for node in inputs}
    for node in body:
        env[node] = graph.node_copy(node, lambda n: env[n])
    graph.output(tuple(env[node] for node in outputs))
    return fx.GraphModule(module, graph)
