"""Towers' parameters as rows of one stacked leaf: their gradients arrive in one piece, and are its rows.

Where towers are stacked for each call, every tower's parameter is a node of its own in the backward pass.
With many small towers these nodes cost more than the computation. Here autograd knows the stack alone, and
`p.grad` of a tower's parameter is a view of the stack's gradient. It can be read, set, dropped and
accumulated as always. What no longer works is to ask autograd for such a parameter,
`torch.autograd.grad(loss, p)`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_own_grad: Any = Tensor.grad


class StackedLeaf:
    """A stack of parameters that autograd takes for one leaf.

    Args:
        stack: `[n, ...]`, the memory in which the parameters lie.
        parameters: the n parameters.
    """

    def __init__(self, stack: Tensor, parameters: Sequence[nn.Parameter]):
        self.leaf = stack.data.requires_grad_()
        self.parameters = list(parameters)
        self.dropped: set[int] = set()  # the lanes whose gradient is None
        self.leaf.register_hook(self._before_accumulation)
        for lane, parameter in enumerate(self.parameters):
            parameter.__class__ = StackedParameter
            parameter.__dict__["stacked"] = (self, lane)

    def _before_accumulation(self, gradient: Tensor) -> None:
        """Every lane gets a gradient; rows that were dropped begin at zero."""
        if self.dropped and self.leaf.grad is not None:
            with torch.no_grad():
                self.leaf.grad[sorted(self.dropped)] = 0
        self.dropped.clear()

    def row(self, lane: int) -> Tensor | None:
        gradient = self.leaf.grad
        return None if gradient is None or lane in self.dropped else gradient[lane]

    def drop(self, lane: int) -> None:
        self.dropped.add(lane)
        if len(self.dropped) == len(self.parameters):
            self.leaf.grad = None
            self.dropped.clear()

    def holds(self) -> bool:
        """Are all parameters still rows of this stack?"""
        return all(p.__dict__.get("stacked", (None,))[0] is self for p in self.parameters)

    def dissolve(self) -> None:
        """Make the parameters plain ones again, each with its own memory and gradient."""
        for lane, parameter in enumerate(self.parameters):
            if parameter.__dict__.get("stacked") == (self, lane):
                gradient = parameter.grad
                del parameter.__dict__["stacked"]
                parameter.__class__ = nn.Parameter
                parameter.data = parameter.data.clone()
                parameter.grad = gradient


class StackedParameter(nn.Parameter):
    """A parameter whose gradient is a row of the gradient of a `StackedLeaf`.

    A gradient of its own, from a call of its tower alone or set by hand, is added to the row.
    """

    @property
    def grad(self) -> Tensor | None:  # type: ignore[override]
        home, lane = self.__dict__["stacked"]
        own, row = _own_grad.__get__(self), home.row(lane)
        if row is None:
            return own
        if row.dtype != self.dtype or row.device != self.device:  # moved by itself
            home.drop(lane)
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
        """As a plain parameter, which autograd knows."""
        self.__dict__["stacked"][0].dissolve()
        return self.register_hook(hook)

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        """As a plain parameter, which autograd knows."""
        self.__dict__["stacked"][0].dissolve()
        return self.register_post_accumulate_grad_hook(hook)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.data.clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch._utils._rebuild_parameter, (self.data, self.requires_grad, OrderedDict())
