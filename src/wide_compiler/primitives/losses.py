"""Rules of losses: computed per element (or per example), then reduced within each lane.

Shapes: N lanes, B batch, C classes, `*` the axes after the classes.
"""

from typing import Any

import torch
from torch import Tensor

from ..widen.builder import Builder, Val, is_tensor_val
from ..widen.rules import lane_rule, ops, rule

NONE, MEAN, SUM = 0, 1, 2  # ATen's values of `reduction`

_ELEMENTWISE = ops(
    """
    mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy
    binary_cross_entropy_with_logits soft_margin_loss poisson_nll_loss hinge_embedding_loss
    margin_ranking_loss
    """
)


def _elementwise(op: Any) -> Any:
    names = [argument.name for argument in op._schema.arguments if not argument.kwarg_only]
    defaults = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}

    def run(b: Builder, *args: Any, **kwargs: Any) -> Val:
        named = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        rank = max(v.rank for v in named.values() if is_tensor_val(v))
        lanes: dict[str, Any] = {
            k: b.aligned(b.wide(v), rank) if is_tensor_val(v) else v for k, v in named.items()
        }
        lanes["reduction"] = NONE
        positional = [lanes.pop(name) for name in names]
        return b.call(reduce_lanes, b.call(op, *positional, **lanes), named["reduction"])

    return run


for _op in _ELEMENTWISE:
    rule(_op)(_elementwise(_op))


def reduce_lanes(loss: Tensor, reduction: int) -> Tensor:
    """Reduce `[N, ...]` to `[N]` by the mean or the sum of each lane; NONE returns it unchanged."""
    if reduction == NONE:
        return loss
    flat = loss.reshape(loss.shape[0], -1)
    return flat.mean(1) if reduction == MEAN else flat.sum(1)


@rule(*ops("multilabel_margin_loss.default"))
def multilabel_margin_loss(b: Builder, x: Val, target: Val, reduction: int = MEAN) -> Val:
    return b.call(margin_loss_of_rows, *(b.aligned(b.wide(t), 1) for t in (x, target)), reduction)


def margin_loss_of_rows(x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Multilabel margin loss of x and target, `[N, B, C]` or `[N, C]`."""
    rows, classes = (t.reshape(-1, t.shape[-1]) for t in (x, target))
    loss = torch.nn.functional.multilabel_margin_loss(rows, classes, reduction="none").view(x.shape[:-1])
    return reduce_lanes(loss, reduction) if loss.dim() > 1 else loss


@rule(*ops("cross_entropy_loss.default"))
def cross_entropy(
    b: Builder,
    x: Val,
    target: Val,
    weight: Val | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Val:
    x, target = b.wide(x), b.wide(target)
    logp = b.call(torch.log_softmax, x, 2 if x.rank > 1 else 1)
    if target.value.is_floating_point():
        return b.call(soft_target_loss, logp, target, b.wide(weight), reduction, label_smoothing)
    return b.call(class_loss, logp, target, b.wide(weight), reduction, ignore_index, label_smoothing)


@lane_rule("nll_loss.default", "nll_loss_nd.default", "nll_loss2d.default")
def class_loss(
    logp: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    smoothing: float = 0.0,
) -> Tensor:
    """Negative log likelihood of logp `[N, B, C, *]` (or `[N, C]`), classes `[N, B, *]`, weight `[N, C]`."""
    single = logp.dim() == 2
    if single:
        logp, target = logp.unsqueeze(1), target.unsqueeze(1)
    counted = target != ignore_index
    classes = target.where(counted, 0)
    weights = counted.to(logp.dtype)
    if weight is not None:
        weights = weights * weight.gather(1, classes.flatten(1)).view_as(classes)
    # `where`, not a product: an ignored target may select an infinite logit.
    loss = torch.where(counted, -logp.gather(2, classes.unsqueeze(2)).squeeze(2) * weights, 0.0)
    if smoothing:
        every = torch.where(counted, _weighted(logp, weight).sum(2), 0.0)
        loss = (1 - smoothing) * loss - smoothing / logp.shape[2] * every
    if reduction == NONE:
        return loss.squeeze(1) if single else loss
    total, count = loss.flatten(1).sum(1), weights.flatten(1).sum(1)
    if reduction == SUM:
        return total
    # A lane without counted targets has mean nan, and no gradient.
    return torch.where(count != 0, total / count.where(count != 0, 1.0), float("nan"))


def soft_target_loss(
    logp: Tensor, target: Tensor, weight: Tensor | None, reduction: int, smoothing: float
) -> Tensor:
    """Cross entropy of logp with target probabilities, both `[N, B, C, *]` (or `[N, C]`), weight `[N, C]`."""
    single = logp.dim() == 2
    if single:
        logp, target = logp.unsqueeze(1), target.unsqueeze(1)
    if smoothing:
        target = target * (1 - smoothing) + smoothing / logp.shape[2]
    loss = -_weighted(logp * target, weight).sum(2)
    if reduction == NONE:
        return loss.squeeze(1) if single else loss
    return reduce_lanes(loss, reduction)


def _weighted(terms: Tensor, weight: Tensor | None) -> Tensor:
    """Scale terms `[N, B, C, *]` by a weight `[N, C]` of each class, if there is one."""
    return terms if weight is None else terms * weight.view(len(weight), 1, -1, *[1] * (terms.dim() - 3))
