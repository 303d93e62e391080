"""Convolutions lane by lane on CUDA streams, against torch's own; on a CPU one after another."""

import pytest
import torch
import torch.nn.functional as F

from wide_compiler.kernels import streams

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B = 2
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

# rank, C, O, kernel, stride, padding, dilation, groups
CASES = {
    "1-D": (1, 3, 4, 3, 2, 1, 1, 1),
    "2-D": (2, 3, 5, (5, 3), 1, (2, 1), 1, 1),
    "2-D, stride 2, dilation 2": (2, 3, 5, 3, 2, 2, 2, 1),
    "2-D, two groups": (2, 4, 6, 3, (1,), [1], 1, 2),
    "depthwise": (2, 4, 4, 3, 1, "same", 1, 4),
    "same, an even kernel": (2, 3, 4, (2, 3), 1, "same", 1, 1),
    "valid": (2, 3, 4, 3, 1, "valid", 1, 1),
    "3-D": (3, 2, 3, 2, 1, 0, 1, 1),
}


def make(n, rank, C, O, kernel, groups, bias=True):
    torch.manual_seed(0)
    kernel = [kernel] * rank if isinstance(kernel, int) else kernel
    shapes = [(n, B, C, *range(7, 7 - rank, -1)), (n, O, C // groups, *kernel)] + [(n, O)] * bias
    options = {"dtype": torch.float64, "device": DEVICE, "requires_grad": True}
    tensors = [torch.randn(shape, **options) for shape in shapes]
    return tensors if bias else [*tensors, None]


def reference(x, weight, bias, *options):
    conv = CONV[weight.dim() - 3]
    biases = [None] * len(x) if bias is None else bias
    return torch.stack([conv(x_, w_, b_, *options) for x_, w_, b_ in zip(x, weight, biases, strict=True)])


def check(x, weight, bias, *options):
    y, want = streams.streamed_conv(x, weight, bias, *options), reference(x, weight, bias, *options)
    torch.testing.assert_close(y, want)
    assert y.is_contiguous()
    given = [t for t in (x, weight, bias) if t is not None]
    dy = torch.randn_like(want)
    for got, expected in zip(
        torch.autograd.grad(y, given, dy), torch.autograd.grad(want, given, dy), strict=True
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_like_torch(case, bias):
    rank, C, O, kernel, *options, groups = case
    check(*make(3, rank, C, O, kernel, groups, bias), *options, groups)


def test_more_lanes_than_streams():
    check(*make(streams.STREAMS + 3, 2, 3, 4, 3, 1))


def test_an_expanded_input():
    x, weight, bias = make(3, 2, 3, 4, 3, 1)
    shared = x[0].detach().requires_grad_()
    y = streams.streamed_conv(shared.expand_as(x), weight, bias)
    want = reference(shared.expand_as(x), weight, bias)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(*(torch.autograd.grad(out.sin().sum(), shared)[0] for out in (y, want)))


def test_only_the_gradients_asked_for():
    x, weight, bias = make(3, 2, 3, 4, 3, 1)
    streams.streamed_conv(x.detach(), weight, bias.detach()).sum().backward()
    assert weight.grad is not None and x.grad is None and bias.grad is None


def test_autocast_leaves_the_dtype_alone():
    x, weight, bias = (t.detach().float() for t in make(2, 2, 3, 4, 3, 1))
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert streams.streamed_conv(x, weight, bias).dtype == torch.float32


def test_opcheck():
    x, weight, bias = make(2, 2, 4, 6, 3, 2)
    geometry = ([2, 2], [1, 1], [1, 1], 2)
    torch.library.opcheck(streams._streamed_conv, (x, weight, bias, *geometry))
    dy = streams.streamed_conv(x, weight, bias, *geometry).detach()
    for needed in ([True, True, True], [False, True, False]):
        torch.library.opcheck(
            streams._streamed_conv_backward, (dy, x.detach(), weight.detach(), *geometry, needed)
        )


def test_compiles_with_gradients():
    x, weight, bias = make(2, 2, 3, 4, 3, 1)

    def loss(x, weight, bias):
        return streams.streamed_conv(x, weight, bias, 1, 1).sin().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    given = (x, weight, bias)
    want = torch.autograd.grad(loss(*given), given)
    for got, expected in zip(torch.autograd.grad(compiled(*given), given), want, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device")
def test_in_a_cuda_graph():
    x, weight, bias = (t.detach().float() for t in make(20, 2, 3, 4, 3, 1))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        streams.streamed_conv(x, weight, bias)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = streams.streamed_conv(x, weight, bias)
    x.copy_(torch.randn_like(x))
    for _ in range(3):
        graph.replay()
    torch.testing.assert_close(y, reference(x, weight, bias), rtol=1e-2, atol=1e-2)
