"""The members as functions of their tensors, for `torch.func.vmap`."""

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

State = dict[str, Tensor]
Then = Callable[[Any], Any]


class Functional:
    """N modules as functions of their tensors; `then` maps a member's output, to a loss in training."""

    def __init__(self, modules: list[nn.Module], x: Tensor, then: Then = lambda output: output) -> None:
        self.modules = modules
        self.x = x
        self.then = then
        self.template = copy.deepcopy(modules[0]).to("meta")

    def member(self, parameters: State, buffers: State, x: Tensor) -> Any:
        """Return one member's output."""
        return self.then(functional_call(self.template, (parameters, buffers), (x,)))

    def lanes(self, parameters: State, buffers: State, x: Tensor) -> Any:
        """Outputs `[N, ...]` of all lanes, from stacked tensors."""
        return vmap(self.member, randomness="different")(parameters, buffers, x)

    @cached_property
    def compiled_member(self) -> Callable[..., Any]:
        return torch.compile(self.member)

    @cached_property
    def states(self) -> list[tuple[State, State]]:
        """Parameters and buffers of each member."""
        return [(dict(m.named_parameters()), dict(m.named_buffers())) for m in self.modules]

    @cached_property
    def stacked(self) -> tuple[State, State]:
        """Stacked parameters and buffers; the parameters are leaves that require gradients."""
        return stack_module_state(self.modules)  # type: ignore[return-value]

    def each(self, compiled: bool) -> Callable[[], list[Any]]:
        """Run one function for each lane, in a loop."""
        function = self.compiled_member if compiled else self.member
        lanes = [(*state, x) for state, x in zip(self.states, self.x.unbind(0), strict=True)]
        return lambda: [function(*lane) for lane in lanes]

    def together(self, compiled: bool) -> Callable[[], Any]:
        """Run all lanes under vmap."""
        function = torch.compile(self.lanes) if compiled else self.lanes
        parameters, buffers = self.stacked
        return lambda: function(parameters, buffers, self.x)
