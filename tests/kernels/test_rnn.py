"""The persistent LSTM and GRU against nn.LSTM and nn.GRU of every lane in float64."""

import pytest
import torch
from torch import nn

from kernels.device import DEVICE, TOLERANCE, needs_kernels
from wide_compiler.kernels import lane_rnn as rnn
from wide_compiler.kernels import rnn_backward, rnn_parts

pytestmark = needs_kernels
N, I = 2, 4
SIZES = {"odd": (5, 3, 20), "one step": (1, 1, 16), "two batch tiles": (2, 17, 5), "wider": (3, 2, 33)}
MEMBERS = {"lstm": (nn.LSTM, 4), "gru": (nn.GRU, 3)}


class Layer:
    """N members in float64, and what the kernels want of them in float32."""

    def __init__(self, kind, T, B, H, bias=True):
        torch.manual_seed(0)
        self.kind = kind
        member, _ = MEMBERS[kind]
        self.members = [member(I, H, bias=bias).double().to(DEVICE) for _ in range(N)]
        options = {"dtype": torch.float64, "device": DEVICE, "requires_grad": True}
        self.x = torch.randn(N, T, B, I, **options)
        self.state = [torch.randn(N, B, H, **options) for _ in range(2 if kind == "lstm" else 1)]
        self.names = list(self.members[0]._parameters)

    def reference(self):
        results = []
        for lane, member in enumerate(self.members):
            own = [s[lane].unsqueeze(0) for s in self.state]
            y, last = member(self.x[lane], tuple(own) if self.kind == "lstm" else own[0])
            results.append((y, last[1].squeeze(0)) if self.kind == "lstm" else (y,))
        outputs = [torch.stack(parts) for parts in zip(*results, strict=True)]
        parameters = [[getattr(m, name) for m in self.members] for name in self.names]
        return outputs, parameters

    def wide(self):
        """Outputs, and the leaves that gradients belong to: x, states, stacked parameters."""
        leaf = lambda t: t.detach().float().requires_grad_()  # noqa: E731
        x, state = leaf(self.x), [leaf(s) for s in self.state]
        stacked = [leaf(torch.stack([getattr(m, name) for m in self.members])) for name in self.names]
        w_ih, w_hh, *biases = stacked
        gates_x = torch.einsum("ntbi,ngi->ntbg", x, w_ih)
        for bias in biases[: 2 if self.kind == "lstm" else 1]:
            gates_x = gates_x + bias[:, None, None]
        if self.kind == "lstm":
            outputs = list(rnn.lane_lstm(gates_x, w_hh, *state))
        else:
            outputs = [rnn.lane_gru(gates_x, w_hh, biases[1] if biases else None, *state)]
        return outputs, [x, *state, *stacked]


def error(got, want):
    return ((got.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def check(layer, used=slice(None), tolerance=TOLERANCE):
    """`used` picks the outputs that have a gradient."""
    outputs, leaves = layer.wide()
    wanted, parameters = layer.reference()
    dy = [torch.randn_like(w) for w in wanted][used]
    grads = torch.autograd.grad(outputs[used], leaves, [d.float() for d in dy])
    flat = [layer.x, *layer.state, *(p for group in parameters for p in group)]
    whole = torch.autograd.grad(wanted[used], flat, dy)
    first = 1 + len(layer.state)
    stacked = [torch.stack(whole[i : i + N]) for i in range(first, len(flat), N)]
    pairs = zip([*outputs, *grads], [*wanted, *whole[:first], *stacked], strict=True)
    errors = [error(got, want) for got, want in pairs]
    assert max(errors) < tolerance, errors
    return max(errors)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("kind", MEMBERS)
def test_like_torch(kind, sizes):
    check(Layer(kind, *sizes))


@pytest.mark.parametrize("kind", MEMBERS)
def test_more_rows_in_one_program(kind, monkeypatch):
    monkeypatch.setattr(rnn_parts, "MULTIPROCESSORS", 1)
    assert rnn_parts.launch(20, 17, N, torch.device("cpu"))["BB"] == 16
    check(Layer(kind, 2, 17, 20))


@pytest.mark.parametrize("kind", MEMBERS)
def test_the_precision_is_that_of_matrix_products(kind):
    torch.set_float32_matmul_precision("high")
    assert check(Layer(kind, 3, 2, 20), tolerance=2e-3) > 1e-5  # the weight's lower bits are left out


def test_settings(monkeypatch):
    cpu = torch.device("cpu")
    few, many = rnn_parts.launch(128, 4, 32, cpu), rnn_backward.launch(100, 64, 32, cpu)
    assert (few["BB"], few["HP"], few["num_warps"], few["num_stages"]) == (8, 128, 8, 4)
    assert (many["BB"], many["HP"], many["H"], many["num_stages"]) == (16, 128, 100, 3)
    assert rnn_parts.launch(5, 1, 1000, cpu)["BB"] == 8
    monkeypatch.setattr(rnn_parts, "SHARED", 99 * 1024)  # a smaller GPU
    assert rnn_parts.launch(128, 4, 32, cpu)["num_stages"] == 2


@pytest.mark.parametrize("kind", MEMBERS)
def test_without_bias(kind):
    check(Layer(kind, 2, 3, 20, bias=False))


@pytest.mark.parametrize("used", [slice(0, 1), slice(1, 2)], ids=["y alone", "c alone"])
def test_an_output_without_a_gradient(used):
    check(Layer("lstm", 3, 2, 20), used)


def test_gates_laid_out_batch_first():
    T, B, H = 3, 2, 20
    gates = torch.randn(N, B, T, 4 * H, device=DEVICE)
    w_hh, h0, c0 = (torch.randn(s, device=DEVICE) for s in ((N, 4 * H, H), (N, B, H), (N, B, H)))
    got = rnn.lane_lstm(gates.transpose(1, 2), w_hh, h0, c0)
    want = rnn.lane_lstm(gates.transpose(1, 2).contiguous(), w_hh, h0, c0)
    torch.testing.assert_close(got, want)
    columns = gates.transpose(1, 2).contiguous().transpose(2, 3).contiguous().transpose(2, 3)
    torch.testing.assert_close(rnn.lane_lstm(columns, w_hh, h0, c0), want)


def test_nothing_is_saved_without_gradients():
    gates, w_hh = torch.randn(N, 2, 3, 60, device=DEVICE), torch.randn(N, 60, 20, device=DEVICE)
    h0 = torch.randn(N, 3, 20, device=DEVICE)
    assert rnn._save(gates.requires_grad_(), w_hh)
    with torch.no_grad():
        assert not rnn._save(gates, w_hh)
    y, slopes = rnn._lane_gru(gates.detach(), w_hh, None, h0, False)
    assert y.numel() and not slopes.numel()


def test_large_gates_saturate():
    gates = torch.full((1, 2, 1, 64), 200.0, device=DEVICE)
    gates[..., ::2] = -200.0
    w_hh, state = torch.zeros(1, 64, 16, device=DEVICE), torch.ones(1, 1, 16, device=DEVICE)
    y, c = rnn.lane_lstm(gates, w_hh, state, state)
    assert y.isfinite().all() and c.isfinite().all()


def test_fits():
    gates = torch.randn(N, 2, 3, 80, device=DEVICE)
    assert rnn.fits(gates, 20)
    assert not rnn.fits(gates, rnn.WIDEST + 1)
    assert not rnn.fits(gates.double(), 20)
    assert not rnn.fits(gates.bfloat16(), 20)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert not rnn.fits(gates, 20)


def test_opcheck():
    T, B, H = 2, 1, 5
    shapes = {"x4": (N, T, B, 4 * H), "x3": (N, T, B, 3 * H), "w4": (N, 4 * H, H), "w3": (N, 3 * H, H)}
    shapes |= {"b": (N, 3 * H), "h": (N, B, H), "c": (N, B, H), "y": (N, T, B, H)}
    shapes |= {"s6": (N, T, B, 6 * H), "s5": (N, T, B, 5 * H)}
    t = {name: torch.randn(shape, device=DEVICE) for name, shape in shapes.items()}
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    for save in (True, False):
        grad = [t[n].clone().requires_grad_(save) for n in ("x4", "w4", "h", "c")]
        torch.library.opcheck(rnn._lane_lstm, (*grad, save), test_utils=tests)
        grad = [t[n].clone().requires_grad_(save) for n in ("x3", "w3", "b", "h")]
        torch.library.opcheck(rnn._lane_gru, (*grad, save), test_utils=tests)
    torch.library.opcheck(
        rnn_backward.lane_lstm_backward, (t["y"], t["c"], t["w4"], t["s6"]), test_utils=tests
    )
    torch.library.opcheck(rnn_backward.lane_gru_backward, (t["y"], t["w3"], t["s5"]), test_utils=tests)


@pytest.mark.parametrize("kind", MEMBERS)
def test_compiles_with_gradients(kind):
    _, gates = MEMBERS[kind]
    T, B, H = 2, 2, 8
    shapes = [(N, T, B, gates * H), (N, gates * H, H), (N, B, H), (N, B, H)]
    given = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]

    def loss(x, w_hh, h0, c0):
        outputs = rnn.lane_lstm(x, w_hh, h0, c0) if kind == "lstm" else (rnn.lane_gru(x, w_hh, None, h0), c0)
        return sum(out.sin().sum() for out in outputs)

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    want = torch.autograd.grad(loss(*given), given)
    for got, expected in zip(torch.autograd.grad(compiled(*given), given), want, strict=True):
        torch.testing.assert_close(got, expected)
