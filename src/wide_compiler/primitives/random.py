"""Random draws: every lane draws its own numbers.

Without seeds the draw is PyTorch's own on the wide shape. With a seed per lane (`rng`, one integer each) the
numbers come from a counter-based hash of (seed, place in the graph, element), so that a lane draws the same
whichever lanes run beside it.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..widen.builder import Builder, LaneScalar, Val
from ..widen.helpers import fold
from ..widen.rules import ops, rule
from .dropout import WideDropout

aten = torch.ops.aten
_MASK = 0xFFFFFFFF


def _mix(h: Tensor) -> Tensor:
    """A 32-bit finaliser in int64 arithmetic: every input bit reaches every output bit."""
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def lane_uniform(rng: Tensor, site: int, shape: Any, dtype: torch.dtype, stream: int = 0) -> Tensor:
    """Uniform numbers in [0, 1): `[N, *shape]` from `rng` `[N]`, the same for a lane in any company."""
    count = math.prod(shape)
    key_N = _mix((rng & _MASK) ^ _mix(((rng >> 32) & _MASK) + site * 2654435761 + stream * 40503))
    bits = _mix(_mix(torch.arange(count, device=rng.device) & _MASK) ^ key_N.unsqueeze(1))
    return ((bits >> 8).to(dtype) * 2.0**-24).view(rng.shape[0], *shape)


def lane_normal(rng: Tensor, site: int, shape: Any, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers by Box and Muller from two uniform streams."""
    radius = torch.sqrt(-2.0 * torch.log1p(-lane_uniform(rng, site, shape, dtype, 0)))
    return radius * torch.cos(2.0 * math.pi * lane_uniform(rng, site, shape, dtype, 1))


def draw_dropout(x: Tensor, p: Any, train: bool, rng: Tensor | None, site: int) -> Tensor:
    """x `[N, ...]`; p a number or one per lane `[N]`."""
    if rng is None or not train:
        return WideDropout.kernel(x, p, train)
    keep = 1.0 - (p if isinstance(p, float | int) else p.view(-1, *([1] * (x.dim() - 1))))
    mask = lane_uniform(rng, site, x.shape[1:], torch.float32) < keep
    scale = (
        1.0 / keep if isinstance(keep, float) and keep > 0 else 1.0 / torch.as_tensor(keep).clamp_min(1e-30)
    )
    return torch.where(mask, x * scale, 0.0).to(x.dtype)


@rule(*ops("dropout.default", "native_dropout"), lane_scalars=True)
def dropout(b: Builder, x: Val, p: Any, train: Any = True) -> Val | None:
    if isinstance(train, LaneScalar):
        return None
    if isinstance(p, LaneScalar):
        p = b.lane_tensor(p, like=x)
    return b.call(draw_dropout, b.wide(x), p, train, b.rng, b.random_site())


def draw_like(x: Tensor, normal: bool, rng: Tensor | None, site: int, **kwargs: Any) -> Tensor:
    if rng is None:
        return (torch.randn_like if normal else torch.rand_like)(x, **kwargs)
    draw = lane_normal if normal else lane_uniform
    return draw(rng, site, x.shape[1:], kwargs.get("dtype") or x.dtype)


@rule(*ops("randn_like.default"))
def randn_like(b: Builder, x: Val, **kwargs: Any) -> Val:
    return b.call(draw_like, b.wide(x), True, b.rng, b.random_site(), **_plain(kwargs))


@rule(*ops("rand_like.default"))
def rand_like(b: Builder, x: Val, **kwargs: Any) -> Val:
    return b.call(draw_like, b.wide(x), False, b.rng, b.random_site(), **_plain(kwargs))


def draw(n: int, size: list[int], normal: bool, rng: Tensor | None, site: int, **kwargs: Any) -> Tensor:
    if rng is None:
        return (torch.randn if normal else torch.rand)([n, *size], **kwargs)
    function = lane_normal if normal else lane_uniform
    return function(rng, site, size, kwargs.get("dtype") or torch.get_default_dtype())


@rule(*ops("randn.default"))
def randn(b: Builder, size: list[Any], **kwargs: Any) -> Val:
    return b.call(draw, b.n, size, True, b.rng, b.random_site(), **_plain(kwargs))


@rule(*ops("rand.default"))
def rand(b: Builder, size: list[Any], **kwargs: Any) -> Val:
    return b.call(draw, b.n, size, False, b.rng, b.random_site(), **_plain(kwargs))


def _plain(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k in ("dtype", "device")}


def draw_bernoulli(p: Tensor, rng: Tensor | None, site: int) -> Tensor:
    if rng is None:
        return torch.bernoulli(p)
    return (lane_uniform(rng, site, p.shape[1:], torch.float32) < p).to(p.dtype)


@rule(*ops("bernoulli.default"))
def bernoulli(b: Builder, p: Val, **_: Any) -> Val:
    return b.call(draw_bernoulli, b.wide(p), b.rng, b.random_site())


@rule(*ops("multinomial.default"))
def multinomial(b: Builder, p: Val, *args: Any, **kwargs: Any) -> Val:
    return b.call(unseeded, aten.multinomial.default, p.rank == 2, b.rng, b.wide(p), *args, **kwargs)


def unseeded(op: Any, folds: bool, rng: Tensor | None, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Draws that only PyTorch's own generator can make."""
    if rng is not None:
        raise NotImplementedError(f"{op} cannot draw from a seed per lane; call wide.seed(None) first")
    return fold(op, x, *args, **kwargs) if folds else op(x, *args, **kwargs)


def _written(op: Any) -> Any:
    def run(b: Builder, x: Val, *args: Any, **kwargs: Any) -> Val:
        return b.call(unseeded, op, False, b.rng, x, *args, **kwargs)

    return run


for _op in ops(
    "normal_.default",
    "uniform_.default",
    "bernoulli_.float",
    "exponential_.default",
    "randint_like",
    "alpha_dropout",
):
    rule(_op)(_written(_op))
