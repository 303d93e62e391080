"""The lane-wise product kernel against float64 torch, and its gradients against autograd's."""

import pytest
import torch

from kernels.device import DEVICE, needs_kernels
from wide_compiler.kernels import _triton
from wide_compiler.kernels.activations import ACTIVATIONS
from wide_compiler.kernels.lane_linear import _lane_linear, lane_linear
from wide_compiler.kernels.lane_matmul import (
    CONFIGS,
    SMALLEST,
    _mode,
    _prune,
    lane_matmul,
    matmul,
)

pytestmark = needs_kernels
N, M, K, O = 3, 5, 33, 17


def rand(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, device=DEVICE, dtype=torch.float64).to(dtype).requires_grad_(grad)


def reference(x, weight, bias, activation):
    """In float64, from the values the kernel gets."""
    y = x.double() @ weight.double().mT
    if bias is not None:
        y = y + bias.double().unsqueeze(1)
    return ACTIVATIONS[activation](y)


def check(actual, expected, tol=2e-5):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tol, atol=tol)


def check_grads(y, expected, inputs, tol=2e-5):
    dy = torch.randn_like(y)
    grads = torch.autograd.grad(y, inputs, dy)
    for got, want in zip(grads, torch.autograd.grad(expected, inputs, dy.to(expected.dtype)), strict=True):
        check(got, want, tol)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_their_gradients(activation):
    x, weight, bias = rand(N, M, K, grad=True), rand(N, O, K, grad=True), rand(N, O, grad=True)
    expected = reference(x, weight, bias, activation)
    with torch.no_grad():  # the activation is inside the kernel here
        check(lane_linear(x, weight, bias, activation), expected)
    y = lane_linear(x, weight, bias, activation)
    check(y, expected)
    check_grads(y, expected, (x, weight, bias))


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "tanh", "sigmoid", "silu", "relu"])
def test_activations_far_out_and_near_zero(activation):
    points = torch.tensor([-1e4, -90.0, -10.0, -0.21, -0.19, -1e-4, 0.0, 1e-4, 0.19, 0.21, 10.0, 90.0, 1e4])
    x = torch.zeros(1, 13, 16, device=DEVICE)
    x[0, :, 0] = points.to(DEVICE)
    weight = torch.zeros(1, 1, 16, device=DEVICE)
    weight[0, 0, 0] = 1.0
    check(lane_linear(x, weight, None, activation), reference(x, weight, None, activation), 1e-6)


def test_relu_keeps_nan():
    x = torch.full((1, 2, 16), torch.nan, device=DEVICE)
    assert lane_linear(x, torch.ones(1, 3, 16, device=DEVICE), None, "relu").isnan().all()


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 40, 70, 35), (2, 3, 64, 33), (4, 33, 16, 1)])
def test_sizes_without_bias(sizes):
    n, m, k, o = sizes
    x, weight = rand(n, m, k, grad=True), rand(n, o, k, grad=True)
    y, expected = lane_linear(x, weight), reference(x, weight, None, "none")
    check(y, expected)
    check_grads(y, expected, (x, weight))


@pytest.mark.parametrize("shape", [(N, K), (N, 2, 3, K), (N, 0, K)])
def test_any_rank(shape):
    x, weight, bias = rand(*shape), rand(N, O, K), rand(N, O)
    y = lane_linear(x, weight, bias, "relu")
    assert y.shape == (*shape[:-1], O)
    flat = x.reshape(N, -1, K) if x.numel() else x
    check(y, reference(flat, weight, bias, "relu").reshape(y.shape))


@pytest.mark.parametrize("a_T", [False, True])
@pytest.mark.parametrize("b_T", [False, True])
def test_transposed_operands_need_no_copy(a_T, b_T):
    a = rand(N, K, M, grad=True).mT if a_T else rand(N, M, K, grad=True)
    b = rand(N, O, K, grad=True).mT if b_T else rand(N, K, O, grad=True)
    y, expected = lane_matmul(a, b), a.double() @ b.double()
    check(y, expected)
    check_grads(y, expected, (a, b))


def test_lanes_may_share_and_rows_may_be_strided():
    x = rand(M, K, grad=True)
    weight, bias = rand(N, O, 2 * K, grad=True), rand(O, grad=True)
    args = x.expand(N, M, K), weight[..., ::2], bias.expand(N, O)
    y, expected = lane_linear(*args), reference(*args, "none")
    check(y, expected)
    check_grads(y, expected, (x, weight, bias))
    grad = torch.autograd.grad(lane_linear(*args).sum(), x)[0]  # its dy has stride 0 everywhere
    check(grad, torch.autograd.grad(reference(*args, "none").sum(), x)[0], 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_sum_in_float32(dtype):
    x, weight, bias = (rand(*s, dtype=dtype, grad=True) for s in ((N, M, K), (N, O, K), (N, O)))
    y, expected = lane_linear(x, weight, bias, "relu"), reference(x, weight, bias, "relu")
    assert y.dtype == dtype
    check(y, expected, 1e-2)  # one rounding at the end, none along the sum
    check_grads(y, expected, (x, weight, bias), 2e-2)


def test_double_backward():
    x, weight, bias = rand(N, M, K, grad=True), rand(N, O, K, grad=True), rand(N, O, grad=True)

    def second(y):
        (dx,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(dx.pow(2).mean(), (x, weight))

    actual = second(lane_linear(x, weight, bias, "relu"))
    for got, want in zip(actual, second(reference(x, weight, bias, "relu")), strict=True):
        check(got, want, 1e-4 * want.abs().max().item())


def test_only_the_gradients_asked_for():
    x, weight, bias = rand(N, M, K), rand(N, O, K), rand(N, O, grad=True)
    check_grads(lane_linear(x, weight, bias), reference(x, weight, bias, "none"), (bias,))


def test_the_ops_keep_torchs_rules():
    x, weight, bias = rand(2, 3, 16, grad=True), rand(2, 4, 16, grad=True), rand(2, 4, grad=True)
    torch.library.opcheck(_lane_linear, (x, weight, bias, "relu"))
    torch.library.opcheck(_lane_linear, (x, weight, None, "none"))
    torch.library.opcheck(lane_matmul, (x, weight.mT))


def test_compiled_without_a_graph_break():
    x, weight, bias = rand(N, M, K, grad=True), rand(N, O, K, grad=True), rand(N, O, grad=True)
    compiled = torch.compile(lane_linear, fullgraph=True, backend="aot_eager")
    y, expected = compiled(x, weight, bias, "gelu"), reference(x, weight, bias, "gelu")
    check(y, expected)
    check_grads(y, expected, (x, weight, bias))


def test_unknown_activation():
    with pytest.raises(ValueError, match="unknown activation 'swish'"):
        lane_linear(rand(N, M, K), rand(N, O, K), None, "swish")


def test_a_fused_activation_says_that_it_has_no_gradient():
    x = rand(1, 2, 16, grad=True)
    with pytest.raises(NotImplementedError, match="gelu"):
        _lane_linear(x, rand(1, 3, 16), None, "gelu").sum().backward()


@pytest.mark.parametrize("rows, cols", [(1, 1), (16, 4096), (64, 64), (1024, 1024)])
@pytest.mark.parametrize("mode", ["tf32", "tf32x3", "bf16x6"])
def test_pruning_leaves_something(rows, cols, mode):
    named = {"M_KEY": rows, "O_KEY": cols, "a": torch.empty(1)}
    assert _prune(CONFIGS + SMALLEST, named, PRECISION=mode)


def test_what_the_kernels_take():
    assert _triton.available()
    assert _triton.supports(rand(2), rand(3), None)
    assert not _triton.supports(rand(2), rand(3, dtype=torch.bfloat16))
    assert not _triton.supports(rand(2, dtype=torch.float64))
    assert not _triton.supports(None)


def test_precision_follows_torch():
    assert _triton.precision("matmul") == "tf32x3"
    torch.set_float32_matmul_precision("high")
    assert _triton.precision("matmul") == "tf32"
    assert _triton.precision("conv") in ("tf32", "tf32x3")
    with pytest.raises(ValueError, match="kind"):
        _triton.precision("sum")


def test_a_right_side_with_contiguous_rows_is_split_into_bfloat16(monkeypatch):
    monkeypatch.setattr("wide_compiler.kernels.lane_matmul.interpreting", lambda: False)
    a, b = rand(2, 3, 4), rand(2, 4, 5)
    assert _mode(a, b, torch.float32) == "bf16x6"
    assert _mode(a, rand(2, 5, 4).mT, torch.float32) == "tf32x3"
    assert _mode(a, b, torch.bfloat16) == "bf16"
    torch.set_float32_matmul_precision("high")
    assert _mode(a, b, torch.float32) == "bf16x3"
    assert _mode(a, rand(2, 5, 4).mT, torch.float32) == "tf32"


@pytest.mark.parametrize("compute", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
def test_float32_weights_are_rounded_inside_the_kernel(compute, x_dtype):
    """As if they had been cast before, but gradients of weights are not rounded to 16 bits."""
    x, weight, bias = rand(N, M, K, dtype=x_dtype, grad=True), rand(N, O, K, grad=True), rand(N, O, grad=True)
    y = lane_linear(x, weight, bias, "relu", compute)
    rounded = [t.to(compute).double() for t in (x, weight)]
    expected = reference(*rounded, bias, "relu")
    assert y.dtype == compute
    check(y, expected, 1e-2)
    dy = torch.randn_like(y)
    grads = torch.autograd.grad(y, (x, weight, bias), dy)
    assert [g.dtype for g in grads] == [x_dtype, torch.float32, torch.float32]
    dz = dy.double() * (expected > 0)
    check(grads[0], dz @ rounded[1], 2e-2)
    check(grads[1], dz.mT @ rounded[0], 1e-4 if x_dtype == compute or compute == torch.bfloat16 else 1e-2)
    check(grads[2], dz.sum(1), 1e-4)


def test_tf32_is_rounded_and_not_cut_off():
    torch.set_float32_matmul_precision("high")
    a, b = rand(2, 40, 64).abs(), rand(2, 32, 64).abs().mT
    want = a.double() @ b.double()
    off = (matmul(a, b).double() - want) / want
    assert 1e-5 < off.abs().max() < 2.0**-11
    assert off.mean().abs() < 5e-5  # cutting bits off makes it 7e-4


def test_an_empty_sum_is_the_bias():
    bias = rand(2, 3)
    check(matmul(rand(2, 4, 0), rand(2, 0, 3), bias), bias.unsqueeze(1).expand(2, 4, 3))
