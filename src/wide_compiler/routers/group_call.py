"""One call of a group of branches in a rewritten graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from .. import _tree
from .._dynamo_marks import TracedStore, constant_result
from ..capture import Captured
from ..capture.aliases import root_of
from ..config import WideConfig
from ..guards.modes import plain_world
from ..lanes import own_gradient
from ..model.program import Call
from .branches import Branch
from .calls import Calls, KnownCalls, without_history
from .recipe import Recipe, walk
from .tower_group import VMapTowerGroup
from .traced import look_of, outside_the_trace, step_for


class GroupCall:
    """Runs several modules of a model, each on its own or on shared tensors.

    Args:
        paths: the modules, one per lane.
        opaque: structure and constant arguments of the call.
        shared: for each tensor argument, whether all lanes get the same tensor.

    Attributes:
        writable: whether the graph writes into an output.
    """

    def __init__(
        self, paths: list[str], model: nn.Module, opaque: Any, shared: list[bool], config: WideConfig
    ):
        self.parts = [tuple(path.split(".")) for path in paths]
        self.opaque, self.shared, self.writable = opaque, shared, False
        self.group = VMapTowerGroup(paths, [model.get_submodule(path) for path in paths], config)
        self.lanes = tuple(range(len(paths)))
        self.watchable = all(Recipe.of(tower).watchable for tower in self.group.towers)
        self.plans = TracedStore()
        self.known = KnownCalls()  # the group's `GroupRoute`s of calls that ran together

    @classmethod
    def of(
        cls,
        captured: Captured,
        group: list[Branch],
        model: nn.Module,
        config: WideConfig,
        written: set[fx.Node],
    ) -> "GroupCall":
        columns = zip(*(branch.tensors for branch in group), strict=True)
        shared = [all(node is column[0] for node in column) for column in columns]
        opaque = captured.calls[group[0].node.args[2]]  # type: ignore[index]
        call = cls([branch.path for branch in group], model, opaque, shared, config)
        outputs = {branch.node for branch in group}
        call.writable = any(root_of(root) in outputs for root in written)
        return call

    def __call__(self, root: nn.Module, tensors: list[list[Tensor]], sizes: list[int]) -> list[list[Tensor]]:
        """Outputs `[lane][output]` of the modules for tensors `[lane][argument]`."""
        if len(self.lanes) == 1:
            args, kwargs = self._arguments(tensors[0], sizes)
            results = [walk(root, self.parts[0])(*args, **kwargs)]
        elif torch.compiler.is_dynamo_compiling():
            results = self._traced(root, tensors, sizes)
        else:
            results = self._run(tensors, sizes)
        outputs = [_tensors_of(out) for out in results]
        if self.writable:
            outputs = [[leaf.clone() for leaf in lane] for lane in outputs]
        return outputs

    def _run(self, tensors: list[list[Tensor]], sizes: list[int]) -> list[Any]:
        joined = tuple(self._joined(tensors))
        circumstances = (self.group.names_count, *sizes)
        route = self.known.find(circumstances, joined, {})
        if route is not None:
            self.group.latest = route
            return route.fused(joined)
        results = self.group.run_calls(self.lanes, self._calls(tensors, sizes, joined))
        ran: Any = self.group.latest
        if plain_world() and ran.fused is not None:  # else the modules have run by themselves
            self.known.keep((self.group.names_count, *sizes), joined, {}, ran)
        return results

    def _arguments(self, tensors: list[Tensor], sizes: list[int]) -> tuple[tuple, dict]:
        return _tree.unflatten(self.opaque.leaves(tensors, sizes), self.opaque.spec)

    def _joined(self, tensors: list[list[Tensor]]) -> list[Tensor]:
        columns = list(zip(*tensors, strict=True))
        pairs = zip(columns, self.shared, strict=True)
        return [column[0] if shared else own_gradient(torch.stack(column)) for column, shared in pairs]

    def _calls(self, tensors: list[list[Tensor]], sizes: list[int], joined: Sequence[Tensor]) -> Calls:
        leaves = self.opaque.leaves(list(joined), sizes)
        signature = _tree.signature(_tree.unflatten(leaves, self.opaque.spec))
        wide = tuple(not shared for shared in self.shared)
        return Calls(
            Call(leaves, self.opaque.spec, wide, signature),
            lambda lane: self._arguments(tensors[lane], sizes),
            [tensor for lane in tensors for tensor in lane],
            lambda: self._joined(tensors),
            lambda: self._alone(tensors, sizes),
        )

    def _alone(self, tensors: list[list[Tensor]], sizes: list[int]) -> Calls:
        once = {id(tensor): without_history(tensor) for lane in tensors for tensor in lane}
        own = [[once[id(tensor)] for tensor in lane] for lane in tensors]
        return self._calls(own, sizes, self._joined(own))

    # Under torch.compile.

    def _traced(self, root: nn.Module, tensors: list[list[Tensor]], sizes: list[int]) -> list[Any]:
        own = [walk(root, parts) for parts in self.parts]
        joined = self._joined(tensors)
        look = look_of(self._arguments(tensors[0], sizes), tensors[0])
        (step,) = self.plans.get(self._step_while_tracing(look))
        if step.program is not None:
            return step.run(own, joined)
        results = []
        for tower, lane in zip(own, tensors, strict=True):
            args, kwargs = self._arguments(lane, sizes)
            results.append(tower(*args, **kwargs))
        return results

    @constant_result
    def _step_while_tracing(self, look: Any) -> int:
        wide = tuple(not shared for shared in self.shared)
        with outside_the_trace():
            return self.plans.keep([step_for(self.group, self.lanes, look, wide, self.watchable)])


def _tensors_of(output: Any) -> list[Tensor]:
    if type(output) is Tensor:
        return [output]
    return [leaf for leaf in _tree.flatten(output)[0] if isinstance(leaf, Tensor)]


def as_function(call: GroupCall) -> Callable[..., Any]:
    """Wrap the call in a function with a descriptive name, for the generated code."""

    def run_group(root: nn.Module, tensors: list[list[Tensor]], sizes: list[int]) -> list[list[Tensor]]:
        return call(root, tensors, sizes)

    kind = type(call.group.towers[0]).__name__
    run_group.__name__ = run_group.__qualname__ = f"run_{len(call.lanes)}_{kind}"
    return run_group
