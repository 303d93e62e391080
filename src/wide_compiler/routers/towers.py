"""Ready-made towers that map `[B, ..., dim]` to `[B, ..., dim]`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ArgumentError, InputError
from .base_tower import BaseTower


def _mlp(dim: int, hidden: int, dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Linear(dim, hidden), nn.GELU()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return [*layers, nn.Linear(hidden, dim)]


class SequentialTower(BaseTower):
    """Runs the given stages in sequence; by default an MLP with one hidden layer.

    >>> SequentialTower("a", 8)(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    def __init__(self, name: str, dim: int = 0, *stages: nn.Module, hidden: int = 0, dropout: float = 0.0):
        super().__init__(name)
        if not stages and dim < 1:
            raise ArgumentError(f"SequentialTower {name!r} needs stages, or a dim of at least 1 for an MLP")
        self.extend(stages or _mlp(dim, hidden or 2 * dim, dropout))


class ResidualTower(BaseTower):
    """`x + MLP(x)`, `depth` times."""

    def __init__(self, name: str, dim: int, depth: int = 1, hidden: int = 0, dropout: float = 0.0):
        super().__init__(name)
        self.extend(nn.Sequential(*_mlp(dim, hidden or 2 * dim, dropout)) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = x + stage(x)
        return x


class PreNormTower(ResidualTower):
    """`x + MLP(norm(x))`, `depth` times: the feed-forward part of a transformer."""

    def __init__(self, name: str, dim: int, depth: int = 1, hidden: int = 0, dropout: float = 0.0):
        super().__init__(name, dim, 0)
        layers = (_mlp(dim, hidden or 2 * dim, dropout) for _ in range(depth))
        self.extend(nn.Sequential(nn.LayerNorm(dim), *mlp) for mlp in layers)


class GatedTower(BaseTower):
    """`x + down(silu(gate(norm(x))) * up(norm(x)))`, `depth` times: a gated feed-forward."""

    def __init__(self, name: str, dim: int, depth: int = 1, hidden: int = 0):
        super().__init__(name)
        hidden = hidden or 2 * dim
        for _ in range(depth):
            parts = {"norm": nn.LayerNorm(dim), "gate": nn.Linear(dim, hidden)}
            self.append(
                nn.ModuleDict({**parts, "up": nn.Linear(dim, hidden), "down": nn.Linear(hidden, dim)})
            )

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            part: Any = stage
            h = part["norm"](x)
            x = x + part["down"](F.silu(part["gate"](h)) * part["up"](h))
        return x


class AttentionTower(BaseTower):
    """Self-attention and a feed-forward on `[B, T, dim]`, both with pre-norm and residual.

    Args:
        heads: number of attention heads; must divide `dim`.
        causal: whether a position attends only to itself and earlier ones.
    """

    def __init__(self, name: str, dim: int, heads: int = 4, causal: bool = False, hidden: int = 0):
        super().__init__(name)
        if heads < 1 or dim % heads:
            raise ArgumentError(f"AttentionTower {name!r}: {heads} heads do not divide dim={dim}")
        self.heads, self.causal = heads, causal
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.feed_forward = PreNormTower(f"{name}.feed_forward", dim, 1, hidden)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask`: boolean, True where a position may be attended to, `[B, T]` or `[B, T, T]` (per query)."""
        if x.dim() != 3:
            raise InputError(f"AttentionTower: expected an input [B, T, dim], got {tuple(x.shape)}")
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        seen = None if mask is None else _pairs(mask, b, t)
        causal = self.causal and seen is None
        if self.causal and seen is not None:
            seen = seen & torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=causal)
        return self.feed_forward(x + self.out(attended.transpose(1, 2).reshape(b, t, d)))


def _pairs(mask: Tensor, b: int, t: int) -> Tensor:
    """Return the mask as `[B, 1, 1 or T, T]`."""
    if mask.dtype == torch.bool and mask.shape == (b, t):
        return mask.view(b, 1, 1, t)
    if mask.dtype == torch.bool and mask.shape == (b, t, t):
        return mask.view(b, 1, t, t)
    raise InputError(
        f"mask: expected booleans [B, T] = {(b, t)} or "
        f"[B, T, T] = {(b, t, t)}, got {tuple(mask.shape)} {mask.dtype}"
    )
