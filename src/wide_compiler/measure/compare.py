"""Comparison of results, with one table of tolerances for contests, lane rules and the oracle."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Tolerances by dtype. First column, one op: largest error relative to the largest expected value; far above
# rounding, far below a real mistake. float64 is looser than possible, because ops such as inverses lose
# digits. Second column, a whole model with gradients: root mean square of the error relative to that of the
# expected values. Rounding may flip a ReLU, which changes single values by much and the mean by little.
ROUNDING: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-6, 1e-8),
    torch.complex128: (1e-6, 1e-8),
    torch.float32: (1e-4, 1e-3),
    torch.complex64: (1e-4, 1e-3),
    torch.float16: (1e-2, 2e-2),
    torch.bfloat16: (3e-2, 1e-1),
}
COARSE = (3e-2, 1e-1)  # dtypes with fewer bits
# A whole float32 model with products in TF32: kernels differ in the order of accumulation.
ROUNDED_PRODUCTS = 2e-2
# Largest error of a single value of a whole model, relative to the largest value: a flipped ReLU.
SINGLE = 0.2
# Errors up to this multiple of the measured rounding noise are accepted.
NOISE = 3.0
# Tensors much smaller than the largest of their kind are compared relative to this share of it: the gradient
# of a bias before a batch norm, for example, is only rounding error.
NEGLIGIBLE = 1e-2


class Incomparable(Exception):
    """Results that cannot be compared: random, or different in each run."""


class Tolerances(NamedTuple):
    """Tolerances of the root mean square error (`mean`) and of the largest error (`single`)."""

    mean: float
    single: float


def one_op(dtype: torch.dtype) -> Tolerances:
    """Return the limits for one op."""
    return Tolerances(float("inf"), ROUNDING.get(dtype, COARSE)[0])


def whole_model(dtype: torch.dtype, cuda: bool) -> Tolerances:
    """Return the limits for a model, under the current precision flags and autocast."""
    rounded = dtype == torch.float32 and products_are_rounded(cuda)
    mean = ROUNDED_PRODUCTS if rounded else ROUNDING.get(dtype, COARSE)[1]
    kind = "cuda" if cuda else "cpu"
    if torch.is_autocast_enabled(kind) and dtype != torch.float64:
        mean = max(mean, ROUNDING.get(torch.get_autocast_dtype(kind), COARSE)[1])
    return Tolerances(mean, SINGLE)


def products_are_rounded(cuda: bool) -> bool:
    """Return whether float32 products may be computed with fewer bits (TF32)."""
    try:
        return torch.get_float32_matmul_precision() != "highest" or (cuda and torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # raised if newer precision flags conflict with these
        return True


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Context manager without TF32, so that differences are mistakes, not rounding."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


def error_of(got: Tensor, want: Tensor) -> tuple[Tensor, Tensor] | str:
    """Return (difference, expected), with zeros where not finite; or a message why the two differ."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"gives {tuple(got.shape)} {got.dtype}, expected {tuple(want.shape)} {want.dtype}"
    got, want = _dense(got), _dense(want)
    if not (want.is_floating_point() or want.is_complex()):
        return (want.new_zeros(()), want) if torch.equal(got, want) else "gives different numbers"
    finite = want.isfinite()
    if not torch.equal(finite, got.isfinite()):
        return "has NaN or inf where the reference has none, or the reverse"
    if not finite.all():
        # Compare infinities by sign, and nan: 7 stands for nan, the largest numbers for infinities.
        not_finite = (t.masked_fill(finite, 0).nan_to_num(7.0) for t in (got, want))
        if not torch.equal(*not_finite):
            return "has inf of other signs, or NaN for inf"
        got, want = got.masked_fill(~finite, 0), want.masked_fill(~finite, 0)
    return got - want, want


def difference(
    got: Tensor, want: Tensor, tolerances: Tolerances, noise: float = 0.0, largest: float = 0.0
) -> str | None:
    """Return how `got` differs from `want`, of the same shape, or None.

    `noise` is the root mean square rounding error of this tensor, if measured; `largest` the root mean square
    of the largest tensor of its kind.
    """
    found = error_of(got, want)
    if isinstance(found, str):
        return found
    error, want = found
    if not error.numel() or not (want.is_floating_point() or want.is_complex()):
        return None
    largest_error, largest_value = float(error.abs().max()), float(want.abs().max())
    if largest_error == 0.0:
        return None
    size = max(mean_size(want), NEGLIGIBLE * largest) if tolerances.mean < float("inf") else 0.0
    if largest_error > tolerances.single * max(largest_value, size) + 1e-30:
        return f"is off by {largest_error:.1e} of {largest_value:.1e}"
    if tolerances.mean < float("inf") and mean_size(error) > max(tolerances.mean * size, NOISE * noise):
        return f"is off by {mean_size(error):.1e} of {size:.1e} in the mean"
    return None


def model_difference(
    got: Sequence[Tensor | None], want: Sequence[Tensor | None], noise: Sequence[float] | None = None
) -> str | None:
    """Return how tensors of one kind (outputs, gradients, buffers) differ from the expected ones, or None.

    A missing gradient counts as zeros.
    """
    if len(got) != len(want):
        return f"gives {len(got)} tensors, expected {len(want)}"
    largest = max((mean_size(w) for w in want if w is not None), default=0.0)
    for g, w, rounding in zip(got, want, noise or [0.0] * len(want), strict=True):
        if g is None or w is None:
            present = g if w is None else w
            problem = "lacks a gradient" if present is not None and mean_size(present) > 0 else None
        else:
            problem = difference(g, w, whole_model(w.dtype, w.is_cuda), rounding, largest)
        if problem:
            return problem
    return None


def distances(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> list[float]:
    """Return the root mean square difference of each pair of tensors; 0 if they are not comparable."""

    def distance(a: Tensor | None, b: Tensor | None) -> float:
        if a is None or b is None or a.shape != b.shape or a.dtype == torch.bool:
            return 0.0
        return mean_size(_dense(a) - _dense(b))

    return [*map(distance, one, other)]


def mean_size(tensor: Tensor) -> float:
    """Return the root mean square of the finite values; 0 for integers."""
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    sizes = _dense(tensor).nan_to_num(0.0, 0.0, 0.0).abs()
    return float(sizes.to(torch.promote_types(sizes.dtype, torch.float32)).square().mean().sqrt())


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    small = tensor.is_floating_point() and tensor.element_size() == 1  # few ops support float8
    return tensor.float() if small else tensor
