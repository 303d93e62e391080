"""Fusion modules: combine the outputs of `wide_forward`, N tensors `[B, ..., dim]`, into one."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, InputError
from ..lanes import own_gradient

Opinions = Mapping[str, Tensor] | Iterable[Tensor]


def stack_opinions(opinions: Opinions, towers: int | None = None) -> Tensor:
    """Stack N outputs `[B, ..., dim]` to `[N, B, ..., dim]`; raises `InputError` if shapes differ."""
    named = dict(opinions) if isinstance(opinions, Mapping) else {str(i): o for i, o in enumerate(opinions)}
    if not named:
        raise InputError("opinions: expected at least one tensor, got none")
    first = next(iter(named))
    for name, opinion in named.items():
        if opinion.shape != named[first].shape:
            got, want = tuple(opinion.shape), tuple(named[first].shape)
            raise InputError(
                f"opinions: {name!r} has shape {got}, {first!r} has {want}; a fusion needs equal shapes"
            )
    if towers is not None and len(named) != towers:
        raise InputError(f"opinions: expected {towers}, one per tower, got {len(named)}")
    return own_gradient(torch.stack(list(named.values())))


class MeanFusion(nn.Module):
    """Mean of the outputs.

    >>> MeanFusion()({"a": torch.zeros(2, 3), "b": torch.ones(2, 3)})[0]
    tensor([0.5000, 0.5000, 0.5000])
    """

    def forward(self, opinions: Opinions) -> Tensor:
        return stack_opinions(opinions).mean(0)


class WeightedFusion(nn.Module):
    """Weighted mean with one learned weight per tower, equal at first."""

    def __init__(self, towers: int):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(towers))

    def forward(self, opinions: Opinions) -> Tensor:
        stacked = stack_opinions(opinions, len(self.logits))
        return torch.einsum("n,n...->...", self.logits.softmax(0).to(stacked.dtype), stacked)


class GatedFusion(nn.Module):
    """Weighted mean; a linear layer computes the weights from the outputs, per position."""

    def __init__(self, dim: int):
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, opinions: Opinions) -> Tensor:
        stacked = stack_opinions(opinions)
        return (self.score(stacked).softmax(0) * stacked).sum(0)


class AttentionFusion(nn.Module):
    """A learned query attends over the outputs, per position.

    Args:
        dim: size of the last dim.
        heads: number of attention heads; must divide `dim`.
    """

    def __init__(self, dim: int, heads: int = 1):
        super().__init__()
        if heads < 1 or dim % heads:
            raise ArgumentError(f"AttentionFusion: {heads} heads do not divide dim={dim}")
        self.heads = heads
        self.query = nn.Parameter(torch.randn(heads, dim // heads) * dim**-0.5)
        self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, opinions: Opinions) -> Tensor:
        stacked = stack_opinions(opinions)  # [N, ..., dim]
        keys = self.key(stacked).unflatten(-1, (self.heads, -1))
        values = self.value(stacked).unflatten(-1, (self.heads, -1))
        scores = (keys * self.query).sum(-1, keepdim=True) * self.query.shape[-1] ** -0.5
        return self.out((scores.softmax(0) * values).sum(0).flatten(-2))
