"""Gradient clipping per lane."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, UsageError
from ..model.marks import lane_mark
from .bucket import spread
from .groups import name_of
from .lane_numbers import Limits, lane_number


@torch.no_grad()
def clip_lane_norms_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: Any,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale each lane's gradients so that their norm is at most `max_norm`, a number or one per lane.

    Equals `torch.nn.utils.clip_grad_norm_` on each model alone. Returns the norms `[N]` before clipping.
    Lanes with non-finite gradients do not affect the others.
    """
    grads, n = _gradients(parameters, "clip_lane_norms_")
    if not grads:
        return torch.zeros(n)
    each = [torch.linalg.vector_norm(g.reshape(n, -1), norm_type, dim=1, dtype=_exact(g)) for g in grads]
    common = torch.promote_types(each[0].dtype, each[-1].dtype)
    norms = torch.linalg.vector_norm(torch.stack([norm.to(common) for norm in each]), norm_type, dim=0)
    if error_if_nonfinite and not bool(norms.isfinite().all()):
        lanes = (~norms.isfinite()).nonzero().flatten().tolist()
        raise UsageError(
            f"the gradients of lanes {lanes} are not finite; error_if_nonfinite=False clips the others"
        )
    limit = lane_number("max_norm", max_norm, n, Limits(), norms.device)
    factors = (limit / (norms.double() + 1e-6)).clamp(max=1.0)
    for dtype in {g.dtype for g in grads}:
        alike = [g for g in grads if g.dtype == dtype]
        torch._foreach_mul_(alike, spread(factors, alike))
    return norms


@torch.no_grad()
def clip_lane_values_(parameters: Tensor | Iterable[Tensor], clip_value: Any) -> None:
    """Clamp each gradient to `[-clip_value, clip_value]`, a number or one per lane."""
    grads, n = _gradients(parameters, "clip_lane_values_")
    for g in grads:
        limit: Any = spread(lane_number("clip_value", clip_value, n, Limits(), g.device), [g])
        limit = limit[0] if isinstance(limit, list) else limit
        g.clamp_(-limit, limit)


def _exact(tensor: Tensor) -> torch.dtype:
    """Return the dtype for norms: at least float32, since half precision overflows on sums of squares."""
    return torch.promote_types(torch.float32, tensor.dtype)


def _gradients(parameters: Tensor | Iterable[Tensor], who: str) -> tuple[list[Tensor], int]:
    """Return the gradients `[N, ...]`, and N. Raise `ArgumentError` if a shared parameter has a gradient."""
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    marks = [lane_mark(p) for p in given]
    n = next((mark.n for mark in marks if mark is not None), 0)
    if not n:
        raise ArgumentError(f"{who} takes the parameters of a wide model, and none of these is one")
    grads = []
    for p, mark in zip(given, marks, strict=True):
        if p.grad is None:
            continue
        if mark is None or not mark.stacked:
            raise ArgumentError(
                f"{who}: {name_of(p)} is one tensor for all lanes, so its gradient "
                f"belongs to no single lane; leave it out, and clip it by torch.nn.utils.clip_grad_norm_"
            )
        grads.append(p.grad)
    return grads, n
