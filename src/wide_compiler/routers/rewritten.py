"""A model's graph with joined branches, as run by `CompileRouter`."""

import contextlib
import operator
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..capture import OPAQUE, Captured
from ..capture.aliases import written_roots
from ..config import WideConfig
from ..widen.classify import draws
from .branches import Branch, Branches
from .group_call import GroupCall, as_function
from .recipe import parts_of, walk
from .verdict import Verdict


class Rewritten:
    """Runs a captured model on its current tensors, with each group of branches as one call."""

    def __init__(
        self, captured: Captured, model: nn.Module, config: WideConfig, python: Collection[str] = ()
    ):
        """`python`: paths of modules that cannot be captured and run as Python."""
        self.captured, self.holds = captured, captured.rests_on.holds
        self.python = frozenset(python)
        branches = Branches(captured, model, python)
        self.plan = branches.planned()
        self.calls: list[GroupCall] = []
        self.feeds: list[tuple[str, Any, Any]] = []
        self.module = fx.GraphModule(dict(captured.constants), self._joined(branches, model, config))
        self.draws = any(draws(node) for node in captured.graph.nodes)
        self.model = model
        self.places = [place if kind == "input" else None for kind, place, _ in self.feeds]
        self.homes = [_home(model, *feed) for feed in self.feeds]
        self.verdicts: dict[bool, Verdict] = {}  # by whether gradients are recorded

    @property
    def verdict(self) -> Verdict | None:
        """Whether it may replace the model; None if not judged yet."""
        found = self.verdicts.get(torch.is_grad_enabled())
        return found or next(iter(self.verdicts.values()), None)

    def run(self, root: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Return the model's output; `root` is the model, `tensors` are those of its arguments."""
        arguments: list[Any] = [root]
        for kind, place, name in self.feeds:
            arguments.append(tensors[place] if kind == "input" else getattr(walk(root, place), name))
        return self.captured.rebuild(self.module(*arguments))

    def run_call(self, tensors: Sequence[Tensor], args: tuple = (), kwargs: Any = None) -> Any:
        """Same as `run` for the original model, valid while its modules and their tables are not replaced."""
        arguments: list[Any] = [self.model]
        for place, (home, name) in zip(self.places, self.homes, strict=True):
            arguments.append(home[name] if place is None else tensors[place])
        if not self.python:
            return self.captured.rebuild(self.module.forward(*arguments))
        with _undone_if_shapes_differ(self):
            return self.captured.rebuild(self.module.forward(*arguments))

    # The graph.

    def _joined(self, branches: Branches, model: nn.Module, config: WideConfig) -> fx.Graph:
        captured, written = self.captured, written_roots(self.captured.graph)
        graph, env = fx.Graph(), {}
        root = graph.placeholder("model_root")
        placeholders = {n.name: n for n in captured.graph.nodes if n.op == "placeholder"}
        for node in placeholders.values():
            if node.name in captured.constants:
                continue
            env[node] = graph.node_copy(node)
            if node.name in captured.states:
                owner, _, name = captured.states[node.name].rpartition(".")
                self.feeds.append(("state", parts_of(owner), name))
            else:
                self.feeds.append(("input", captured.inputs.index(node.name), None))
        for name in captured.constants:
            env[placeholders[name]] = graph.get_attr(name)
        groups = [[branch] for branch in branches.loose] + branches.groups
        number = {branch.node: i for i, group in enumerate(groups) for branch in group}
        by_node = {branch.node: branch for branch in branches.all}
        for unit in branches.dependencies.order(number):
            if unit[0].op == "placeholder":
                continue
            if unit[0] in by_node:
                group = [by_node[node] for node in unit]
                self._join(graph, env, root, group, GroupCall.of(captured, group, model, config, written))
            elif unit[0].target is OPAQUE:
                call = captured.calls[unit[0].args[2]]  # type: ignore[index]
                env[unit[0]] = graph.call_function(
                    _function(call), tuple(fx.node.map_arg(unit[0].args[:2], lambda n: env[n]))
                )
            else:
                env[unit[0]] = graph.node_copy(unit[0], lambda n: env[n])
        output = next(node for node in captured.graph.nodes if node.op == "output")
        graph.output(fx.node.map_arg(output.args[0], lambda n: env[n]))
        graph.lint()
        return graph

    def _join(self, graph: fx.Graph, env: Any, root: fx.Node, group: list[Branch], call: GroupCall) -> None:
        self.calls.append(call)
        tensors = [[env[t] for t in branch.tensors] for branch in group]
        sizes = fx.node.map_arg(group[0].node.args[1], lambda n: env[n])
        function = as_function(call)
        if group[0].path in self.python:
            function = _of_known_shapes(function, group[0])
        joined = graph.call_function(function, (root, tensors, sizes))
        for lane, branch in enumerate(group):
            env[branch.node] = graph.call_function(operator.getitem, (joined, lane))


class OtherShapes(Exception):
    """A module run as Python returned other shapes than the captured graph expects."""


def _of_known_shapes(function: Any, branch: Branch) -> Any:
    """Wrap `function`, which runs one module as Python, to raise `OtherShapes` for unexpected shapes.

    Sizes that are computed from the inputs' sizes are part of the graph; other sizes were seen in one run.
    """
    expected = [tuple(value.shape) for value in branch.node.meta["val"]]
    seen_only = all(isinstance(size, int) for shape in expected for size in shape)

    def run_python(root: nn.Module, tensors: Any, sizes: Any) -> Any:
        outputs = function(root, tensors, sizes)
        if seen_only and [tuple(leaf.shape) for leaf in outputs[0]] != expected:
            raise OtherShapes(f"{branch.path} returns tensors whose shape depends on values")
        return outputs

    return run_python


@contextlib.contextmanager
def _undone_if_shapes_differ(program: Rewritten) -> Iterator[None]:
    """On `OtherShapes`, restore buffers and random state, and disable the program."""
    buffers = [(buffer, buffer.clone()) for buffer in program.model.buffers()]
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    draws = torch.get_rng_state(), torch.cuda.get_rng_state_all() if cuda else []
    try:
        yield
    except OtherShapes as error:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        torch.set_rng_state(draws[0])
        if cuda:
            torch.cuda.set_rng_state_all(draws[1])
        program.verdicts = dict.fromkeys((True, False), Verdict(False, str(error)))
        raise


def _home(model: nn.Module, kind: str, place: Any, name: str) -> tuple[dict[str, Any], str]:
    """Return the dict that holds a tensor, and its key."""
    if kind == "input":
        return {}, ""
    tables = vars(walk(model, place))
    found = [tables[t] for t in ("_parameters", "_buffers") if name in tables[t]]
    return (found or [tables])[0], name


def _function(call: Any) -> Any:
    """Return a function that runs an autograd function that was kept whole."""

    def run_function(tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
        return call.run(call.function, tensors, sizes)

    return run_function
