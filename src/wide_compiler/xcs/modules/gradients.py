"""Training with lanes: one autograd graph for all members that behaves like a graph per member.

Backward through some outputs computes gradients of these members only and frees only their graphs. Tensors
that a member's graph would save are tracked: modifying one in place before backward raises the usual error.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...routers.fused_lanes import Fused
from ..work import Bail, Work
from .trial import finite, storage

# Position among the graph's arguments, and the tensors: one per lane, or one shared.
Place = tuple[int, list[Tensor]]
_HOOKS = tuple(map(operator.attrgetter, ("_backward_hooks", "_post_accumulate_grad_hooks")))
_keeps_graph: Any = torch._C._autograd._get_current_graph_task_keep_graph  # type: ignore[attr-defined]


@dataclass
class SavedTensors:
    """What the graph of one member saves.

    Attributes:
        places: for each argument, whether it is saved.
        output: whether the output is saved.
        anything: whether any tensor is saved.
    """

    places: list[bool]
    output: bool
    anything: bool


def all_of(inputs: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among the inputs, each of which is a tensor or a list of one tensor per member."""
    return [t for x in inputs for t in ([x] if type(x) is Tensor else x)]


def run(
    work: Work,
    states: list[Tensor],
    fused: Fused,
    known: dict[Fused, SavedTensors],
    inputs: list[Any],
    wide: Sequence[bool],
    gather: Callable[[], list[Tensor]],
) -> list[Tensor]:
    """Return the outputs of all members, each with its own node in the autograd graph. Raises `Bail`."""
    if work.plan.memory.get("backward by parts"):
        raise Bail("backward() reaches some members at a time, and only in the loop each has its own graph")
    tensors = [*states, *all_of(inputs)]
    if torch.is_anomaly_enabled() or any(any(map(hooks, tensors)) for hooks in _HOOKS):
        raise Bail("gradient hooks or anomaly detection are active")
    places: list[Place] = [(source.position, source.tensors()) for source in fused.sources]
    places += [(position, [home[name]]) for position, home, name in fused.single]
    places += [(position, list(inputs[i]) if wide[i] else [inputs[i]]) for position, i in fused.inputs]
    if fused not in known:
        known[fused] = _observed(work, [column[0] for _, column in places])
    call = LaneCall(fused, gather, places, known[fused], work.plan.memory)
    # `clone` gives each output its own node, so that hooks run in the same order as in a plain loop.
    outputs = [row.clone() for row in Lanes.apply(call, *call.learning)]
    call.watch(outputs)
    return outputs


def _observed(work: Work, tensors: list[Tensor]) -> SavedTensors:
    """Run the first member unchanged and record which of these tensors its graph saves."""
    seen: set[int] = set()
    with saved_tensors_hooks(lambda t: seen.add(storage(t)) or t, lambda t: t):  # type: ignore[func-returns-value]
        (output,) = work.compared(0)
    if not isinstance(output, Tensor):
        raise Bail("in training each member must return one tensor")
    return SavedTensors([storage(t) in seen for t in tensors], storage(output) in seen, bool(seen))


class LaneCall:
    """One call of all lanes: the stacked output with its graph, and the state of each lane's backward.

    Attributes:
        leaves: arguments of the graph that require gradients, detached from the members' tensors.
        learning: the members' tensors that these are made of.
        lanes: the lane of each tensor in `learning`; None for a shared one.
        wide: for each leaf, whether it has a lane axis.
        freed: lanes whose graph was freed by backward.
    """

    def __init__(
        self, fused: Fused, gather: Any, places: list[Place], saved: SavedTensors, memory: dict[str, Any]
    ):
        self.again, self.saved, self.memory = (lambda: fused.stacked(gather())), saved, memory
        self.leaves: list[Tensor] = []
        self.learning: list[Tensor] = []
        self.lanes: list[int | None] = []
        self.wide: list[bool] = []
        self.freed: set[int] = set()
        with torch.no_grad():
            arguments = fused.arguments(gather())
        for position, column in places:
            if any(t.requires_grad is not column[0].requires_grad for t in column):
                raise Bail("requires_grad differs between members")
            if column[0].requires_grad:
                leaf = arguments[position] = arguments[position].detach().requires_grad_()
                self.leaves.append(leaf)
                self.learning += column
                self.lanes += [None] if len(column) == 1 else range(fused.n)
                self.wide.append(len(column) > 1)
        self.out: Any = fused.program.run_way(fused.run, arguments)
        if type(self.out) is not Tensor or not self.out.requires_grad:
            raise Bail("in training each member must return one tensor with a gradient for its parameters")
        finite((self.out.detach(),))
        kept = [place for place, flag in zip(places, saved.places, strict=True) if flag]
        self.copies = [(arguments[position], column) for position, column in kept if len(column) > 1]
        self.watched = [(i if len(c) > 1 else None, t) for _, c in kept for i, t in enumerate(c)]

    def watch(self, outputs: list[Tensor]) -> None:
        """Record versions, so that later in-place changes of saved tensors are detected."""
        if self.saved.output:
            # Detached tensors share the version counter.
            self.watched += enumerate(y.detach() for y in outputs)
        self.versions = [t._version for _, t in self.watched]

    def backward(self, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of `learning`, given those of the outputs; None for an output not reached."""
        reached = {lane for lane, gradient in enumerate(given) if gradient is not None}
        again = torch.is_grad_enabled()
        keep = again or _keeps_graph()
        self._check(reached)
        if not keep and self.saved.anything:
            self.freed |= reached
        if len(reached) < len(given):
            self.memory["backward by parts"] = True
        first = next(g for g in given if g is not None)
        stacked = torch.stack([torch.zeros_like(first) if g is None else g for g in given])
        if again:
            return self._again(stacked, reached)
        for copy, column in self.copies:  # a member's own graph would see writes to `.data` since the forward
            torch.stack(column, out=copy.data)
        retain = keep or len(self.freed) < len(given)
        found = torch.autograd.grad(self.out, self.leaves, stacked, retain_graph=retain, allow_unused=True)
        gradients: list[Tensor | None] = []
        for gradient, wide in zip(found, self.wide, strict=True):
            if not wide:
                gradients.append(gradient)
            elif gradient is None:
                gradients += [None] * len(given)
            else:
                gradients += [g if i in reached else None for i, g in enumerate(gradient.unbind(0))]
        return gradients

    def _again(self, stacked: Tensor, reached: set[int]) -> list[Tensor | None]:
        """Compute the gradients with `create_graph`, from a new forward whose graph the caller owns."""
        once = {id(t): t for t in self.learning}
        found = torch.autograd.grad(
            self.again(), list(once.values()), stacked, create_graph=True, allow_unused=True
        )
        left = dict(zip(once, found, strict=True))  # each is returned once
        return [
            left.pop(id(t), None) if lane is None or lane in reached else None
            for lane, t in zip(self.lanes, self.learning, strict=True)
        ]

    def _check(self, reached: set[int]) -> None:
        if reached & self.freed:
            with torch.enable_grad():
                leaf = torch.ones(1, requires_grad=True)
                done = leaf.exp()
            for _ in range(2):  # raises PyTorch's own error
                torch.autograd.grad(done, leaf, torch.ones(1))
        for (lane, tensor), version in zip(self.watched, self.versions, strict=True):
            if tensor._version != version and (lane is None or lane in reached):
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace "
                    f"operation: [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
                    f"expected version {version} instead. Hint: enable anomaly detection to find the "
                    "operation that failed to compute its gradient, with "
                    "torch.autograd.set_detect_anomaly(True)."
                )


class Lanes(torch.autograd.Function):
    """Autograd function from the members' tensors to the lanes of the stacked output."""

    @staticmethod
    def forward(ctx: Any, call: LaneCall, *learning: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple([row.data for row in call.out.contiguous().unbind(0)])

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.call.backward(given)
