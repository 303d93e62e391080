"""The attention kernel against float64 torch, and its gradients against autograd's."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.device import DEVICE, needs_kernels, triton
from wide_compiler.kernels import lane_attention as attention
from wide_compiler.kernels.lane_attention import fits, lane_attention

pytestmark = needs_kernels


def make(Z=2, H=2, L=5, S=7, E=16, dtype=torch.float32, grad=False):
    shapes = (Z, H, L, E), (Z, H, S, E), (Z, H, S, E)
    return [torch.randn(s, device=DEVICE).to(dtype).requires_grad_(grad) for s in shapes]


def reference(q, k, v, is_causal=False, scale=None):
    """In float64, by torch's plain implementation: the others have no second gradient."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=is_causal, scale=scale
        )


def op(q, k, v, is_causal=False, scale=0.25):
    """The kernel where a gradient is needed, too."""
    return attention._lane_attention(q, k, v, is_causal, scale)


def check(actual, expected, tol=2e-5):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tol, atol=tol)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "L, S, E",
    [(1, 1, 16), (5, 7, 16), (33, 20, 24), (20, 33, 32), (16, 32, 64), (40, 16, 5), (17, 48, 128)],
)
def test_sizes(L, S, E, is_causal):
    qkv = make(L=L, S=S, E=E)
    y = lane_attention(*qkv, is_causal=is_causal)
    check(y, reference(*qkv, is_causal=is_causal))
    assert y.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("scale", [0.3, 1.0, -0.5, 0.0])
def test_scales(scale):
    qkv = make()
    check(lane_attention(*qkv, scale=scale), reference(*qkv, scale=scale))


def test_far_scores():
    q, k, v = make(L=20, S=40)
    check(lane_attention(100 * q, k, v), reference(100 * q, k, v), 1e-4)
    q[..., 0], k[..., 0] = 1e4, -1.0  # every score is far below zero
    check(lane_attention(q, k, v, True), reference(q, k, v, True), 1e-2)


def test_views_of_one_projection_need_no_copy():
    Z, L, H, E = 3, 18, 2, 16
    qkv = torch.randn(Z, L, 3, H, E, device=DEVICE)
    views = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    check(lane_attention(*views, is_causal=True), reference(*views, is_causal=True))


def test_shared_and_turned_tensors():
    q, k, v = make(L=18, S=18)
    k = k[:1, :1].expand_as(v)
    v = v.mT.contiguous().mT
    q = q.repeat_interleave(2, -1)[..., ::2]
    check(lane_attention(q, k, v), reference(q, k, v))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(dtype):
    qkv = make(L=20, S=33, E=32, dtype=dtype)
    y = lane_attention(*qkv, is_causal=True)
    assert y.dtype == dtype
    check(y, reference(*qkv, is_causal=True), 2e-2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("function", [op, lane_attention])
def test_gradients(is_causal, function):
    inputs = make(L=9, S=5, grad=True)
    y, expected = (f(*inputs, is_causal=is_causal, scale=0.4) for f in (function, reference))
    dy = torch.randn_like(y)
    grads = torch.autograd.grad(y, inputs, dy)
    for got, want in zip(grads, torch.autograd.grad(expected, inputs, dy.double()), strict=True):
        check(got, want)


def test_only_the_gradients_asked_for():
    q, k, v = make()
    v.requires_grad_()
    (got,) = torch.autograd.grad(op(q, k, v).sum(), v)
    (want,) = torch.autograd.grad(reference(q, k, v).sum(), v)
    check(got, want)


@pytest.mark.parametrize("is_causal", [False, True])
def test_double_backward(is_causal):
    q, k, v = make(grad=True)

    def second(y):
        (dq,) = torch.autograd.grad(y.sum(), q, create_graph=True)
        return torch.autograd.grad(dq.pow(2).sum(), (q, k, v))

    actual = second(op(q, k, v, is_causal))
    for got, want in zip(actual, second(reference(q, k, v, is_causal)), strict=True):
        check(got, want)


def test_no_queries():
    q, k, v = make(L=0)
    assert lane_attention(q, k, v).shape == (2, 2, 0, 16)


def test_the_op_keeps_torchs_rules():
    torch.library.opcheck(attention._lane_attention, (*make(L=3, S=4, grad=True), True, 0.25))


@pytest.mark.parametrize("function", [op, lane_attention])
def test_compiled_without_a_graph_break(function):
    inputs = make(L=4, S=4, grad=True)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        check(compiled(*inputs), reference(*inputs))
    y, expected = compiled(*inputs, is_causal=True), reference(*inputs, is_causal=True)
    check(y, expected)
    grads = torch.autograd.grad(y.sum(), inputs)
    for got, want in zip(grads, torch.autograd.grad(expected.sum(), inputs), strict=True):
        check(got, want)


def test_what_fits():
    q, k, v = make()
    assert fits(q, k, v)
    assert not fits(q, k, v, torch.ones(5, 7, device=DEVICE))
    assert not fits(q, k, v, None, 0.1)
    assert not fits(q, k, v[..., :8])
    assert not fits(q, k[..., :8], v[..., :8])
    assert not fits(q, k[:, :1], v[:, :1])
    assert not fits(q, k[:, :, :0], v[:, :, :0])
    assert not fits(q[0], k[0], v[0])
    assert not fits(q.double(), k.double(), v.double())
    assert not fits(*make(E=129))


@pytest.mark.parametrize("rows, keys", [(1, 1), (16, 1024), (64, 64), (128, 16), (4096, 4096)])
@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pruning_leaves_something(rows, keys, width, dtype):
    every = [triton.Config({"BL": b[0], "BS": b[1]}, num_warps=b[2]) for b in attention.BLOCKS]
    named = {"L_KEY": rows, "S_KEY": keys, "q": torch.empty(1, dtype=dtype)}
    assert attention._prune(every, named, BE=width)


def test_the_default_scale():
    q, k, v = make()
    check(lane_attention(q, k, v), reference(q, k, v, scale=1 / math.sqrt(16)))
