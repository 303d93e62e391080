"""Towers' parameters as rows of one stacked leaf, whose gradient holds theirs as rows.

If towers are stacked at each call, every parameter is a separate node of the backward pass. With many small
towers these nodes cost more than the computation. Here autograd only sees the stack, and `p.grad` of a
tower's parameter is a view of the stack's gradient. It can be read, set, deleted and accumulated as usual.
Only `torch.autograd.grad(loss, p)` does not work, because `p` is not part of the autograd graph.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .reached import graph_task

_own_grad: Any = Tensor.grad


class StackedLeaf:
    """A stack of parameters that is one autograd leaf.

    Args:
        stack: `[n, ...]`, the memory of the parameters.
        parameters: the n parameters.
    """

    def __init__(self, stack: Tensor, parameters: Sequence[nn.Parameter]):
        self.leaf = stack.data.requires_grad_()
        self.parameters = list(parameters)
        self.whole = True  # whether all parameters are still rows of this stack
        self.dropped: set[int] = set()  # lanes whose gradient is None
        self.task, self.reached = -1, set[int]()  # the latest backward pass, and the lanes it has reached
        self.leaf.register_hook(self._before_accumulation)
        for lane, parameter in enumerate(self.parameters):
            parameter.__class__ = StackedParameter
            parameter.__dict__["stacked"] = (self, lane)

    def reach(self, lanes: Collection[int]) -> None:
        """Note lanes that the current backward pass reaches."""
        if self.task != graph_task():
            self.task, self.reached = graph_task(), set()
        self.reached.update(lanes)

    def _before_accumulation(self, gradient: Tensor) -> None:
        """Zero the rows that were dropped, because the new gradient is added to all rows."""
        if self.leaf.grad is None:
            self.dropped = set(range(len(self.parameters)))
        elif self.dropped:
            with torch.no_grad():
                self.leaf.grad[sorted(self.dropped)] = 0
        self.dropped -= self.reached if self.task == graph_task() else set(range(len(self.parameters)))

    def row(self, lane: int) -> Tensor | None:
        gradient = self.leaf.grad
        return None if gradient is None or lane in self.dropped else gradient[lane]

    def drop(self, lane: int) -> None:
        self.dropped.add(lane)
        if len(self.dropped) == len(self.parameters):
            self.leaf.grad = None
            self.dropped.clear()

    def dissolve(self) -> None:
        """Turn the parameters into plain ones again, each with its own memory and gradient."""
        self.whole = False
        for lane, parameter in enumerate(self.parameters):
            if parameter.__dict__.get("stacked") == (self, lane):
                gradient = parameter.grad
                del parameter.__dict__["stacked"]
                parameter.__class__ = nn.Parameter
                parameter.data = parameter.data.clone()
                parameter.grad = gradient


class StackedParameter(nn.Parameter):
    """A parameter whose gradient is a row of the gradient of a `StackedLeaf`.

    A separate gradient, set by the user or by a call of its tower alone, is added to the row.
    """

    @property
    def grad(self) -> Tensor | None:  # type: ignore[override]
        home, lane = self.__dict__["stacked"]
        own, row = _own_grad.__get__(self), home.row(lane)
        if row is None:
            return own
        if row.dtype != self.dtype or row.device != self.device:  # the parameter was moved or converted
            home.drop(lane)
            home.whole = False
            del self.__dict__["stacked"]
            self.__class__ = nn.Parameter  # type: ignore[assignment]
            self.grad = row.to(self)
            return _own_grad.__get__(self)
        if own is not None:
            with torch.no_grad():
                row.add_(own)
            _own_grad.__set__(self, None)
        return row

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        home, lane = self.__dict__["stacked"]
        home.drop(lane)
        _own_grad.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def register_hook(self, hook: Any) -> Any:
        """Become a plain parameter, which autograd sees, and register the hook."""
        self.__dict__["stacked"][0].dissolve()
        return self.register_hook(hook)

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        """Become a plain parameter, which autograd sees, and register the hook."""
        self.__dict__["stacked"][0].dissolve()
        return self.register_post_accumulate_grad_hook(hook)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.data.clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch._utils._rebuild_parameter, (self.data, self.requires_grad, OrderedDict())
