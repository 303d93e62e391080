"""Ways to run a lane graph: all lanes at once, some at a time, or one by one.

A way is called with the lane graph's arguments in the order of its placeholders, and returns its outputs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..capture import Captured
from ..capture.aliases import written_roots
from ..widen import MEMBERS, LaneGraph
from ..widen.per_lane import give_back

Arguments = list[Any]
Outputs = Sequence[Any]
Runner = Callable[..., Outputs]


# Bytes of outputs that may be held twice while they are joined.
SMALL = 2**26


class Whole:
    """All lanes at once."""

    name = "wide"

    def __init__(self, runner: Runner):
        self.runner = runner

    def __call__(self, arguments: Arguments) -> Outputs:
        return self.runner(*arguments)


class Chunks:
    """At most `size` lanes at a time: less memory, and on a CPU activations that fit the cache."""

    def __init__(self, graph: LaneGraph, runner: Runner, n: int, size: int):
        self.graph, self.runner, self.n, self.size = graph, runner, n, size
        self.name = f"chunks of {size}"
        self.wide = [has_lanes(graph, kind, key) for kind, key in graph.feeds]
        self.written = [kind == "state" and key in graph.writes for kind, key in graph.feeds]

    def __call__(self, arguments: Arguments) -> Outputs:
        joined = _Joined(self.n)
        returns: list[tuple[Tensor, Tensor]] = []
        for start in range(0, self.n, self.size):
            lanes = slice(start, min(start + self.size, self.n))
            joined.add(lanes, self.runner(*self._some(arguments, lanes, returns)))
        give_back(returns)
        return joined.outputs()

    def _some(self, arguments: Arguments, lanes: slice, returns: list[tuple[Tensor, Tensor]]) -> Arguments:
        some: Arguments = []
        for value, wide, written, (kind, _) in zip(
            arguments, self.wide, self.written, self.graph.feeds, strict=True
        ):
            if kind == "n":
                value = lanes.stop - lanes.start
            elif wide and value is not None:
                value = value[lanes]
            if written:  # a copy, written back at the end: see `lent`
                returns.append((value, value.clone()))
                value = returns[-1][1]
            some.append(value)
        return some


def has_lanes(graph: LaneGraph, kind: str, key: str) -> bool:
    if kind == "state":
        return key in graph.wide_states or key == MEMBERS
    if kind == "input":
        return graph.wide_inputs[int(key)]
    return kind != "n"  # values that differ by lane, and seeds


class _Joined:
    """Joins outputs computed for some lanes at a time, without holding much twice.

    Outputs up to `small` bytes are joined at the end: allocating the result before the first chunk would keep
    the allocator from reusing that memory, which costs more than the copy.
    """

    def __init__(self, n: int, small: int = 0):
        self.n, self.small = n, small
        self.whole: list[Any] = []
        self.parts: list[Outputs] = []

    def add(self, lanes: slice, outputs: Outputs) -> None:
        tensors = [o for o in outputs if isinstance(o, Tensor)]
        learn = torch.is_grad_enabled() and any(o.requires_grad for o in tensors)
        share = self.n // (lanes.stop - lanes.start)
        if learn or self.parts or share * sum(o.nbytes for o in tensors) <= self.small:
            self.parts.append(outputs)  # backward needs the parts
            return
        if not self.whole:
            self.whole = [o.new_empty(self.n, *o.shape[1:]) if isinstance(o, Tensor) else o for o in outputs]
        for whole, part in zip(self.whole, outputs, strict=True):
            if isinstance(part, Tensor):
                whole[lanes].copy_(part)

    def outputs(self) -> Outputs:
        if self.whole:
            return self.whole
        columns = zip(*self.parts, strict=True)
        return [torch.cat(c) if isinstance(c[0], Tensor) else c[0] for c in columns]


class MemberLoop:
    """Run the members' captured graph once per lane, so it is not slower than the loop it replaces."""

    name = "loop"

    def __init__(self, captured: Captured, graph: LaneGraph, n: int):
        self.n = n
        self.module = fx.GraphModule(dict(captured.constants), _with_constants(captured))
        self.runner: Runner = self.module.forward
        position = {feed: i for i, feed in enumerate(graph.feeds)}
        self.columns: list[tuple[int | None, Any, bool, bool]] = []  # position, values, has lanes, written
        for node in captured.graph.find_nodes(op="placeholder"):
            kind, given = captured.source(node.name)
            if kind == "state":
                wide, written = given in graph.wide_states, given in graph.writes
                self.columns.append((position[kind, given], None, wide, written))
            elif kind == "input":
                self.columns.append((position[kind, str(given)], None, graph.wide_inputs[given], False))
            elif kind != "constant":
                self.columns.append((None, given, True, False))

    @staticmethod
    def can_run(captured: Captured) -> bool:
        """Return whether a graph can run per lane: no member runs as Python, it writes only its state."""
        roots = [node for node in written_roots(captured.graph) if node.op == "placeholder"]
        return not captured.calls and all(node.name in captured.states for node in roots)

    def __call__(self, arguments: Arguments) -> Outputs:
        returns: list[tuple[Tensor, Tensor]] = []
        by_lane: list[Sequence[Any]] = []
        for place, own, wide, written in self.columns:
            value = own if place is None else arguments[place]
            if not wide:
                by_lane.append([value] * self.n)
                continue
            # unbind, not value[i]: its backward is one stack instead of n zero-filled copies.
            each = value.unbind(0) if isinstance(value, Tensor) else value
            if written:
                copies = [lane.clone() for lane in each]
                returns += zip(each, copies, strict=True)
                each = copies
            by_lane.append(each)
        joined = _Joined(self.n, small=SMALL)
        for lane, own_arguments in enumerate(zip(*by_lane, strict=True)):
            outputs = self.runner(*own_arguments)
            with_lane = [o.unsqueeze(0) if isinstance(o, Tensor) else o for o in outputs]
            joined.add(slice(lane, lane + 1), with_lane)
        give_back(returns)
        return joined.outputs()


def _with_constants(captured: Captured) -> fx.Graph:
    """Return a copy of the members' graph with constants as module attributes instead of arguments."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in captured.graph.nodes:
        if node.op == "placeholder" and node.name in captured.constants:
            env[node] = graph.get_attr(node.name)
        else:
            env[node] = graph.node_copy(node, lambda n: env[n])
    # get_attr nodes may be among placeholders, but placeholders must come first.
    first = next((n for n in graph.nodes if n.op != "placeholder"), None)
    for node in [n for n in graph.nodes if n.op == "placeholder"]:
        if first is not None and node > first:
            first.prepend(node)
    return graph


Way = Whole | Chunks | MemberLoop
