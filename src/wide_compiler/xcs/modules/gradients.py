"""Training with lanes: one autograd graph for all members that behaves like a graph per member.

Each output has an autograd node of its own, which saves what the member's graph would save. PyTorch then
detects in-place changes and a second backward as in plain Python. These nodes lead to one node that computes
the gradients of all members at once.
"""

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...lanes import copied_if_met
from ...routers.fused_lanes import Fused
from ..work import Bail, Work
from .trial import finite, storage

if TYPE_CHECKING:
    from .group import Group

# An argument of the graph, or its position, and the tensors that it is made of: one per lane, or one shared.
Place = tuple[Any, list[Tensor]]
Gather = Callable[[], list[Tensor]]
_HOOKS = tuple(map(operator.attrgetter, ("_backward_hooks", "_post_accumulate_grad_hooks")))
_keeps_graph: Any = torch._C._autograd._get_current_graph_task_keep_graph  # type: ignore[attr-defined]


class SavedTensors(NamedTuple):
    """What the graph of one member saves: which arguments, the output, any tensor at all."""

    places: list[bool]
    output: bool
    anything: bool


def all_of(inputs: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among the inputs, each of which is a tensor or a list of one tensor per member."""
    return [t for x in inputs for t in ([x] if type(x) is Tensor else x)]


def run(
    work: Work, group: "Group", fused: Fused, inputs: list[Any], wide: Sequence[bool], gather: Gather
) -> list[Tensor]:
    """Return the outputs of all members, each with its own node in the autograd graph. Raises `Bail`."""
    if work.plan.memory.get("backward by parts"):
        raise Bail("backward() reaches some members at a time, and only in the loop each has its own graph")
    tensors, known = [*group.guard.real, *all_of(inputs)], group.saved
    if torch.is_anomaly_enabled() or any(any(map(hooks, tensors)) for hooks in _HOOKS):
        raise Bail("gradient hooks or anomaly detection are active")
    places: list[Place] = [(source.position, source.tensors()) for source in fused.sources]
    places += [(position, [home[name]]) for position, home, name in fused.single]
    places += [(position, list(inputs[i]) if wide[i] else [inputs[i]]) for position, i in fused.inputs]
    if fused not in known:
        known[fused] = _observed(work, [column[0] for _, column in places])
    call = LaneCall(fused, gather, places, known[fused], work.plan.memory)
    rows = Lanes.apply(call, *call.learning)
    return [Member.apply(call, lane, row) for lane, row in enumerate(rows)]


def _observed(work: Work, tensors: list[Tensor]) -> SavedTensors:
    """Run the first member unchanged and record which of these tensors its graph saves."""
    seen: set[int] = set()
    with saved_tensors_hooks(lambda t: seen.add(storage(t)) or t, lambda t: t):  # type: ignore[func-returns-value]
        (output,) = work.compared(0)
    if not isinstance(output, Tensor):
        raise Bail("in training each member must return one tensor")
    return SavedTensors([storage(t) in seen for t in tensors], storage(output) in seen, bool(seen))


class LaneCall:
    """One call of all lanes: the stacked output with its graph.

    Attributes:
        leaves: arguments of the graph that require gradients, with the members' tensors they are made of.
        kept: the arguments that the graph saves, likewise.
        freed: lanes whose graph was freed by backward.
    """

    def __init__(self, fused: Fused, gather: Gather, places: list[Place], saved: SavedTensors, memory: Any):
        self.again, self.saved, self.memory = (lambda: fused.stacked(gather())), saved, memory
        self.leaves: list[Place] = []
        self.freed: set[int] = set()
        with torch.no_grad():
            arguments = fused.arguments(gather())
        for position, column in places:
            if any(t.requires_grad is not column[0].requires_grad for t in column):
                raise Bail("requires_grad differs between members")
            if column[0].requires_grad:
                arguments[position] = arguments[position].detach().requires_grad_()
                self.leaves.append((arguments[position], column))
        self.learning = [t for _, column in self.leaves for t in column]
        self.out: Any = fused.program.run_way(fused.run, arguments)
        if type(self.out) is not Tensor or not self.out.requires_grad:
            raise Bail("in training each member must return one tensor with a gradient for its parameters")
        finite((self.out.detach(),))
        kept = zip(places, saved.places, strict=True)
        self.kept = [(arguments[position], column) for (position, column), flag in kept if flag]

    def backward(self, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of `learning`, given those of the outputs; None for an output not reached."""
        n, reached = len(given), [gradient is not None for gradient in given]
        again = torch.is_grad_enabled()
        keep = again or _keeps_graph()
        if not keep and self.saved.anything:
            self.freed |= set(itertools.compress(range(n), reached))
        if not all(reached):
            self.memory["backward by parts"] = True
        first = next(g for g in given if g is not None)
        stacked = torch.stack([torch.zeros_like(first) if g is None else g for g in given])
        if again:  # with `create_graph`: from a new forward whose graph the caller owns
            once = {id(t): t for t in self.learning}
            ends = [self.again()]
            found = torch.autograd.grad(ends, [*once.values()], stacked, create_graph=True, allow_unused=True)
            left = dict(zip(once, found, strict=True))
            gradients = [[left.pop(id(t), None) for t in column] for _, column in self.leaves]
        else:
            for copy, column in self.kept:  # a member's own graph would see writes to `.data` since
                if len(column) > 1:
                    torch.stack(column, out=copy.data)
            leaves, retain = [leaf for leaf, _ in self.leaves], keep or len(self.freed) < n
            found = torch.autograd.grad(self.out, leaves, stacked, retain, allow_unused=True)
            met: set[int] = set()  # rows of one gradient must not become `.grad` of different tensors
            own = [g if g is None else copied_if_met(g, met) for g in found]
            rows = zip(own, self.leaves, strict=True)
            gradients = [
                [g] if len(column) == 1 else [None] * n if g is None else [*g] for g, (_, column) in rows
            ]
        wanted = itertools.chain.from_iterable([True] if len(row) == 1 else reached for row in gradients)
        each = itertools.chain.from_iterable(gradients)
        return [gradient if asked else None for gradient, asked in zip(each, wanted, strict=True)]


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


class Member(torch.autograd.Function):
    """Autograd function from a lane to the output of its member."""

    @staticmethod
    def forward(ctx: Any, call: LaneCall, lane: int, row: Tensor) -> Tensor:
        output = row.clone()
        saved = [column[lane if len(column) > 1 else 0] for _, column in call.kept]
        saved += [output] * call.saved.output + [row] * call.saved.anything
        ctx.save_for_backward(*saved)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises if one was changed in place, or if the graph was freed
        return None, None, gradient
