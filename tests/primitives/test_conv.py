from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from primitives.loop import N, assert_near, check_module, rand
from wide_compiler.primitives import (
    WideConv1d,
    WideConv2d,
    WideConv3d,
    WideConvTranspose1d,
    WideConvTranspose2d,
    WideConvTranspose3d,
    shared_conv,
    wide_batch_norm,
    wide_conv,
)

CONVS: dict[int, tuple[Any, Any]] = {
    1: (WideConv1d, nn.Conv1d),
    2: (WideConv2d, nn.Conv2d),
    3: (WideConv3d, nn.Conv3d),
}
TRANSPOSED: dict[int, tuple[Any, Any]] = {
    1: (WideConvTranspose1d, nn.ConvTranspose1d),
    2: (WideConvTranspose2d, nn.ConvTranspose2d),
    3: (WideConvTranspose3d, nn.ConvTranspose3d),
}
CASES = [(rank, s) for rank in (1, 2, 3) for s in ("auto", *CONVS[rank][0].STRATEGIES)]
TRANSPOSED_CASES = [(rank, s) for rank in (1, 2, 3) for s in ("auto", *TRANSPOSED[rank][0].STRATEGIES)]


@pytest.mark.parametrize(("rank", "strategy"), CASES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False, "padding": 1, "stride": 2},
        {"padding": "same", "dilation": 2},
        {"padding": "valid", "groups": 2},
        {"groups": 4, "padding": 1},
        {"padding": 1, "padding_mode": "reflect"},
        {"padding": 2, "padding_mode": "circular", "groups": 2},
        {"padding": "same", "padding_mode": "replicate"},
    ],
    ids=str,
)
def test_module_is_the_loop(rank: int, strategy: str, options: dict[str, Any]) -> None:
    wide, member = CONVS[rank]
    x = rand(N, 2, 4, *(6, 5, 5)[:rank])
    check_module(wide, lambda: member(4, 8, 3, **options), [x], strategy)


@pytest.mark.parametrize(("rank", "strategy"), TRANSPOSED_CASES)
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False, "stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "dilation": 2}],
    ids=str,
)
def test_transposed_module_is_the_loop(rank: int, strategy: str, options: dict[str, Any]) -> None:
    wide, member = TRANSPOSED[rank]
    x = rand(N, 2, 4, *(4, 3, 3)[:rank])
    check_module(wide, lambda: member(4, 6, 3, **options), [x], strategy)


@pytest.mark.parametrize(("rank", "strategy"), CASES)
def test_unbatched_one_lane_and_float32(rank: int, strategy: str) -> None:
    size = (6, 5, 5)[:rank]
    for table in (CONVS, TRANSPOSED):
        wide, member = table[rank]
        if strategy not in ("auto", *wide.STRATEGIES):
            continue
        check_module(wide, lambda member=member: member(4, 2, 3), [rand(N, 4, *size)], strategy)
        check_module(wide, lambda member=member: member(4, 2, 3), [rand(1, 1, 4, *size)], strategy, n=1)
        check_module(
            wide, lambda member=member: member(4, 2, 3), [rand(N, 2, 4, *size)], strategy, torch.float32
        )
    wide, member = CONVS[rank]
    check_module(
        wide, lambda: member(4, 2, 3, padding=1, padding_mode="circular"), [rand(N, 4, *size)], strategy
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_output_size(rank: int) -> None:
    wide, member = TRANSPOSED[rank]
    size = (8,) * rank
    check_module(
        wide,
        lambda: member(2, 3, 3, stride=2, padding=1),
        [rand(N, 2, 2, *(4,) * rank)],
        call=lambda m, x: m(x, output_size=size),
    )
    layer = wide.from_modules([member(2, 3, 3, stride=2, padding=1)])
    with pytest.raises(ValueError, match=r"output_size .* between .*7.* and .*8"):
        layer(rand(1, 2, 2, *(4,) * rank), output_size=(9,) * rank)


@pytest.mark.parametrize("strategy", ["auto", "grouped", "channels_last", "sequential"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("batched", [True, False])
def test_shared_input(strategy: str, groups: int, batched: bool) -> None:
    x = rand(*([2] if batched else []), 4, 5, 5).requires_grad_()
    w, b = rand(N, 6, 4 // groups, 3, 3).requires_grad_(), rand(N, 6).requires_grad_()
    options: dict[str, Any] = {"stride": 2, "padding": 1, "dilation": 1, "groups": groups}
    got = shared_conv(x, w, b, **options, strategy=strategy)
    want = torch.stack([F.conv2d(x, w[i], b[i], **options) for i in range(N)])
    assert_near(got, want)
    seed = torch.randn_like(want)
    for a, c in zip(
        torch.autograd.grad(got, [x, w, b], seed), torch.autograd.grad(want, [x, w, b], seed), strict=True
    ):
        assert_near(a, c)


@pytest.mark.parametrize("strategy", ["grouped", "channels_last"])
def test_chained_layers_fold_without_a_copy(strategy: str) -> None:
    """The result of one layer is a view that the next layer folds back to the same memory."""
    w = rand(N, 4, 4, 3, 3)
    y = wide_conv(rand(N, 2, 4, 6, 6), w, padding=1, strategy=strategy)
    folded = y.transpose(0, 1).flatten(1, 2)
    assert folded.data_ptr() == y.data_ptr() and folded._base is y._base
    z = wide_batch_norm(y, training=True)
    assert z.transpose(0, 1).flatten(1, 2).data_ptr() == z.data_ptr()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="1, 2 or 3 kernel axes"):
        wide_conv(rand(N, 2, 4, 5), rand(N, 2, 4))
    with pytest.raises(ValueError, match="2 spatial axes"):
        wide_conv(rand(N, 2, 4), rand(N, 2, 4, 3, 3))
    with pytest.raises(ValueError, match="1 spatial axes: unknown strategy 'channels_last'"):
        wide_conv(rand(N, 2, 4, 5), rand(N, 2, 4, 3), strategy="channels_last")
    with pytest.raises(ValueError, match="choose one of 'auto', 'grouped', 'streams', 'sequential'"):
        WideConv1d.from_modules([nn.Conv1d(1, 1, 1)], "channels_last")
    with pytest.raises(ValueError, match="expected an input with 2 lanes as dimension 0 and 4 or 5 axes"):
        WideConv2d.from_modules([nn.Conv2d(1, 1, 1)] * 2)(rand(3, 2, 1, 4, 4))
