"""Losses per lane, `[N]`, equal to `torch.nn.functional` on each lane alone.

Outputs are `[N, ...]`. Targets are `[N, ...]`, or shared by all lanes, without the lane axis. The gradient of
the sum of these losses is, in every lane, the gradient of that lane's loss.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ArgumentError
from .lane_numbers import Limits, lane_number


def mse(out: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Apply `F.mse_loss` per lane: `[N, ...]` and `[N, ...]` or `[...]` -> `[N]`.

    >>> mse(torch.zeros(3, 5, 2), torch.ones(5, 2))
    tensor([1., 1., 1.])
    """
    return _elementwise(F.mse_loss, out, target, reduction)


def l1(out: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Apply `F.l1_loss` per lane."""
    return _elementwise(F.l1_loss, out, target, reduction)


def smooth_l1(out: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Apply `F.smooth_l1_loss` per lane."""
    return _elementwise(F.smooth_l1_loss, out, target, reduction, beta=beta)


def huber(out: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Apply `F.huber_loss` per lane."""
    return _elementwise(F.huber_loss, out, target, reduction, delta=delta)


def bce_with_logits(
    out: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Apply `F.binary_cross_entropy_with_logits` per lane; `weight` and `pos_weight` have no lane axis."""
    function = F.binary_cross_entropy_with_logits
    return _elementwise(function, out, target, reduction, weight=weight, pos_weight=pos_weight)


def kl_div(out: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Apply `F.kl_div` per lane; `reduction` may also be 'batchmean'."""
    if reduction == "batchmean":
        _check_rank(out, 2)
        return _elementwise(F.kl_div, out, target, "sum", log_target=log_target) / out.shape[1]
    return _elementwise(F.kl_div, out, target, reduction, log_target=log_target)


def nll(
    out: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Apply `F.nll_loss` per lane: `[N, B, C, ...]`, targets `[N, B, ...]` or shared `[B, ...]` -> `[N]`."""
    _check_rank(out, 2)
    target = _lanes_of_classes(out, target)
    each = F.nll_loss(*_classes(out, target), weight=weight, ignore_index=ignore_index, reduction="none")
    return _weighted(each, out, target, weight, ignore_index, reduction)


def cross_entropy(
    out: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: Any = 0.0,
) -> Tensor:
    """Apply `F.cross_entropy` per lane: `[N, B, C, ...]` -> `[N]`.

    Args:
        out: logits `[N, B, C, ...]`, or `[N, C]` without a batch axis.
        target: classes `[N, B, ...]`, or `[B, ...]` shared by all lanes; or probabilities shaped like `out`,
            or like one lane of it.
        weight: class weights `[C]`.
        label_smoothing: a number, or one per lane.

    >>> cross_entropy(torch.zeros(2, 4, 3), torch.tensor([0, 1, 2, 0]), label_smoothing=[0.0, 0.1])
    tensor([1.0986, 1.0986])
    """
    _check_rank(out, 2)
    probabilities = target.is_floating_point()
    target = _lanes_of(out, target) if probabilities else _lanes_of_classes(out, target)
    smoothing = lane_number("label_smoothing", label_smoothing, len(out), _SMOOTHING, out.device)
    logits, classes = _classes(out, target)

    def each(amount: float) -> Tensor:
        return F.cross_entropy(
            *(logits, classes, weight),
            ignore_index=ignore_index,
            reduction="none",
            label_smoothing=amount,
        ).reshape(len(out), -1)

    if isinstance(smoothing, Tensor):  # the loss is linear in the smoothing
        rows = torch.lerp(each(0.0), each(1.0), smoothing.to(out.dtype).unsqueeze(1))
    else:
        rows = each(smoothing)
    if probabilities:
        return _reduced(rows, reduction)
    return _weighted(rows, out, target, weight, ignore_index, reduction)


_SMOOTHING = Limits(0.0, 1.0 + 1e-12)
LANE_LOSSES = (mse, l1, smooth_l1, huber, bce_with_logits, kl_div, nll, cross_entropy)


def check_loss(loss: Any) -> None:
    """Raise `ArgumentError` for a `torch.nn` loss that averages over all lanes."""
    module = isinstance(loss, nn.modules.loss._Loss)
    plain = getattr(loss, "__module__", "") == "torch.nn.functional"
    if not (plain or (module and loss.reduction != "none")):
        return
    name = type(loss).__name__ if module else loss.__name__
    plain_name = name.removesuffix("Loss").removesuffix("_loss").lower().replace("_", "")
    plain_name = plain_name.replace("binarycrossentropy", "bce")
    own = next((f.__name__ for f in LANE_LOSSES if f.__name__.replace("_", "") == plain_name), "")
    remedy = f"lane_losses.{own}" if own else "one that reduces over all dimensions but the first"
    raise ArgumentError(
        f"{name} gives one number for all lanes, so that each would learn at 1/N of its rate; expected one "
        f"number per lane [N]: use {remedy} (wide_compiler.training.lane_losses)"
    )


def check_lane_losses(losses: Any, n: int) -> Tensor:
    """Return `losses` if they are `[n]`, else raise `ArgumentError`."""
    if isinstance(losses, Tensor) and losses.shape == (n,):
        return losses
    got = f"a tensor {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
    raise ArgumentError(
        f"expected one loss per lane [{n}], got {got}; reduce over all dimensions but the first, as the "
        f"functions of wide_compiler.training.lane_losses do"
    )


def _elementwise(
    function: Callable[..., Tensor], out: Tensor, target: Tensor, reduction: str, **options: Any
) -> Tensor:
    each = function(out, _lanes_of(out, target), reduction="none", **options)
    return _reduced(each.reshape(len(out), -1), reduction)


def _reduced(rows: Tensor, reduction: str) -> Tensor:
    if reduction not in ("mean", "sum"):
        raise ArgumentError(f"unknown reduction {reduction!r}; a loss per lane is a 'mean' or a 'sum'")
    return rows.mean(1) if reduction == "mean" else rows.sum(1)


def _weighted(
    each: Tensor, out: Tensor, target: Tensor, weight: Tensor | None, ignored: int, reduction: str
) -> Tensor:
    """Return the mean per lane weighted by class, without ignored targets."""
    rows, target = each.reshape(len(out), -1), target.reshape(len(out), -1)
    if reduction != "mean":
        return _reduced(rows, reduction)
    counted = target != ignored
    if weight is None:
        return rows.sum(1) / counted.sum(1)
    weights = weight[torch.where(counted, target, 0)]
    return rows.sum(1) / torch.where(counted, weights, 0).sum(1)


def _classes(out: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Merge lane and batch axes into one, before the class axis; `[N, C]` has no batch axis to merge."""
    return (out, target) if out.dim() == 2 else (out.flatten(0, 1), target.flatten(0, 1))


def _lanes_of(out: Tensor, target: Tensor) -> Tensor:
    return _with_lanes(target, out.shape, out.shape)


def _lanes_of_classes(out: Tensor, target: Tensor) -> Tensor:
    shape = out.shape[:1] if out.dim() == 2 else (*out.shape[:2], *out.shape[3:])
    return _with_lanes(target, torch.Size(shape), out.shape)


def _with_lanes(target: Tensor, wanted: torch.Size, out: torch.Size) -> Tensor:
    if target.shape == wanted:
        return target
    if target.shape == wanted[1:]:
        return target.expand(wanted)
    raise ArgumentError(
        f"a target {tuple(target.shape)} does not fit outputs {tuple(out)}; expected {tuple(wanted)}, lanes "
        f"first, or {tuple(wanted[1:])} for all lanes"
    )


def _check_rank(out: Tensor, least: int) -> None:
    if out.dim() < least:
        raise ArgumentError(f"outputs are {tuple(out.shape)}, expected at least {least} dims, lanes first")
