from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from primitives.loop import DEVICE, N, assert_near, check_module, make_members, rand, randint
from wide_compiler.primitives import WideEmbedding, shared_embedding, wide_embedding

STRATEGIES = ("auto", *WideEmbedding.STRATEGIES)
CONCRETE = WideEmbedding.STRATEGIES
cpu_only = pytest.mark.skipif(DEVICE != "cpu", reason="a bad index is a device-side assertion there")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shape", [(), (4,), (2, 5), (0,)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("padding_idx", [None, 0, -1, 3])
def test_module_is_the_loop(strategy: str, shape: Any, dtype: torch.dtype, padding_idx: int | None) -> None:
    """padding_idx: the row is looked up as it is, in every lane, and gets no gradient in any."""
    indices = randint(5, N, *shape, dtype=dtype)
    check_module(WideEmbedding, lambda: nn.Embedding(5, 4, padding_idx), [indices], strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_float32_and_one_lane(strategy: str) -> None:
    check_module(WideEmbedding, lambda: nn.Embedding(5, 4, 2), [randint(5, N, 2, 9)], strategy, torch.float32)
    check_module(WideEmbedding, lambda: nn.Embedding(5, 4, 2), [randint(5, 1, 1, 9)], strategy, n=1)


@pytest.mark.parametrize("strategy", CONCRETE)
def test_padding_row_is_itself_and_gets_no_gradient(strategy: str) -> None:
    w = rand(N, 5, 4).requires_grad_()
    indices = torch.full((N, 6), 2, device=DEVICE)
    y = wide_embedding(indices, w, padding_idx=2, strategy=strategy)
    assert torch.equal(y, w[:, 2:3].expand(-1, 6, -1)) and y.abs().min() > 0
    (grad,) = torch.autograd.grad(y.sum(), w)
    assert grad.abs().max() == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("norm_type", [2.0, 1.0])
def test_max_norm_scales_the_rows_looked_up_in_place(strategy: str, norm_type: float) -> None:
    make = lambda: nn.Embedding(6, 4, max_norm=0.5, norm_type=norm_type)  # noqa: E731
    check_module(WideEmbedding, make, [randint(3, N, 2, 5)], strategy)


@pytest.mark.parametrize("strategy", ["auto", "indexed", "sequential"])
def test_scale_grad_by_freq(strategy: str) -> None:
    make = lambda: nn.Embedding(4, 3, scale_grad_by_freq=True)  # noqa: E731
    check_module(WideEmbedding, make, [randint(4, N, 20)], strategy)


@cpu_only
@pytest.mark.parametrize("strategy", CONCRETE)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(
    ("lane", "index"), [(0, 5), (0, -1), (1, -1), (1, 5), (2, 5), (2, 10**6), (1, -(10**6))]
)
def test_an_index_never_reaches_another_lane(
    strategy: str, dtype: torch.dtype, lane: int, index: int
) -> None:
    w, indices = rand(N, 5, 4), randint(5, N, 2, 3, dtype=dtype)
    indices[lane, 1, 2] = index
    message = rf"lane {lane}: index {index} is outside the table of 5 rows; expected 0 to 4"
    with pytest.raises(IndexError, match=message):
        wide_embedding(indices, w, strategy=strategy)
    with pytest.raises(IndexError, match=message):
        WideEmbedding.from_modules(make_members(lambda: nn.Embedding(5, 4, max_norm=1.0)), strategy)(indices)
    run = torch.compile(wide_embedding, fullgraph=True, backend="eager")
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        run(indices, w, strategy=strategy)


@pytest.mark.parametrize("padding_idx", [None, 1, -2])
@pytest.mark.parametrize("shape", [(), (4,), (2, 5)])
def test_shared_indices(padding_idx: int | None, shape: tuple[int, ...]) -> None:
    w, indices = rand(N, 5, 4).requires_grad_(), randint(5, *shape)
    got = shared_embedding(indices, w, padding_idx)
    want = torch.stack([F.embedding(indices, w[i], padding_idx) for i in range(N)])
    assert_near(got, want)
    seed = torch.randn_like(want)
    assert_near(torch.autograd.grad(got, w, seed)[0], torch.autograd.grad(want, w, seed)[0])


@cpu_only
@pytest.mark.parametrize("index", [5, -1])
def test_shared_indices_out_of_range(index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} is outside"):
        shared_embedding(torch.tensor([0, index]), rand(N, 5, 4))


def test_bad_input() -> None:
    with pytest.raises(TypeError, match=r"int32 or int64, got torch\.float64"):
        wide_embedding(rand(N, 2), rand(N, 5, 4))
    with pytest.raises(ValueError, match="padding_idx 5 is outside the table of 5 rows"):
        wide_embedding(randint(5, N, 2), rand(N, 5, 4), padding_idx=5)
    with pytest.raises(ValueError, match="cannot scale_grad_by_freq; use 'indexed'"):
        wide_embedding(randint(5, N, 2), rand(N, 5, 4), strategy="gather", scale_grad_by_freq=True)
    with pytest.raises(ValueError, match="sparse=False"):
        WideEmbedding.from_modules([nn.Embedding(5, 4, sparse=True)])
