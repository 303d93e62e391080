"""Did two ways of computing the same thing? One comparer and one table of tolerances for everyone who asks:
the contest between ways, the check of each op's lane rule, and the oracle."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# How far rounding moves a result, by dtype. In the first column: one op, largest error relative to the
# largest expected number; far above rounding, far below a real mistake. float64 is held less strictly than
# it could be, because ops like inverses lose digits wherever they are computed. In the second: a whole model
# with its gradients, root mean square of the error relative to that of what is expected; rounding may switch
# a ReLU here and there, which moves single numbers by much and the mean by little.
ROUNDING: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-6, 1e-8),
    torch.complex128: (1e-6, 1e-8),
    torch.float32: (1e-4, 1e-3),
    torch.complex64: (1e-4, 1e-3),
    torch.float16: (1e-2, 2e-2),
    torch.bfloat16: (3e-2, 1e-1),
}
COARSE = (3e-2, 1e-1)  # dtypes of still fewer bits
# A whole float32 model where products may be rounded to ten bits (TF32): each kernel adds in its own order.
ROUNDED_PRODUCTS = 2e-2
# A single number of a whole model may be off by this share of the largest: see the switched ReLU.
SINGLE = 0.2
# Where it was measured how far rounding alone moves a result, so many times that is still rounding.
NOISE = 3.0
# Tensors that are tiny beside the others of their kind (the gradient of a bias in front of a batch norm is
# mere rounding) are held to this share of the largest.
NEGLIGIBLE = 1e-2


class Incomparable(Exception):
    """Results that say nothing about right or wrong: random, or other ones each time."""


class Limits(NamedTuple):
    """mean: of the root mean square of the error. single: of the largest error."""

    mean: float
    single: float


def one_op(dtype: torch.dtype) -> Limits:
    """Limits for the result of one op."""
    return Limits(float("inf"), ROUNDING.get(dtype, COARSE)[0])


def whole_model(dtype: torch.dtype, cuda: bool) -> Limits:
    """Limits for the results of a model, under the precision flags and the autocast of now."""
    rounded = dtype == torch.float32 and products_are_rounded(cuda)
    mean = ROUNDED_PRODUCTS if rounded else ROUNDING.get(dtype, COARSE)[1]
    kind = "cuda" if cuda else "cpu"
    if torch.is_autocast_enabled(kind) and dtype != torch.float64:
        mean = max(mean, ROUNDING.get(torch.get_autocast_dtype(kind), COARSE)[1])
    return Limits(mean, SINGLE)


def products_are_rounded(cuda: bool) -> bool:
    """May float32 products be computed with fewer bits here?"""
    try:
        return torch.get_float32_matmul_precision() != "highest" or (cuda and torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # these flags cannot be read once newer ones disagree with them
        return True


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """No rounding of float32 products to ten bits: what is compared differs by mistakes only."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


def error_of(got: Tensor, want: Tensor) -> tuple[Tensor, Tensor] | str:
    """The difference and what is expected, both with zeros where that is not finite; or why the two cannot
    be the same."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"gives {tuple(got.shape)} {got.dtype}, expected {tuple(want.shape)} {want.dtype}"
    got, want = _dense(got), _dense(want)
    if not (want.is_floating_point() or want.is_complex()):
        return (want.new_zeros(()), want) if torch.equal(got, want) else "gives other numbers"
    finite = want.isfinite()
    if not torch.equal(finite, got.isfinite()):
        return "is not finite where it should be, or the reverse"
    if not finite.all():
        # Infinities by sign, and what is not a number.
        limits = (t.masked_fill(finite, 0).nan_to_num(7.0) for t in (got, want))
        if not torch.equal(*limits):
            return "has other infinities"
        got, want = got.masked_fill(~finite, 0), want.masked_fill(~finite, 0)
    return got - want, want


def difference(
    got: Tensor, want: Tensor, limits: Limits, noise: float = 0.0, largest: float = 0.0
) -> str | None:
    """How `got` differs from `want`, or None.

    Args:
        noise: how far rounding alone moves this tensor in the mean, where that is known.
        largest: the mean size of the largest tensor of its kind.
    """
    found = error_of(got, want)
    if isinstance(found, str):
        return found
    error, want = found
    if not error.numel() or not (want.is_floating_point() or want.is_complex()):
        return None
    most = float(error.abs().max())
    if most == 0.0:
        return None
    size = max(mean_size(want), NEGLIGIBLE * largest) if limits.mean < float("inf") else 0.0
    if most > limits.single * max(float(want.abs().max()), size) + 1e-30:
        return f"is off by {most:.1e} of {float(want.abs().max()):.1e}"
    if limits.mean < float("inf") and mean_size(error) > max(limits.mean * size, NOISE * noise):
        return f"is off by {mean_size(error):.1e} of {size:.1e} in the mean"
    return None


def model_difference(
    got: Sequence[Tensor | None], want: Sequence[Tensor | None], noise: Sequence[float] | None = None
) -> str | None:
    """How tensors of one kind (outputs, gradients, buffers) differ from those expected, or None. An absent
    gradient counts as zeros."""
    if len(got) != len(want):
        return f"gives {len(got)} tensors, expected {len(want)}"
    largest = max((mean_size(w) for w in want if w is not None), default=0.0)
    for one, other, rounding in zip(got, want, noise or [0.0] * len(want), strict=True):
        if one is None or other is None:
            given = one if other is None else other
            problem = "lacks a gradient" if given is not None and mean_size(given) > 0 else None
        else:
            problem = difference(one, other, whole_model(other.dtype, other.is_cuda), rounding, largest)
        if problem:
            return problem
    return None


def distances(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> list[float]:
    """How far each tensor is from its counterpart, in the mean; 0 for what cannot be compared."""
    return [
        mean_size(_dense(a) - _dense(b))
        if a is not None and b is not None and a.shape == b.shape and a.dtype != torch.bool
        else 0.0
        for a, b in zip(one, other, strict=True)
    ]


def mean_size(tensor: Tensor) -> float:
    """Root mean square of what is finite; 0 for whole numbers."""
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    sizes = _dense(tensor).nan_to_num(0.0, 0.0, 0.0).abs()
    return float(sizes.to(torch.promote_types(sizes.dtype, torch.float32)).square().mean().sqrt())


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    small = tensor.is_floating_point() and tensor.element_size() == 1  # few ops are defined for these
    return tensor.float() if small else tensor
