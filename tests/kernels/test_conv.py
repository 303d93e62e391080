"""The implicit-GEMM convolution against F.conv2d of every lane in float64."""

import pytest
import torch
import torch.nn.functional as F

from kernels.device import DEVICE, TOLERANCE, needs_kernels, triton
from wide_compiler.kernels import _triton, conv_backward, conv_dw, conv_dx, conv_forward, operands
from wide_compiler.kernels import lane_conv as conv

pytestmark = needs_kernels
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
    for kernel in (conv_forward.conv_kernel, conv_dx._dx_kernel, conv_dw._dw_kernel):
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


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_the_librarys_backward(activation):
    x, weight, bias = make(3, 4, (3, 2))
    options = ((2, 1), (1, 0), (1, 2))
    own = conv.lane_conv2d(x, weight, bias, *options, activation, backward="library")
    exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    want = reference(*exact, *options, activation=activation)
    dy = torch.randn_like(want)
    grads = torch.autograd.grad(own, (x, weight, bias), dy.float())
    for got, expected in zip(grads, torch.autograd.grad(want, exact, dy), strict=True):
        assert got.shape == expected.shape and error(got, expected) < TOLERANCE
    with pytest.raises(ValueError, match="unknown backward"):
        conv.lane_conv2d(x, weight, bias, backward="none")


def test_the_librarys_backward_of_some():
    x, weight, _ = make(3, 4, (3, 3))
    y = conv.lane_conv2d(x.detach(), weight, None, backward="library")
    y.sum().backward()
    want = reference(x.detach().double(), weight.detach().double().requires_grad_(), None)
    assert x.grad is None and weight.grad.shape == weight.shape and y.shape == want.shape
    shared = x[0].detach().requires_grad_()
    conv.lane_conv2d(shared.expand_as(x), weight.detach(), None, backward="library").sum().backward()
    again = shared.detach().double().requires_grad_()
    reference(again.expand_as(x), weight.detach().double(), None).sum().backward()
    assert error(shared.grad, again.grad) < TOLERANCE


def test_the_library_gets_views():
    x, weight, bias = make(3, 4, (3, 3))
    y = conv.lane_conv2d(x, weight, bias).detach()
    folded = conv_backward._folded(y)
    assert folded.data_ptr() == y.data_ptr() and folded.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("given", ["scale", "shift", "residual", "scale shift", "scale shift residual"])
def test_epilogue(given):
    x, weight, bias = (t.detach() for t in make(3, 5, (3, 3)))
    y = reference(x.double(), weight.double(), bias.double(), 1, 1)
    torch.manual_seed(1)
    extra = {
        "scale": torch.randn(5, N, device=DEVICE).T,
        "shift": torch.randn(N, 5, device=DEVICE),
        "residual": torch.randn(B, 5, 7, 5, N, device=DEVICE).movedim(-1, 0),
    }
    extra = {name: extra[name] for name in given.split()}
    want = y * extra["scale"][:, None, :, None, None] if "scale" in extra else y
    want = want + extra["shift"][:, None, :, None, None] if "shift" in extra else want
    want = want + extra["residual"] if "residual" in extra else want
    for activation in ("relu", "none"):
        got = conv.lane_conv2d(x, weight, bias, 1, 1, activation=activation, **extra)
        assert error(got, want.relu() if activation == "relu" else want) < TOLERANCE
    # In memory like any other output, so that the next layer folds it for free.
    assert got.transpose(0, 1).flatten(1, 2).data_ptr() == got.data_ptr()


def test_the_epilogue_has_no_gradient():
    x, weight, bias = make(3, 5, (3, 3))
    with pytest.raises(ValueError, match="inference"):
        conv.lane_conv2d(x, weight, bias, shift=bias)
    with torch.no_grad():
        conv.lane_conv2d(x, weight, bias, shift=bias)


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


@pytest.mark.parametrize(("C", "flat"), [(3, True), (4, True), (3, False)])
def test_any_strides(C, flat, monkeypatch):
    only(monkeypatch, flat)
    x, weight, bias = make(C, 5, (3, 2))
    last = x.detach().flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (N, B))
    w_last = weight.detach().flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, (N, 5))
    folded = x.detach().transpose(0, 1).contiguous().transpose(0, 1)
    check(folded.requires_grad_(), weight, bias, 1, 1)
    check(last.requires_grad_(), w_last.requires_grad_(), bias, (2, 1), 1)
    check(last, weight, bias, 1, 1)


def test_offsets_beyond_32_bits(monkeypatch):
    for module in (conv, conv_dx, conv_dw):
        monkeypatch.setattr(module, "span", lambda t: 2**31)
    check(*make(3, 5, (3, 3)), 2, 1)


def test_span():
    assert _triton.span(torch.empty(3, 4)) == 12
    assert _triton.span(torch.empty(4).expand(3, 4)) == 4


def test_a_weight_read_often_is_packed_first(monkeypatch):
    monkeypatch.setattr(operands, "PACK_ROWS", 1)
    only(monkeypatch, flat=False)
    check(*make(16, 17, (3, 2), size=(4, 3)), 1, 1)


@pytest.mark.parametrize("rows", [1, 2**20], ids=["packed", "not packed"])
def test_tf32_is_rounded_and_not_cut_off(rows, monkeypatch):
    monkeypatch.setattr(operands, "PACK_ROWS", rows)
    torch.backends.cudnn.allow_tf32 = True
    x, weight, _ = tensors = make(32, 64, (3, 3), (4, 4), bias=False)
    with torch.no_grad():
        x.relu_()
        weight.add_(0.5)  # products that do not cancel: an error towards zero adds up

    def results(given, call):
        leaves = [t.detach().to(given).requires_grad_() for t in tensors[:2]]
        y = call(*leaves)
        return [y, *torch.autograd.grad(y, leaves, (y.detach() + 1) / 100)]

    want = results(torch.float64, lambda x, w: reference(x, w, None, 1, 1))
    own = results(torch.float32, lambda x, w: conv.lane_conv2d(x, w, None, 1, 1))
    for ours, exactly in zip(own, want, strict=True):
        assert error(ours, exactly) < 2.0**-12  # half of what one rounded number may be off
        shrunk = (ours.double() * exactly).sum() / exactly.square().sum() - 1
        assert abs(shrunk) < 5e-5  # cutting bits off makes it 7e-4


def test_the_weight_gradient_of_many_rows_is_summed_by_several_programs(monkeypatch):
    monkeypatch.setattr(conv_dw, "ROWS", 32)
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
    dx = conv_dx.lane_conv2d_dx(y.detach(), weight, x.shape[3:], [1, 1], [1, 1], [1, 1])
    assert dx.transpose(0, 1).flatten(1, 2).is_contiguous(memory_format=torch.channels_last)


def test_only_the_gradients_asked_for_are_computed(monkeypatch):
    x, weight, bias = make(3, 5, (3, 3))
    y = conv.lane_conv2d(x.detach(), weight, bias)
    monkeypatch.setattr(
        conv_backward, "lane_conv2d_dx", lambda *_: pytest.fail("the input needs no gradient")
    )
    y.sum().backward()
    assert weight.grad is not None


def test_no_rows():
    _, weight, bias = make(3, 5, (3, 3))
    x = torch.empty(N, 0, 3, 6, 6, device=DEVICE, requires_grad=True)
    y = conv.lane_conv2d(x, weight, bias)
    y.sum().backward()
    assert y.shape == (N, 0, 5, 4, 4) and not weight.grad.any()


@pytest.mark.parametrize("stride", [1, 2])
def test_opcheck(stride):
    x, weight, bias = make(3, 4, (3, 3), size=(4, 5))
    geometry = ([stride] * 2, [1, 1], [1, 1])
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    for backward in ("own", "library"):
        given = (x, weight, bias, *geometry, "relu", backward)
        torch.library.opcheck(conv._lane_conv2d, given, test_utils=tests)
    plain = [t.detach() for t in (x, weight, bias)]
    given = (*plain, *geometry, "relu", "own", plain[2], None, None)
    torch.library.opcheck(conv._lane_conv2d, given, test_utils=tests)
    dy = conv.lane_conv2d(x, weight, bias, *geometry).detach()
    torch.library.opcheck(
        conv_dx.lane_conv2d_dx, (dy, weight.detach(), x.shape[3:], *geometry), test_utils=tests
    )
    torch.library.opcheck(conv_dw.lane_conv2d_dw, (dy, x.detach(), [3, 3], *geometry), test_utils=tests)


@pytest.mark.parametrize("backward", conv.BACKWARDS)
def test_compiles_with_gradients(backward):
    """The backward is traced too; its strides are those the fakes promise."""
    x, weight, bias = make(3, 5, (3, 3))

    def loss(x, weight, bias):
        y = conv.lane_conv2d(x, weight, bias, 2, 1, activation="relu", backward=backward)
        return (y.transpose(0, 1).flatten(1) ** 2).sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    want = torch.autograd.grad(loss(x, weight, bias), (x, weight, bias))
    for got, expected in zip(
        torch.autograd.grad(compiled(x, weight, bias), (x, weight, bias)), want, strict=True
    ):
        torch.testing.assert_close(got, expected)


def test_blocks_are_chosen_by_shape():
    """What the autotuner would time on a GPU, for shapes too large for the interpreter."""
    wide = {"KH": 3, "KW": 3, "C": 64, "O": 64}

    def kept(prune, blocks, named, **meta):
        configs = [
            triton.Config(
                dict(zip(("BM", "BN", "BK", "FLAT"), b, strict=False)), num_warps=b[4], num_stages=b[5]
            )
            for b in blocks
        ]
        return [(c.kwargs["BM"], c.kwargs["FLAT"], c.num_stages) for c in prune(configs, named, **meta)]

    forward = kept(conv_forward._prune, conv_forward.BLOCKS, {"M_KEY": 2048, "N": 64, "x_c": 1}, **wide)
    assert (128, False, 1) in forward and not any(flat for _, flat, _ in forward)
    few = kept(
        conv_forward._prune, conv_forward.BLOCKS, {"M_KEY": 2048, "N": 64, "x_c": 1}, **{**wide, "C": 3}
    )
    assert few and all(flat for _, flat, _ in few)
    small = kept(conv_forward._prune, conv_forward.BLOCKS, {"M_KEY": 32, "N": 10, "x_c": 1}, **wide)
    assert {bm for bm, _, _ in small} == {32}
