"""Towers' parameters as rows of one stacked leaf, whose gradient is handed out to them.

If towers are stacked at each call, every parameter is a separate node of the backward pass. With many small
towers these nodes cost more than the computation. Here autograd only sees the stack, and a backward pass adds
each row of its gradient to `p.grad`. `torch.autograd.grad(loss, p)` does not work, because `p` is not part of
the autograd graph.
"""

import itertools
import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..lanes import rows_apart
from .reached import graph_task

_grad, _hooks = operator.attrgetter("grad"), operator.attrgetter("_backward_hooks")
_later_hooks = operator.attrgetter("_post_accumulate_grad_hooks")


class StackedLeaf:
    """A stack of parameters that is one autograd leaf.

    Args:
        stack: `[n, ...]`, the memory of the parameters.
        parameters: the n parameters.
    """

    def __init__(self, stack: Tensor, parameters: Sequence[nn.Parameter]):
        self.leaf = stack.data.requires_grad_()
        self.parameters = list(parameters)
        self.task, self.reached = -1, set[int]()  # the latest backward pass, and the lanes it has reached
        self.leaf.register_post_accumulate_grad_hook(self._hand_out)

    def reach(self, lanes: Collection[int]) -> None:
        """Note lanes that the current backward pass reaches."""
        if self.task != graph_task():
            self.task, self.reached = graph_task(), set()
        self.reached.update(lanes)

    def _hand_out(self, leaf: Tensor) -> None:
        """Give the parameters that the backward pass reached their rows of the gradient."""
        gradient: Any = leaf.grad
        leaf.grad = None
        rows = gradient.unbind(0) if gradient.requires_grad else rows_apart(gradient)
        given = list(zip(self.parameters, rows, strict=True))
        if self.task == graph_task() and len(self.reached) < len(given):
            given = [given[lane] for lane in sorted(self.reached)]
        if self._new_and_unhooked():
            for parameter, row in given:
                parameter.grad = row
        else:
            for parameter, row in given:
                _accumulate(parameter, row)

    def _new_and_unhooked(self) -> bool:
        """Return whether no parameter has a gradient or hooks; calls into C only, since it always runs."""
        new = all(map(operator.is_, map(_grad, self.parameters), itertools.repeat(None)))
        return new and not any(map(_hooks, self.parameters)) and not any(map(_later_hooks, self.parameters))

    def dissolve(self) -> None:
        """Give each parameter its own memory."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()


def _accumulate(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Add to a parameter's gradient and call its hooks, as autograd does."""
    for hook in tuple((parameter._backward_hooks or {}).values()):
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    if parameter.grad is None:
        parameter.grad = gradient
    elif torch.is_grad_enabled():  # backward(create_graph=True)
        parameter.grad = parameter.grad + gradient
    else:
        parameter.grad.add_(gradient)
    for after in tuple((parameter._post_accumulate_grad_hooks or {}).values()):
        after(parameter)
