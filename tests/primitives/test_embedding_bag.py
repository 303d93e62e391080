from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from primitives.loop import DEVICE, N, assert_near, check_module, rand, randint
from wide_compiler.primitives import WideEmbeddingBag, wide_embedding_bag

STRATEGIES = ("auto", *WideEmbeddingBag.STRATEGIES)
MODES = ("sum", "mean", "max")
cpu_only = pytest.mark.skipif(DEVICE != "cpu", reason="a bad index is a device-side assertion there")
OFFSETS = torch.tensor([[0, 3, 3, 7], [0, 0, 5, 6], [0, 1, 2, 9]], device=DEVICE)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding_idx", [None, 1, -1])
def test_bags_of_one_length(strategy: str, mode: str, padding_idx: int | None) -> None:
    indices = randint(5, N, 4, 3)
    if padding_idx is not None:
        indices[:, 0] = padding_idx % 5  # a bag of nothing but padding
    check_module(
        WideEmbeddingBag,
        lambda: nn.EmbeddingBag(5, 4, mode=mode, padding_idx=padding_idx),
        [indices],
        strategy,
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding_idx", [None, 1])
@pytest.mark.parametrize("last", [False, True])
def test_bags_by_offsets(strategy: str, mode: str, padding_idx: int | None, last: bool) -> None:
    options: dict[str, Any] = {
        "mode": mode,
        "padding_idx": padding_idx,
        "include_last_offset": last,
    }
    offsets = torch.cat([OFFSETS, torch.full((N, 1), 9, device=DEVICE)], 1) if last else OFFSETS
    check_module(
        WideEmbeddingBag, lambda: nn.EmbeddingBag(5, 4, **options), [randint(5, N, 9), offsets], strategy
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_last_bag_that_ends_before_the_indices_do(mode: str) -> None:
    """Held against shorter indices, not against torch, which gets this wrong (pytorch issue 52851)."""
    w, indices, offsets = rand(N, 5, 4), randint(5, N, 9), OFFSETS.clamp(max=7)
    got = wide_embedding_bag(
        indices,
        w,
        torch.cat([offsets, torch.full((N, 1), 7, device=DEVICE)], 1),
        mode,
        include_last_offset=True,
    )
    assert_near(got, wide_embedding_bag(indices[:, :7], w, offsets, mode))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("padding_idx", [None, 1])
@pytest.mark.parametrize("form", ["length", "offsets"])
def test_per_sample_weights(strategy: str, padding_idx: int | None, form: str) -> None:
    make = lambda: nn.EmbeddingBag(5, 4, mode="sum", padding_idx=padding_idx)  # noqa: E731
    shape = (4, 3) if form == "length" else (9,)
    offsets = None if form == "length" else OFFSETS
    check_module(WideEmbeddingBag, make, [randint(5, N, *shape), offsets, rand(N, *shape)], strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_other_options(strategy: str) -> None:
    check_module(
        WideEmbeddingBag, lambda: nn.EmbeddingBag(5, 4, max_norm=0.5), [randint(3, N, 4, 3)], strategy
    )
    indices = randint(5, N, 4, 3, dtype=torch.int32)
    check_module(WideEmbeddingBag, lambda: nn.EmbeddingBag(5, 4), [indices], strategy, torch.float32)
    check_module(WideEmbeddingBag, lambda: nn.EmbeddingBag(5, 4), [randint(5, 1, 1, 3)], strategy, n=1)
    int32 = [randint(5, N, 9, dtype=torch.int32), OFFSETS.int()]
    check_module(WideEmbeddingBag, lambda: nn.EmbeddingBag(5, 4), int32, strategy)


@pytest.mark.parametrize("strategy", ["auto", "sequential"])
def test_scale_grad_by_freq(strategy: str) -> None:
    make = lambda: nn.EmbeddingBag(5, 4, mode="sum", scale_grad_by_freq=True)  # noqa: E731
    check_module(WideEmbeddingBag, make, [randint(5, N, 4, 3)], strategy)


@cpu_only
@pytest.mark.parametrize("strategy", WideEmbeddingBag.STRATEGIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("lane", "index"), [(0, 5), (1, -1), (2, 5)])
def test_an_index_never_reaches_another_lane(strategy: str, mode: str, lane: int, index: int) -> None:
    indices = randint(5, N, 4, 3)
    indices[lane, 2, 1] = index
    with pytest.raises(IndexError, match=f"lane {lane}: index {index} is outside the table of 5 rows"):
        wide_embedding_bag(indices, rand(N, 5, 4), mode=mode, strategy=strategy)


@cpu_only
def test_an_offset_never_reaches_another_lane() -> None:
    w, indices = rand(N, 5, 4), randint(5, N, 9)
    late, long = OFFSETS.clone(), OFFSETS.clone()
    late[1, 0], long[0, -1] = 2, 10
    with pytest.raises(ValueError, match="first offset of every lane must be 0"):
        wide_embedding_bag(indices, w, late)
    with pytest.raises(ValueError, match="must not exceed its 9 indices"):
        wide_embedding_bag(indices, w, long)
    # Compiled, nothing is checked, but the other lanes' bags are what they were.
    run = torch.compile(wide_embedding_bag, fullgraph=True, backend="eager")
    assert_near(run(indices, w, late)[0], wide_embedding_bag(indices, w, OFFSETS)[0])
    assert_near(run(indices, w, long)[1:], wide_embedding_bag(indices, w, OFFSETS)[1:])


def test_bad_input() -> None:
    w = rand(N, 5, 4)
    with pytest.raises(ValueError, match=r"\[N, T\] with offsets, got indices \(3, 9\) without offsets"):
        wide_embedding_bag(randint(5, N, 9), w)
    with pytest.raises(ValueError, match=r"got indices \(3, 4, 3\) with offsets"):
        wide_embedding_bag(randint(5, N, 4, 3), w, OFFSETS)
    with pytest.raises(TypeError, match="int32 or int64"):
        wide_embedding_bag(rand(N, 4, 3), w)
    with pytest.raises(ValueError, match="cannot scale_grad_by_freq; use 'sequential'"):
        wide_embedding_bag(randint(5, N, 4, 3), w, mode="sum", strategy="indexed", scale_grad_by_freq=True)
    with pytest.raises(ValueError, match="sparse=False"):
        WideEmbeddingBag.from_modules([nn.EmbeddingBag(5, 4, sparse=True)])
