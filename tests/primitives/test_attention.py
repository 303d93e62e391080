from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from primitives.loop import DEVICE, N, assert_near, check_module, make_members, rand
from wide_compiler.primitives import WideAttention, wide_sdpa

STRATEGIES = WideAttention.STRATEGIES  # the tests that name none run with "auto"
B, L, S, M, H = 2, 4, 5, 8, 2


def check_sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, mask_wide: bool = True, **options: Any
):
    leaves = [t.requires_grad_() for t in (q, k, v)]
    strategy = options.pop("strategy")
    got = wide_sdpa(*leaves, mask, strategy=strategy, mask_wide=mask_wide, **options)
    masks = [mask[i] if mask is not None and mask_wide else mask for i in range(N)]
    want = torch.stack(
        [F.scaled_dot_product_attention(q[i], k[i], v[i], masks[i], **options) for i in range(N)]
    )
    assert_near(got, want)
    seed = torch.randn_like(want)
    grads = zip(torch.autograd.grad(got, leaves, seed), torch.autograd.grad(want, leaves, seed), strict=True)
    for a, b in grads:
        assert_near(a, b)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("lead", [(), (B,), (B, H), (2, B, H)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}], ids=str)
def test_sdpa_is_the_loop(strategy: str, lead: tuple[int, ...], options: dict[str, Any]) -> None:
    q, k, v = rand(N, *lead, L, 3), rand(N, *lead, S, 3), rand(N, *lead, S, 6)
    check_sdpa(q, k, v, strategy=strategy, **options)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", [(L, S), (H, L, S), (B, 1, L, S), (B, H, L, S), (1, 1, 1, S)])
def test_sdpa_masks(strategy: str, wide: bool, kind: str, shape: tuple[int, ...]) -> None:
    mask = rand(*([N] if wide else []), *shape)
    if kind == "bool":
        mask = mask > -1
        mask[..., 0] = True  # no row without a key
    q, k, v = rand(N, B, H, L, 3), rand(N, B, H, S, 3), rand(N, B, H, S, 3)
    check_sdpa(q, k, v, mask, wide, strategy=strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sdpa_grouped_queries_and_broadcast_keys(strategy: str) -> None:
    check_sdpa(
        rand(N, B, 4, L, 3), rand(N, B, 2, S, 3), rand(N, B, 2, S, 3), enable_gqa=True, strategy=strategy
    )
    check_sdpa(rand(N, B, H, L, 3), rand(N, 1, H, S, 3), rand(N, 1, H, S, 3), strategy=strategy)
    check_sdpa(rand(N, B, H, L, 3), rand(N, H, S, 3), rand(N, H, S, 3), strategy=strategy)


def test_sdpa_dropout_draws_for_every_lane() -> None:
    q = rand(1, B, H, L, 3).expand(N, -1, -1, -1, -1)
    y = wide_sdpa(q, q, q, dropout_p=0.5)
    assert not torch.allclose(y[0], y[1])


def test_sdpa_bad_input() -> None:
    with pytest.raises(ValueError, match="lane axis"):
        wide_sdpa(rand(N, L, 3), rand(2, S, 3), rand(N, S, 3))
    with pytest.raises(ValueError, match="'auto', 'fused', 'tensor_core', 'sequential'"):
        wide_sdpa(rand(N, L, 3), rand(N, S, 3), rand(N, S, 3), strategy="flash")


def layout(x: Tensor, batch_first: bool) -> Tensor:
    return x if batch_first else x.transpose(1, 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"kdim": 6, "vdim": 7},
        {"kdim": 6, "vdim": 7, "bias": False, "add_bias_kv": True, "add_zero_attn": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("masks", ["none", "attn", "padding", "both"])
def test_module_is_the_loop(
    strategy: str, batch_first: bool, need_weights: bool, options: dict[str, Any], masks: str
) -> None:
    q = layout(rand(N, B, L, M), batch_first)
    k = layout(rand(N, B, S, options.get("kdim", M)), batch_first)
    v = layout(rand(N, B, S, options.get("vdim", M)), batch_first)
    attn_mask = rand(N, L, S) > 0.7 if masks in ("attn", "both") else None
    padding = rand(N, B, S) > 0.7 if masks in ("padding", "both") else None
    for mask in (attn_mask, padding):
        if mask is not None:
            mask[..., 0] = False
    check_module(
        WideAttention,
        lambda: nn.MultiheadAttention(M, H, batch_first=batch_first, **options),
        [q, k, v, padding, need_weights, attn_mask, not batch_first],
        strategy,
    )


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("masks", [False, True])
def test_unbatched_self_attention(batch_first: bool, need_weights: bool, average: bool, masks: bool) -> None:
    attn_mask, padding = (rand(N, H, L, L), rand(N, L) > 0.7) if masks else (None, None)
    if padding is not None:
        padding, attn_mask = torch.zeros_like(padding), attn_mask
        padding[:, -1] = True
        padding = torch.zeros(N, L, device=DEVICE, dtype=torch.float64).masked_fill(padding, -1.5)
    check_module(
        WideAttention,
        lambda: nn.MultiheadAttention(M, H, batch_first=batch_first),
        [rand(N, L, M), padding, attn_mask],
        call=lambda m, x, p, a: m(x, x, x, p, need_weights, a, average),
    )


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_self_attention_with_the_causal_hint(need_weights: bool, padding: bool, per_head: bool) -> None:
    causal = torch.ones(L, L, device=DEVICE).triu(1).bool()
    attn_mask = causal.expand(N, *([B * H] if per_head else []), L, L)
    keys = torch.zeros(N, B, L, device=DEVICE, dtype=torch.bool)
    keys[1, :, -1] = True
    check_module(
        WideAttention,
        lambda: nn.MultiheadAttention(M, H, batch_first=True),
        [rand(N, B, L, M), keys if padding else None, attn_mask],
        call=lambda m, x, p, a: m(x, x, x, p, need_weights, a, is_causal=True),
    )


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_masks_without_a_lane_axis_hold_for_all(need_weights: bool, strategy: str) -> None:
    attn_mask, padding = rand(L, S), rand(B, S)
    check_module(
        WideAttention,
        lambda: nn.MultiheadAttention(M, H, batch_first=True),
        [rand(N, B, L, M), rand(N, B, S, M), rand(N, B, S, M), padding, need_weights, attn_mask],
        strategy,
        shared=(3, 5),
    )


def test_float32_one_lane_and_inference() -> None:
    make = lambda: nn.MultiheadAttention(M, H, batch_first=True)  # noqa: E731
    call = lambda m, x: m(x, x, x, need_weights=False)  # noqa: E731
    check_module(WideAttention, make, [rand(N, B, L, M)], dtype=torch.float32, call=call)
    check_module(WideAttention, make, [rand(1, 1, L, M)], n=1, call=call)
    members = [m.eval() for m in make_members(make)]
    x = rand(N, B, L, M)
    with torch.no_grad():  # where nn.MultiheadAttention takes a kernel of its own
        want = [m(x[i], x[i], x[i]) for i, m in enumerate(members)]
        got = WideAttention.from_modules(members)(x, x, x)
    for a, b in zip(got, zip(*want, strict=True), strict=True):
        assert_near(a, torch.stack(b))


def test_dropout() -> None:
    x = rand(N, B, L, M)
    call = lambda m, x: m(x, x, x)  # noqa: E731
    check_module(WideAttention, lambda: nn.MultiheadAttention(M, H, dropout=1.0), [x], call=call)
    check_module(WideAttention, lambda: nn.MultiheadAttention(M, H, dropout=0.5), [x], call=call, train=False)
    layer = WideAttention.from_modules(make_members(lambda: nn.MultiheadAttention(M, H, dropout=0.5)))
    for need_weights in (True, False):
        assert not torch.allclose(
            layer(x, x, x, None, need_weights)[0], layer(x, x, x, None, need_weights)[0]
        )


def test_bad_input() -> None:
    layer = WideAttention.from_modules(make_members(lambda: nn.MultiheadAttention(M, H, batch_first=True)))
    x = rand(N, B, L, M)
    with pytest.raises(ValueError, match="3 lanes"):
        layer(x[:2], x[:2], x[:2])
    with pytest.raises(ValueError, match=r"\[N, B\*H, L, S\] with N = 3, B = 2, H = 2, got \(2, 4, 4\)"):
        layer(x, x, x, attn_mask=rand(2, L, L))
    with pytest.raises(ValueError, match=r"key_padding_mask \[N, B, S\] or \[B, S\]"):
        layer(x, x, x, key_padding_mask=rand(5, L))
    with pytest.raises(ValueError, match="pass the attn_mask too"):
        layer(x, x, x, is_causal=True)
    with pytest.raises(TypeError, match=r"bool or floating-point mask, got torch\.int64"):
        layer(x, x, x, attn_mask=torch.ones(L, L, dtype=torch.int64, device=DEVICE))
