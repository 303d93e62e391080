"""One call tried in several ways: the results compared, the times taken, nothing left behind."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .same import difference, rounding

Way = Callable[[list[Any]], Sequence[Any]]


class Results(NamedTuple):
    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor | None]


class Trial:
    """Runs ways on the arguments of a real call.

    What the call would write is copied first, gradients are taken without being kept, and the random numbers
    are those of the first try each time.

    Args:
        arguments: of the lane graph, tensors and others.
        written: positions of the tensors that a call writes.
        gradients: also run backward, to every floating tensor that asks for a gradient.
    """

    def __init__(self, arguments: Sequence[Any], written: Sequence[int], gradients: bool):
        self.arguments = [
            _own(a, i in written) if isinstance(a, Tensor) else a for i, a in enumerate(arguments)
        ]
        self.before = {i: arguments[i].detach() for i in written}
        self.gradients = gradients
        self.leaves = [a for a in self.arguments if isinstance(a, Tensor) and a.requires_grad]
        self.cuda = any(isinstance(a, Tensor) and a.is_cuda for a in self.arguments)
        self.expected = Results([], [])
        self.noise: list[list[float] | None] = [None, None]  # of outputs, of gradients
        self.seeds: list[Tensor] = []  # what backward starts from

    def changed(self, changes: Mapping[int, Callable[[Tensor], Tensor]]) -> "Trial":
        """The same trial with some arguments put otherwise in memory."""
        other = copy.copy(self)
        other.arguments = [
            _own(changes[i](a.detach()).requires_grad_(a.requires_grad), False) if i in changes else a
            for i, a in enumerate(self.arguments)
        ]
        other.leaves = [a for a in other.arguments if isinstance(a, Tensor) and a.requires_grad]
        return other

    def run(self, way: Way) -> Results:
        """Outputs, and gradients if they count."""
        with torch.set_grad_enabled(self.gradients):
            outputs = [o for o in way(self.arguments) if isinstance(o, Tensor)]
            ends = [o for o in outputs if o.requires_grad]
            if not ends or not self.leaves:
                return Results(outputs, [])
            if len(self.seeds) != len(ends):
                self.seeds = [_some_direction(o) for o in ends]
            # As a user would, into `.grad`: turning a gradient round to fit its weight is part of the price.
            torch.autograd.backward(ends, self.seeds)
        gradients = [leaf.grad for leaf in self.leaves]
        for leaf in self.leaves:
            leaf.grad = None
        return Results([o.detach() for o in outputs], gradients)

    def _run_afresh(self, way: Way) -> Results:
        """`run` with the random numbers and the written tensors of the first time."""
        _set_random_state(self.random_state, self.cuda)
        with torch.no_grad():
            for i, tensor in self.before.items():
                self.arguments[i].copy_(tensor)
        return self.run(way)

    def expect(self, way: Way) -> None:
        """Take the results of `way` for right: others are compared with them."""
        self.random_state = _random_state(self.cuda)
        self.expected = self._run_afresh(way)
        if self.cuda:  # where products may be rounded to ten bits: how much comes of that
            self.noise = rounding(self.expected, lambda: self._run_afresh(way))

    def difference(self, way: Way) -> str | None:
        """Why `way` is not to be taken, or None."""
        try:
            got = self._run_afresh(way)
        except Exception as error:  # whatever a candidate raises, the call itself must not suffer
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
        compared = zip(got, self.expected, self.noise, strict=True)
        return next(filter(None, (difference(*these) for these in compared)), None)


def _some_direction(output: Tensor) -> Tensor:
    """A gradient to begin with. Not ones: the gradient of a batch norm's sum is nothing but rounding."""
    places = torch.arange(output.numel(), device=output.device, dtype=torch.float32)
    return torch.sin(places * 1.618).to(output.dtype).view(output.shape)


def _own(tensor: Tensor, written: bool) -> Tensor:
    own = tensor.detach().clone() if written else tensor.detach()
    return own.requires_grad_(tensor.requires_grad)


def _random_state(cuda: bool) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state() if cuda else None


def _set_random_state(state: tuple[Tensor, Tensor | None], cuda: bool) -> None:
    torch.set_rng_state(state[0])
    if cuda and state[1] is not None:
        torch.cuda.set_rng_state(state[1])
