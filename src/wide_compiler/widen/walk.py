"""Walk over the captured graph and turn every node into lane code."""

import contextlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..capture import OPAQUE, Captured, module_path
from ..capture.aliases import (
    root_of,
    roots_written_through_reshape,
    writes_after_views,
    written_args,
    written_roots,
)
from ..capture.cleanup import enter_autocast, exit_autocast
from ..errors import ValidationError, one_line
from ..lane_values import LaneValues
from ..measure.compare import exact_products
from . import opaque_nodes
from .attempt import Attempt, ReadsLayout, WidenFailed
from .builder import Builder, LaneScalar, Val, is_tensor_val, map_leaves, vals_in
from .check import WholeGraphDiffers, check_whole_graph
from .classify import is_random, is_size, is_wide
from .helpers import autocast_restored, own_lanes
from .lane_graph import LaneGraph, NodeRow, scalar_data
from .rules import find_rule


class _WidenRoot(Exception):
    """A wide value is written into a shared one: restart with that root wide."""

    def __init__(self, root: fx.Node):
        self.root = root


@dataclass
class Probe:
    """A few lanes with real values, on which widening evaluates every call.

    `states` as a `LaneGraph` takes them, for `n` lanes; `inputs` with a lane axis where `wide_inputs`.
    `layout(call, tensors, sizes)`: in which of `LAYOUTS` a registered class takes this call, and a remark.
    """

    n: int
    states: Mapping[str, Any]
    inputs: Sequence[Tensor]
    layout: Callable[..., tuple[str, str]] | None = None


def widen(
    captured: Captured,
    wide_states: frozenset[str],
    wide_inputs: tuple[bool, ...],
    probe: Probe,
    strategies: Mapping[str, str] | None = None,
) -> LaneGraph:
    """Build the lane graph of `captured`, with the given states and inputs wide."""
    from .. import primitives  # noqa: F401  whose rules import this room, and must be known by now

    walk = _Walk(captured, wide_states, wide_inputs, probe, strategies or {})
    devices = {t.device for t in probe.inputs if t.device.type == "cuda"}
    exact = exact_products() if devices else contextlib.nullcontext()
    with torch.no_grad(), torch.random.fork_rng(devices=list(devices)), autocast_restored(), exact:
        while True:
            try:
                return walk.once()
            except _WidenRoot as found:
                if found.root in walk.wide_roots:
                    raise WidenFailed(f"a write into {found.root} loses its lane axis") from None
                walk.wide_roots.add(found.root)


@dataclass
class _Walk:
    captured: Captured
    wide_states: frozenset[str]
    wide_inputs: tuple[bool, ...]
    probe: Probe
    strategies: Mapping[str, str]

    def __post_init__(self) -> None:
        self.wide_roots: set[fx.Node] = set()
        self.written = written_roots(self.captured.graph)
        self.contiguous = roots_written_through_reshape(self.captured.graph)

    def once(self) -> LaneGraph:
        self.graph = fx.Graph()
        self.module = fx.GraphModule(torch.nn.Module(), self.graph)
        self.feeds: dict[tuple[str, str], fx.Node] = {}
        self.rows: list[NodeRow] = []
        self.devices: set[torch.device] = set()  # of states and inputs
        self.env: dict[fx.Node, Any] = {}
        # Written states are cloned, so that the probe does not change the lanes.
        writes, states = self.captured.writes, self.probe.states.items()
        self.states = {path: value.clone() if path in writes else value for path, value in states}
        self.builder = Builder(self.graph, self.probe.n, self.feed)
        self.builder.rng = Val(self.feed("rng", "rng"), None, wide=False)
        self.builder.strategies = self.strategies
        last_use = _last_uses(self.captured.graph)
        outputs: Any = None
        for node in self.captured.graph.nodes:
            self.builder.meta = {"path": module_path(node)}
            if node.op == "placeholder":
                value = self._placeholder(node)
                if is_tensor_val(value):
                    value.node.meta["shape"] = tuple(value.value.shape)
                    self.devices.add(value.value.device)
                self.env[node] = self._root_ready(node, value)
            elif node.op == "output":
                outputs = [self._output(self.env[n]) for n in node.args[0]]
            else:
                mark = len(self.builder.emitted)
                self.env[node] = self._root_ready(node, self._compute(node))
                if self.rows:
                    self.rows[-1].nodes += [n.name for n in self.builder.emitted[mark:]]
            for dead in last_use.get(node, ()) if node.op != "output" else ():
                if dead.op != "placeholder":
                    self.env[dead] = _forget(self.env[dead])
        self.graph.output(tuple(o.node for o in outputs))
        if writes_after_views(self.captured.graph):
            try:
                check_whole_graph(self.captured, self.probe, self.wide_states, self.wide_inputs, outputs)
            except WholeGraphDiffers as error:
                raise WidenFailed(str(error)) from error
        pairs = zip(outputs, self.captured.gives_numbers(), strict=True)
        return self._finish([o.rank if is_tensor_val(o) and not number else None for o, number in pairs])

    def _output(self, value: Any) -> Val:
        """Return a result with a lane axis and separate memory per lane; a size stays a number."""
        if is_tensor_val(value) and not value.wide:
            return self.builder.call(own_lanes, value, self.builder.n)
        return value

    def _finish(self, output_ranks: list[int | None]) -> LaneGraph:
        lane_data: dict[str, Any] = {}
        gpus = [device for device in self.devices if device.type != "cpu"]
        # On the GPU, because a copy from the CPU at every call could not be captured in a CUDA graph.
        home = gpus[0] if len(gpus) == 1 else torch.device("cpu")
        for name, values in self.captured.scalars.items():
            lane_data |= scalar_data(name, values, home)
        for name, tensor in self.captured.lane_constants.items():
            lane_data[f"lane_constant:{name}"] = tensor
        self.graph.lint()
        self.module.recompile()
        return LaneGraph(
            module=self.module,
            feeds=list(self.feeds),
            wide_states=self.wide_states,
            wide_inputs=self.wide_inputs,
            writes=frozenset(self.captured.writes),
            lane_data=lane_data,
            rows=self.rows,
            output_ranks=output_ranks,
            enters_autocast=any(n.target is enter_autocast for n in self.captured.graph.nodes),
        )

    def feed(self, kind: str, key: str) -> fx.Node:
        """Return the placeholder for (kind, key), created on first use before the first computation."""
        if (kind, key) not in self.feeds:
            hint = key if kind != "input" else f"input_{key}"
            compute = next((n for n in self.graph.nodes if n.op != "placeholder"), None)
            with self.graph.inserting_before(compute) if compute else self.graph.inserting_after():
                name = hint.replace(".", "_").strip("<>") + ("_values" if kind == "scalar_values" else "")
                name = name if name.isidentifier() else f"member_{name}"
                node = self.feeds[kind, key] = self.graph.placeholder(name)
                node.target = node.name  # fx makes the names of nodes unique, but not those of arguments
        return self.feeds[kind, key]

    def state(self, path: str) -> Val:
        return Val(self.feed("state", path), self.states[path], path in self.wide_states)

    def _placeholder(self, node: fx.Node) -> Any:
        name, (kind, given) = node.name, self.captured.source(node.name)
        if kind == "state":
            return self.state(given)
        if kind == "scalar":
            return LaneScalar(name, LaneValues(given[: self.probe.n]))
        if kind == "lane_constant":
            return Val(self.feed(kind, name), given[: self.probe.n], wide=True)
        if kind == "constant":
            self.module.register_buffer(name, given)
            constant = self.graph.get_attr(name)
            self.builder.emitted.append(constant)
            return Val(constant, given, wide=False)
        value = Val(self.feed(kind, str(given)), self.probe.inputs[given], self.wide_inputs[given])
        # A caller's input is never written.
        return self.builder.call(torch.clone, value, wide=value.wide) if node in self.written else value

    def _root_ready(self, node: fx.Node, value: Any) -> Any:
        if not is_tensor_val(value):
            return value
        if node in self.wide_roots and not value.wide:
            if node.name in self.captured.states:
                raise WidenFailed(
                    f"{self.captured.states[node.name]} is one tensor for all lanes, and lanes write into it"
                )
            value = self.builder.call(own_lanes, value, self.builder.n)
        if node in self.contiguous and node.op != "placeholder" and not value.value.is_contiguous():
            value = self.builder.call(torch.Tensor.contiguous, value, wide=value.wide)
        return value

    def _compute(self, node: fx.Node) -> Any:
        args, kwargs = self._resolve(node.args), self._resolve(node.kwargs)
        if node.target in (enter_autocast, exit_autocast):
            return self.builder.call(node.target, *args, wide=False)
        if node.target is operator.getitem:
            source, index = args
            if isinstance(source, Val):
                return self.builder.call(operator.getitem, source, index, wide=source.wide)
            return source[index]
        if node.target is OPAQUE:
            return self._opaque(node, args)
        vals = vals_in((args, kwargs))
        if not isinstance(node.target, torch._ops.OpOverload) and not any(is_wide(v) for v in vals):
            return self.builder.call(node.target, *args, wide=False, **kwargs)  # type: ignore[arg-type]  # sizes
        if is_size(node.target):
            rule = find_rule(node.target)
            if rule is None:
                raise ReadsLayout(f"{node.target} reads the memory layout, which differs for lanes")
            return rule.function(self.builder, *args)
        self.rows.append(NodeRow(module_path(node), str(node.target).removeprefix("aten."), ""))
        self.builder.strategy = ""
        result = self._widened(node, args, kwargs, vals)
        self.rows[-1].strategy = self.builder.strategy
        return result

    def _resolve(self, tree: Any) -> Any:
        """Return a node's arguments with the lane graph's values in place of nodes."""
        return map_leaves(lambda x: self.env[x] if isinstance(x, fx.Node) else x, tree)

    def _widened(self, node: fx.Node, args: Any, kwargs: Any, vals: list[Any]) -> Any:
        row, op = self.rows[-1], node.target
        if not any(is_wide(v) for v in vals) and not is_random(op):
            row.how = "shared"
            return self.builder.call(op, *args, wide=False, **kwargs)  # type: ignore[arg-type]
        for argument in written_args(node):
            if not self.env[argument].wide:
                raise _WidenRoot(root_of(argument))
        written = [self.env[n].value for n in written_args(node)]
        return Attempt(self.builder, node, args, kwargs, written, row).run()

    def _opaque(self, node: fx.Node, args: Any) -> Any:
        call = self.captured.calls[args[2]]
        row = NodeRow(call.path or module_path(node), call.name, "", why=call.why)
        self.rows.append(row)
        try:
            return opaque_nodes.widen_call(self, call, args[0], args[1], row)
        except ValidationError:  # a registered class is wrong: that is for the user, not for a loop
            raise
        except Exception as error:
            raise WidenFailed(f"{call.path or call.name} kept whole: {one_line(error)}") from error


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for used in node.all_input_nodes:
            last[used] = node
    uses: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        uses.setdefault(node, []).append(used)
    return uses


def _forget(value: Any) -> Any:
    """Release a probe value after its last use, to bound memory."""
    if is_tensor_val(value):
        value.value = None
    return value
