"""Results of lanes run alone, and whether another way of running them gives the same."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# Relative to the largest expected number of the tensor.
_TOLERANCE = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.float32: 1e-4, torch.complex64: 1e-4}
_COARSE = 3e-2


@dataclass
class Result:
    """What one lane gives: its output (any tree), gradients and buffers by name; whether it drew numbers."""

    output: Any
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    drew: bool = False


def first_difference(got: Result, expected: Result, values: bool = True) -> str | None:
    """None if equal. With `values=False` (random or unset memory) only structure, shapes and dtypes count."""
    mine, theirs = pytree.tree_leaves(got.output), pytree.tree_leaves(expected.output)
    if len(mine) != len(theirs):
        return f"{len(mine)} outputs, expected {len(theirs)}"
    for position, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if problem := leaves_differ(a, b, values):
            return f"output {position} {problem}"
    coarse = coarsest(expected.output)
    for name, value in expected.gradients.items():
        if values and (problem := gradients_differ(got.gradients.get(name), value, coarse)):
            return f"gradient of {name} {problem}"
    for name, value in expected.buffers.items():
        if problem := leaves_differ(got.buffers.get(name), value, values):
            return f"buffer {name} {problem}"
    return None


def coarsest(output: Any) -> float:
    """The tolerance of the coarsest dtype in an output: a gradient that has passed it is no better."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    return max(
        (tolerance_of(x.dtype) for x in leaves if x.is_floating_point() or x.is_complex()), default=0.0
    )


def tolerance_of(dtype: torch.dtype) -> float:
    return _TOLERANCE.get(dtype, _COARSE)


def gradients_differ(got: Tensor | None, expected: Tensor | None, coarse: float = 0.0) -> str | None:
    """A gradient of zeros is as good as none: lanes of one stacked parameter have one `.grad`."""
    if got is None and expected is None:
        return None
    if got is None or expected is None:
        present = got if expected is None else expected
        return None if not present.to_dense().any() else f"is {got}, expected {expected}"
    # Sparse gradients are dense in a stacked tensor; the numbers are the same.
    return leaves_differ(got.to_dense(), expected.to_dense(), coarse=coarse)


def leaves_differ(got: Any, expected: Any, values: bool = True, coarse: float = 0.0) -> str | None:
    if not isinstance(expected, Tensor):
        same = type(got) is type(expected) and (got == expected or (got != got and expected != expected))
        return None if same or not values else f"is {got!r}, expected {expected!r}"
    if not isinstance(got, Tensor):
        return f"is {got!r}, expected a tensor"
    if (got.shape, got.dtype, got.layout) != (expected.shape, expected.dtype, expected.layout):
        return f"is {_kind(got)}, expected {_kind(expected)}"
    return numbers_differ(got.detach(), expected.detach(), coarse) if values else None


def numbers_differ(got: Tensor, expected: Tensor, coarse: float = 0.0) -> str | None:
    """In what two tensors of one shape and dtype differ; `coarse` loosens the tolerance of their dtype."""
    if expected.numel() == 0:
        return None
    if expected.layout != torch.strided:
        got, expected = got.to_dense(), expected.to_dense()
    if expected.is_complex():
        got, expected = torch.view_as_real(got.resolve_conj()), torch.view_as_real(expected.resolve_conj())
    if not expected.is_floating_point():
        return None if torch.equal(got, expected) else "has other numbers"
    tolerance = max(tolerance_of(expected.dtype), coarse)
    got, expected = got.double(), expected.double()
    finite = expected.isfinite()
    if not torch.equal(got.isfinite(), finite):
        return "is finite elsewhere"
    if not torch.equal(got[~finite].nan_to_num(7.0), expected[~finite].nan_to_num(7.0)):
        return "has infinities elsewhere"
    if not finite.any():
        return None
    difference = (got - expected)[finite].abs().max().item()
    scale = expected[finite].abs().max().item()
    return None if difference <= tolerance * scale + 1e-12 else f"is off by {difference:.2g} of {scale:.2g}"


def loss_of(outputs: Any) -> Tensor | None:
    """A sum in which no element weighs like its neighbour, so that mixed-up gradients show."""
    terms = []
    for out in pytree.tree_leaves(outputs):
        if isinstance(out, Tensor) and out.requires_grad and out.numel():
            out = torch.view_as_real(out.resolve_conj()) if out.is_complex() else out
            out = out.to_dense() if out.layout != torch.strided else out
            weights = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype, device=out.device)
            terms.append((out * weights.view(out.shape)).sum())
    return sum(terms[1:], terms[0]) if terms else None


def _kind(x: Tensor) -> str:
    return f"{tuple(x.shape)} {x.dtype} {'' if x.layout == torch.strided else x.layout}".strip()
