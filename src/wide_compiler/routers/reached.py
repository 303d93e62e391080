"""Towers that a backward pass does not reach keep their gradients, as in a loop.

Stacking would give them gradients of zeros instead, and an optimiser with momentum or weight decay would move
their weights.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def graph_task() -> int:
    """Return the backward pass that runs in this thread."""
    return torch._C._current_graph_task_id()  # type: ignore[attr-defined]


class Reached:
    """The lanes of one forward that backward passes reach.

    Args:
        fused: what runs the lanes.
        tensors: its inputs.
    """

    def __init__(self, fused: Any, tensors: Sequence[Tensor]):
        self.fused, self.n = fused, fused.n
        self.inputs = [t.grad_fn for t in tensors]
        self.task, self.lanes = -1, set[int]()  # the latest backward pass, and the lanes that it has reached
        self.hooked = False

    def __call__(self, node: Any, flags: list[bool]) -> None:
        """Note which outputs of a node of the forward have gradients."""
        task = graph_task()
        if task != self.task:
            self.task, self.lanes = task, set()
        self.lanes.update(lane for lane, flag in enumerate(flags) if flag)
        for source in self.fused.sources:
            if source.leaf is not None:
                source.leaf.reach(self.lanes)
        if len(self.lanes) < self.n and not self.hooked:
            self.hooked = True
            for stack in self._stacks(node):
                stack.register_hook(self._drop)
            self.inputs = []  # a node that holds this object may be one of them: no reference cycle

    def _drop(self, gradients: tuple[Any, ...], _: Any) -> tuple[Any, ...] | None:
        """Return the gradients that a node gives to its inputs, the last n of which are the lanes'."""
        if graph_task() != self.task or len(self.lanes) == self.n:
            return None
        rest = len(gradients) - self.n
        return tuple(g if i < rest or i - rest in self.lanes else None for i, g in enumerate(gradients))

    def _stacks(self, node: Any) -> Iterator[Any]:
        """Return the nodes of the forward that stack the towers' parameters, or inputs of their own."""
        for joined in [self.inputs[i] for i, wide in enumerate(self.fused.wide_inputs) if wide]:
            while joined is not None and len(joined.next_functions) == 1:  # the view of `lanes.own_gradient`
                joined = joined.next_functions[0][0]
            if joined is not None and len(joined.next_functions) == self.n:
                yield joined
        parameters = {id(t) for source in self.fused.sources for t in source.tensors()}
        known = {node, *self.inputs}
        left = [node]
        while left:
            current = left.pop()
            following = [after for after, _ in current.next_functions]
            last = [id(getattr(after, "variable", None)) for after in following[-self.n :]]
            if len(last) == self.n and parameters.issuperset(last):
                yield current
            left += [after for after in following if after is not None and after not in known]
            known.update(following)
