"""One call tried in several ways: the results compared, the times taken, nothing left behind."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Way = Callable[[list[Any]], Sequence[Any]]

# How far two ways of computing the same may differ, relative to the largest number of a tensor. A way that
# differs more is not taken, whatever the reason.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


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
        self.expected: list[Tensor | None] = []
        self.seeds: list[Tensor | None] = [None] * len(self.leaves)

    def changed(self, changes: Mapping[int, Callable[[Tensor], Tensor]]) -> "Trial":
        """The same trial with some arguments put otherwise in memory."""
        other = copy.copy(self)
        other.arguments = [
            _own(changes[i](a.detach()).requires_grad_(a.requires_grad), False) if i in changes else a
            for i, a in enumerate(self.arguments)
        ]
        other.leaves = [a for a in other.arguments if isinstance(a, Tensor) and a.requires_grad]
        return other

    def run(self, way: Way) -> list[Tensor | None]:
        """Outputs, and gradients if they count."""
        if not self.gradients:
            with torch.no_grad():
                return list(_tensors(way(self.arguments)))
        with torch.enable_grad():
            outputs = _tensors(way(self.arguments))
            ends = [o for o in outputs if o.requires_grad]
            if not ends or not self.leaves:
                return list(outputs)
            if len(self.seeds) != len(ends) or self.seeds[0] is None:
                self.seeds = [torch.ones_like(o) for o in ends]
            grads = torch.autograd.grad(ends, self.leaves, self.seeds, allow_unused=True)
        return [*(o.detach() for o in outputs), *grads]

    def _run_afresh(self, way: Way) -> list[Tensor | None]:
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

    def difference(self, way: Way) -> str | None:
        """Why `way` is not to be taken, or None."""
        try:
            got = self._run_afresh(way)
        except Exception as error:  # whatever a candidate raises, the call itself must not suffer
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
        if len(got) != len(self.expected):
            return "gives another number of results"
        for one, other in zip(got, self.expected, strict=True):
            problem = _differs(one, other)
            if problem:
                return problem
        return None


def _tensors(outputs: Sequence[Any]) -> list[Tensor]:
    return [o for o in outputs if isinstance(o, Tensor)]


def _own(tensor: Tensor, written: bool) -> Tensor:
    own = tensor.detach().clone() if written else tensor.detach()
    return own.requires_grad_(tensor.requires_grad)


def _differs(one: Tensor | None, other: Tensor | None) -> str | None:
    if one is None or other is None:
        there = one if other is None else other
        return "a gradient is missing" if there is not None and there.any() else None
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"gives {tuple(one.shape)} {one.dtype}, expected {tuple(other.shape)} {other.dtype}"
    if not one.dtype.is_floating_point and not one.dtype.is_complex:
        return None if torch.equal(one, other) else "gives other whole numbers"
    scale = other.detach().abs().nan_to_num(0.0, 0.0, 0.0).max() if other.numel() else torch.zeros(())
    atol = float(scale) * TOLERANCES.get(one.dtype, 1e-3)
    same = torch.isclose(one, other, rtol=0.0, atol=atol, equal_nan=True).all()
    return None if same else f"differs by {float((one - other).abs().nan_to_num(0.0).max()):.1e}"


def _random_state(cuda: bool) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state() if cuda else None


def _set_random_state(state: tuple[Tensor, Tensor | None], cuda: bool) -> None:
    torch.set_rng_state(state[0])
    if cuda and state[1] is not None:
        torch.cuda.set_rng_state(state[1])
