from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from primitives.loop import DEVICE, N, assert_near, check_module, rand
from wide_compiler.primitives import WideLinear, shared_linear, wide_linear
from wide_compiler.primitives.joined_linear import joined_linear

STRATEGIES = ("auto", *WideLinear.STRATEGIES)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(), (4,), (1,), (2, 3), (2, 3, 2), (0,)])
def test_module_is_the_loop(strategy: str, bias: bool, shape: tuple[int, ...]) -> None:
    check_module(WideLinear, lambda: nn.Linear(5, 4, bias=bias), [rand(N, *shape, 5)], strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("n", [1, 2])
def test_float32_and_one_lane(strategy: str, n: int) -> None:
    check_module(WideLinear, lambda: nn.Linear(16, 8), [rand(n, 6, 16)], strategy, torch.float32, n=n)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_shared_input(bias: bool, shape: tuple[int, ...]) -> None:
    x, w = rand(*shape, 5).requires_grad_(), rand(N, 4, 5).requires_grad_()
    b = rand(N, 4).requires_grad_() if bias else None
    got = shared_linear(x, w, b)
    want = torch.stack([F.linear(x, w[i], None if b is None else b[i]) for i in range(N)])
    assert_near(got, want)
    leaves = [x, w] if b is None else [x, w, b]
    seed = torch.randn_like(want)
    for a, c in zip(
        torch.autograd.grad(got, leaves, seed), torch.autograd.grad(want, leaves, seed), strict=True
    ):
        assert_near(a, c)


def test_non_contiguous_input() -> None:
    x, w = rand(4, 5, N).permute(2, 0, 1), rand(N, 2, 5)
    assert_near(wide_linear(x, w), torch.stack([x[i] @ w[i].T for i in range(N)]))


def test_complex_and_half() -> None:
    x, w = torch.randn(N, 4, 5, dtype=torch.complex128), torch.randn(N, 2, 5, dtype=torch.complex128)
    assert torch.allclose(wide_linear(x, w), torch.stack([F.linear(x[i], w[i]) for i in range(N)]))
    assert wide_linear(rand(N, 4, 5).bfloat16(), rand(N, 2, 5).bfloat16()).dtype == torch.bfloat16


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"lane axis.*x \(2, 4, 5\), weight \(3, 2, 5\)"):
        wide_linear(rand(2, 4, 5), rand(3, 2, 5))
    with pytest.raises(
        ValueError,
        match="'fast'; choose one of 'auto', 'einsum', 'transposed', 'tensor_core', 'sequential'",
    ):
        wide_linear(rand(N, 4, 5), rand(N, 2, 5), strategy="fast")


@pytest.mark.parametrize("strategy", ["einsum", "transposed", "sequential", "tensor_core"])
@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_gives_the_dtype_and_numbers_of_the_member(strategy, compiled):
    """Compiled, the bias is added by another op, which autocast does not cast."""
    members = [nn.Linear(6, 4) for _ in range(3)]
    weight, bias = (torch.stack([getattr(m, name) for m in members]) for name in ("weight", "bias"))
    x = torch.randn(3, 5, 6)
    call = torch.compile(wide_linear, backend="eager") if compiled else wide_linear
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = torch.stack([m(one) for m, one in zip(members, x, strict=True)])
        got = call(x, weight, bias, strategy)
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_compiled_gradients_lie_as_the_weights_do(dtype) -> None:
    """Else autograd copies each of them into the weight's layout by a kernel of its own."""
    x = torch.randn(N, 5, 8, device=DEVICE)
    weights = [torch.randn(N, out, 8, device=DEVICE, requires_grad=True) for out in (4, 2)]

    @torch.compile(backend="aot_eager")
    def total(x, weights):
        parts = joined_linear(x, weights, None, "einsum")
        return sum(part.square().sum() for part in parts) + wide_linear(x, weights[0]).sum()

    with torch.autocast(torch.device(DEVICE).type, dtype, enabled=dtype is not None):
        got = torch.autograd.grad(total(x, weights), weights)
    assert [g.stride() for g in got] == [w.stride() for w in weights]
    want = torch.autograd.grad(total(x, weights), weights)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.5 if dtype else 1e-4)
