"""The result of a comparison with the loop: the error of every tensor, and the largest."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import ValidationError
from ..measure.compare import error_of, one_op


@dataclass
class Difference:
    """The error of one tensor: `error` is absolute, `scale` is the largest absolute value of the loop.

    If that value is tiny compared with the lane's other tensors of the same kind (the gradient of a bias
    before a norm is rounding noise), `scale` is 1e-4 of the largest of those instead.
    """

    what: str  # 'output', 'gradient', 'buffer' or 'parameter'
    path: str
    lane: int
    error: float
    scale: float
    dtype: torch.dtype | None = None

    def within(self, rtol: float, atol: float) -> bool:
        """Return whether the error is within the tolerance, which half-precision dtypes widen to their
        precision."""
        if self.dtype is not None and self.dtype.is_floating_point and self.dtype.itemsize < 4:
            rtol = max(rtol, one_op(self.dtype).single)
        return self.error <= atol + rtol * self.scale

    @property
    def relative(self) -> float:
        return self.error / self.scale if self.scale > 0 else self.error

    def __str__(self) -> str:
        size = f"{self.error:.3g} (of {self.scale:.3g})"
        return f"lane {self.lane}: {self.what} {self.path} differs from the loop by {size}"


@dataclass
class Report:
    """Every comparison made. `worst` is the largest relative difference."""

    differences: list[Difference] = field(default_factory=list)
    note: str = ""

    @property
    def worst(self) -> float:
        return max((d.relative for d in self.differences), default=0.0)

    def __str__(self) -> str:
        size = f"{len(self.differences)} tensors compared with the loop"
        return f"{size}; largest relative difference {self.worst:.1e}{self.note and f'; {self.note}'}"

    def check(self, rtol: float, atol: float = 0.0) -> "Report":
        """Return self; raise `ValidationError` for the worst tensor (outputs first) beyond the tolerance."""
        bad = [d for d in self.differences if not d.within(rtol, atol)]
        if bad:
            worst = max(bad, key=lambda d: (d.what == "output", d.relative))
            raise ValidationError(
                f"{worst}; {len(bad)} of {len(self.differences)} comparisons exceed rtol={rtol}, atol={atol}"
            )
        return self

    def compare(self, what: str, path: str, lane: int, wide: Any, loop: Any) -> None:
        if not isinstance(loop, Tensor):
            if wide != loop:
                raise ValidationError(f"lane {lane}: {what} {path} is {wide!r}, the loop gives {loop!r}")
            return
        if wide is None or wide.shape != loop.shape or wide.dtype != loop.dtype:
            got = None if wide is None else (tuple(wide.shape), wide.dtype)
            raise ValidationError(
                f"lane {lane}: {what} {path} is {got}, the loop gives {(tuple(loop.shape), loop.dtype)}"
            )
        error, scale = _distance(wide.detach(), loop.detach())
        self.differences.append(Difference(what, path, lane, error, scale, loop.dtype))


def _distance(wide: Tensor, loop: Tensor) -> tuple[float, float]:
    """Return the largest absolute error, and the largest absolute value of the loop."""
    found = error_of(wide, loop)
    if isinstance(found, str):
        return float("inf"), 1.0
    error, want = found
    if not want.numel() or not (want.is_floating_point() or want.is_complex()):
        return 0.0, 1.0
    return error.abs().max().item(), want.abs().max().item()


def raise_tiny_scales(differences: list[Difference]) -> None:
    largest: dict[tuple[str, int], float] = {}
    for d in differences:
        largest[d.what, d.lane] = max(d.scale, largest.get((d.what, d.lane), 0.0))
    for d in differences:
        d.scale = max(d.scale, 1e-4 * largest[d.what, d.lane])
