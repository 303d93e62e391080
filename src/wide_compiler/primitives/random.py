"""Rules of random ops: every lane draws its own numbers.

Without seeds the draw is PyTorch's, on the wide shape. With a seed per lane (`rng`, one integer each) the
numbers are a counter-based hash of (seed, position in the graph, element), so a lane's numbers do not depend
on the other lanes.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..widen.builder import Builder, LaneScalar, Val
from ..widen.helpers import fold
from ..widen.rules import on_lanes, ops, rule
from .dropout import WideDropout

aten = torch.ops.aten
_MASK = 0xFFFFFFFF


def _mix(h: Tensor) -> Tensor:
    """Mix 32-bit values held in int64: every input bit affects every output bit."""
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def lane_uniform(rng: Tensor, site: int, shape: Any, dtype: torch.dtype, stream: int = 0) -> Tensor:
    """Return uniform numbers in [0, 1), `[N, *shape]`, from `rng` `[N]`, independent of the other lanes."""
    count = math.prod(shape)
    wide_enough = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    key_N = _mix((rng & _MASK) ^ _mix(((rng >> 32) & _MASK) + site * 2654435761 + stream * 40503))
    bits = _mix(_mix(torch.arange(count, device=rng.device) & _MASK) ^ key_N.unsqueeze(1))
    return ((bits >> 8).to(wide_enough) * 2.0**-24).view(rng.shape[0], *shape).to(dtype)


def lane_normal(rng: Tensor, site: int, shape: Any, dtype: torch.dtype) -> Tensor:
    """Return standard normal numbers `[N, *shape]` by the Box-Muller transform of two uniform streams."""
    exact = dtype if dtype == torch.float64 else torch.float32
    radius = torch.sqrt(-2.0 * torch.log1p(-lane_uniform(rng, site, shape, exact, 0)))
    return (radius * torch.cos(2.0 * math.pi * lane_uniform(rng, site, shape, exact, 1))).to(dtype)


def draw_dropout(x: Tensor, p: Any, train: bool, rng: Tensor | None, site: int) -> Tensor:
    """Apply dropout to x `[N, ...]`; p is a number or `[N]`, one per lane."""
    if rng is None or not train:
        return WideDropout.kernel(x, p, train)
    keep = 1.0 - (p if isinstance(p, float | int) else p.view(-1, *([1] * (x.dim() - 1))))
    mask = lane_uniform(rng, site, x.shape[1:], torch.float32) < keep
    divisor = keep if isinstance(keep, float) and keep > 0 else torch.as_tensor(keep).clamp_min(1e-30)
    scale = 1.0 / divisor
    return torch.where(mask, x * scale, 0.0).to(x.dtype)


@rule(*ops("dropout.default"), lane_scalars=True, seeded=True)
def dropout(b: Builder, x: Val, p: Any, train: Any = True) -> Val | None:
    if isinstance(train, LaneScalar):
        return None
    if isinstance(p, LaneScalar):
        p = b.lane_tensor(p, like=x)
    return b.call(draw_dropout, b.wide(x), p, train, b.rng, b.random_site())


def draw_like(x: Tensor, normal: bool, rng: Tensor | None, site: int, **kwargs: Any) -> Tensor:
    if rng is None:
        return (torch.randn_like if normal else torch.rand_like)(x, **kwargs)
    seeded = lane_normal if normal else lane_uniform
    return seeded(rng, site, x.shape[1:], kwargs.get("dtype") or x.dtype)


def draw(n: int, size: list[int], normal: bool, rng: Tensor | None, site: int, **kwargs: Any) -> Tensor:
    if rng is None:
        return (torch.randn if normal else torch.rand)([n, *size], **kwargs)
    seeded = lane_normal if normal else lane_uniform
    return seeded(rng, site, size, kwargs.get("dtype") or torch.get_default_dtype())


def _draw_rule(normal: bool, like: bool) -> Any:
    def run(b: Builder, given: Any, **kwargs: Any) -> Val:
        drawn = (draw_like, b.wide(given)) if like else (draw, b.n, given)
        named = {k: v for k, v in kwargs.items() if k in ("dtype", "device")}
        return b.call(*drawn, normal, b.rng, b.random_site(), **named)

    return run


for _name, _normal in (("randn", True), ("rand", False)):
    rule(*ops(f"{_name}.default"), seeded=True)(_draw_rule(_normal, like=False))
    rule(*ops(f"{_name}_like.default"), seeded=True)(_draw_rule(_normal, like=True))


def draw_bernoulli(p: Tensor, rng: Tensor | None, site: int) -> Tensor:
    if rng is None:
        return torch.bernoulli(p)
    return (lane_uniform(rng, site, p.shape[1:], torch.float32) < p).to(p.dtype)


@rule(*ops("bernoulli.default"), seeded=True)
def bernoulli(b: Builder, p: Val, **_: Any) -> Val:
    return b.call(draw_bernoulli, b.wide(p), b.rng, b.random_site())


@rule(*ops("multinomial.default"))
def multinomial(b: Builder, p: Val, *args: Any, **kwargs: Any) -> Val:
    folds = (fold,) if p.rank == 2 else ()
    return b.call(*folds, aten.multinomial.default, b.wide(p), *args, **kwargs)


# Elementwise draws: on the wide shape every lane gets its own numbers.
_ELEMENTWISE = ops(
    """
    normal_.default uniform_.default bernoulli_ exponential_ random_ geometric_ cauchy_ log_normal_
    randint_like alpha_dropout alpha_dropout_ dropout_ poisson bernoulli.p normal.Tensor_float
    normal.float_Tensor normal.Tensor_Tensor binomial rrelu rrelu_
    """
)


for _op in _ELEMENTWISE:
    rule(_op)(on_lanes(_op))


def _sized(op: Any) -> Any:
    """Return a rule of a draw with a `size` argument; the lanes are one more dim of it."""
    place = [a.name for a in op._schema.arguments].index("size")

    def run(b: Builder, *args: Any, **kwargs: Any) -> Val:
        args = (*args[:place], [b.n, *args[place]], *args[place + 1 :])
        return b.call(op, *args, **kwargs)

    return run


for _op in ops("randint.default randint.low normal.float_float"):
    rule(_op)(_sized(_op))
