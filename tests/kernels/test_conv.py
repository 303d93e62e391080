"""The implicit-GEMM convolution against F.conv2d of every lane in float64.

Without a GPU triton's interpreter runs the kernels, on tiny tensors: it is slow.
"""

import os

import pytest
import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
triton = pytest.importorskip("triton")

from wide_compiler.kernels import conv, conv_backward  # noqa: E402

READY = torch.cuda.is_available() or type(triton.language.cdiv).__name__ == "InterpretedFunction"
pytestmark = pytest.mark.skipif(
    not READY, reason="no GPU, and triton was imported before TRITON_INTERPRET was set"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 3e-6 if DEVICE == "cpu" else 2e-5  # three TF32 products lose a little on a float32 one
N, B = 2, 3

# C, O, kernel, stride, padding, dilation
CASES = {
    "3x3": (3, 5, (3, 3), 1, 1, 1),
    "1x1": (4, 5, (1, 1), 1, 0, 1),
    "1x1, stride 3": (3, 4, (1, 1), 3, 0, 1),
    "5x3, stride 2 and 1": (3, 18, (5, 3), (2, 1), (2, 1), 1),
    "7x7, stride 2": (2, 5, (7, 7), 2, 3, 1),
    "2x3, stride 2, no padding": (17, 4, (2, 3), 2, 0, 1),
    "dilation 2": (3, 4, (3, 3), 1, 2, 2),
    "dilation 2, stride 2": (3, 4, (3, 2), 2, (2, 1), 2),
}


@pytest.fixture(autouse=True)
def exact():
    """float32 at float32's accuracy on a GPU too."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def only(monkeypatch, flat):
    """One of the kernels' two orders of summation, on CUDA as well."""
    for kernel in (conv._conv_kernel, conv_backward._dx_kernel, conv_backward._dw_kernel):
        config = triton.Config({"BM": 64, "BN": 32, "BK": 32, "FLAT": flat})
        monkeypatch.setattr(kernel, "configs", [config])


def make(C, O, kernel, size=(7, 5), bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    shapes = [(N, B, C, *size), (N, O, C, *kernel)] + [(N, O)] * bias
    tensors = [torch.randn(shape, device=DEVICE).to(dtype).requires_grad_() for shape in shapes]
    return tensors if bias else [*tensors, None]


def reference(x, weight, bias, *options, activation="none"):
    biases = [None] * N if bias is None else bias
    y = torch.stack([F.conv2d(x_, w_, b_, *options) for x_, w_, b_ in zip(x, weight, biases, strict=True)])
    return y.relu() if activation == "relu" else y


def error(got, want):
    return ((got.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def check(x, weight, bias, *options, activation="none", tolerance=TOLERANCE):
    """Output and all gradients; returns the output."""
    given = [t for t in (x, weight, bias) if t is not None]
    y = conv.lane_conv2d(x, weight, bias, *options, activation=activation)
    exact = [None if t is None else t.detach().double().requires_grad_() for t in (x, weight, bias)]
    want = reference(*exact, *options, activation=activation)
    assert y.shape == want.shape and y.dtype == x.dtype
    dy = torch.randn_like(want)
    grads = torch.autograd.grad(y, given, dy.to(y.dtype))
    want_grads = torch.autograd.grad(want, [t for t in exact if t is not None], dy)
    errors = [error(a, b) for a, b in zip((y, *grads), (want, *want_grads), strict=True)]
    assert max(errors) < tolerance, errors
    return y


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "by tap"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_like_conv2d(case, flat, monkeypatch):
    only(monkeypatch, flat)
    C, O, kernel, *options = case
    check(*make(C, O, kernel), *options)


def test_without_bias():
    check(*make(3, 5, (3, 3), bias=False), 1, 1)


def test_relu():
    y = check(*make(3, 5, (3, 3)), 1, 1, activation="relu")
    assert (y == 0).any() and (y >= 0).all()
    with pytest.raises(ValueError, match="unknown activation"):
        conv.lane_conv2d(*make(3, 5, (3, 3)), activation="gelu")


@pytest.mark.parametrize("kernel", [(3, 3), (2, 4)])
def test_padding_by_name(kernel):
    check(*make(3, 4, kernel), 1, "same")
    check(*make(3, 4, kernel), 1, "valid")


def test_an_expanded_input_is_read_in_place():
    x, weight, bias = make(3, 5, (3, 3))
    shared = x[0].detach().requires_grad_()
    y = conv.lane_conv2d(shared.expand(N, *shared.shape), weight, bias, 2, 1)
    want = reference(*(t.detach().double() for t in (shared.expand_as(x), weight, bias)), 2, 1)
    assert error(y, want) < TOLERANCE
    again = shared.detach().double().requires_grad_()
    want = reference(again.expand_as(x), weight.double(), bias.double(), 2, 1)
    dx, want_dx = torch.autograd.grad(y.sum(), shared)[0], torch.autograd.grad(want.sum(), again)[0]
    assert error(dx, want_dx) < TOLERANCE


def test_any_strides():
    x, weight, bias = make(4, 5, (3, 3))
    last = x.detach().flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (N, B))
    w_last = weight.detach().flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (N, 5))
    folded = x.detach().transpose(0, 1).contiguous().transpose(0, 1)
    for other in (last, folded):
        check(other.requires_grad_(), weight, bias, 1, 1)
    check(x, w_last.requires_grad_(), bias, 1, 1)


def test_a_weight_read_often_is_packed_first(monkeypatch):
    monkeypatch.setattr(conv_backward, "PACK_ROWS", 1)
    only(monkeypatch, flat=False)
    check(*make(16, 17, (3, 2), size=(4, 3)), 1, 1)


def test_the_weight_gradient_of_many_rows_is_summed_by_several_programs(monkeypatch):
    monkeypatch.setattr(conv_backward, "ROWS", 32)
    check(*make(3, 5, (3, 3)), 1, 1)
    torch.use_deterministic_algorithms(True)
    try:
        check(*make(3, 5, (3, 3)), 1, 1)
    finally:
        torch.use_deterministic_algorithms(False)


def test_half_precision():
    # The interpreter multiplies the bits of bfloat16 as if they were integers.
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float16
    check(*make(3, 5, (3, 3), dtype=dtype), 1, 1, tolerance=2e-2)


def test_the_next_layer_folds_the_output_without_a_copy():
    x, weight, bias = make(3, 5, (3, 3))
    y = conv.lane_conv2d(x, weight, bias, 1, 1)
    folded = y.transpose(0, 1).flatten(1, 2)
    assert folded.data_ptr() == y.data_ptr()
    assert folded.is_contiguous(memory_format=torch.channels_last)
    dx = conv_backward.lane_conv2d_dx(y.detach(), weight, x.shape[3:], [1, 1], [1, 1], [1, 1])
    assert dx.transpose(0, 1).flatten(1, 2).is_contiguous(memory_format=torch.channels_last)


def test_only_the_gradients_asked_for_are_computed(monkeypatch):
    x, weight, bias = make(3, 5, (3, 3))
    y = conv.lane_conv2d(x.detach(), weight, bias)
    monkeypatch.setattr(conv, "lane_conv2d_dx", lambda *_: pytest.fail("the input needs no gradient"))
    y.sum().backward()
    assert weight.grad is not None


def test_no_rows():
    _, weight, bias = make(3, 5, (3, 3))
    x = torch.empty(N, 0, 3, 6, 6, device=DEVICE, requires_grad=True)
    y = conv.lane_conv2d(x, weight, bias)
    y.sum().backward()
    assert y.shape == (N, 0, 5, 4, 4) and not weight.grad.any()


def test_fits():
    x, weight, _ = make(3, 5, (3, 3))
    assert conv.fits(x, weight)
    assert not conv.fits(x, weight, groups=2)
    assert not conv.fits(x, weight.double())
    assert not conv.fits(x[0], weight[0])
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert not conv.fits(x, weight)


@pytest.mark.parametrize("stride", [1, 2])
def test_opcheck(stride):
    x, weight, bias = make(3, 4, (3, 3), size=(4, 5))
    geometry = ([stride] * 2, [1, 1], [1, 1])
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(conv._lane_conv2d, (x, weight, bias, *geometry, "relu"), test_utils=tests)
    dy = conv.lane_conv2d(x, weight, bias, *geometry).detach()
    torch.library.opcheck(
        conv_backward.lane_conv2d_dx, (dy, weight.detach(), x.shape[3:], *geometry), test_utils=tests
    )
    torch.library.opcheck(conv_backward.lane_conv2d_dw, (dy, x.detach(), [3, 3], *geometry), test_utils=tests)


def test_compiles_with_gradients():
    """The backward is traced too; its strides are those the fakes promise."""
    x, weight, bias = make(3, 5, (3, 3))

    def loss(x, weight, bias):
        return (
            conv.lane_conv2d(x, weight, bias, 2, 1, activation="relu").transpose(0, 1).flatten(1) ** 2
        ).sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    want = torch.autograd.grad(loss(x, weight, bias), (x, weight, bias))
    for got, expected in zip(
        torch.autograd.grad(compiled(x, weight, bias), (x, weight, bias)), want, strict=True
    ):
        torch.testing.assert_close(got, expected)
