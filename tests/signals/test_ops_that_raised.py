"""Ops that once raised or hung with tensors on workers, each beside one process."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler.signals as gt
from signals.placed import signal

pytestmark = pytest.mark.usefixtures("workers")

x = torch.randn(7, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
m = x[:, :, 0]
image = torch.randn(7, 2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

OPS = {
    "group norm": lambda t: F.group_norm(t(x), 2, t(torch.ones(4).double()), t(torch.zeros(4).double())),
    "instance norm": lambda t: F.instance_norm(t(x)),
    "layer norm": lambda t: F.layer_norm(t(x), (4, 6)),
    "reflect": lambda t: F.pad(t(x), (2, 1), mode="reflect"),
    "reflect 2d": lambda t: F.pad(t(image), (2, 1, 1, 2), mode="reflect"),
    "replicate": lambda t: F.pad(t(x), (2, 1), mode="replicate"),
    "circular": lambda t: F.pad(t(x), (2, 1), mode="circular"),
    "unfold": lambda t: F.unfold(t(image), 2),
    "fold": lambda t: F.fold(F.unfold(t(image), 2), (5, 6), 2),
    "Tensor.unfold": lambda t: t(x).unfold(0, 3, 2),
    "stft": lambda t: torch.stft(t(m), 4, window=t(torch.ones(4).double()), return_complex=True),
    "block_diag": lambda t: torch.block_diag(t(m), t(m.t())),
    "lstsq": lambda t: torch.linalg.lstsq(t(m), t(m[:, :2])).solution,
    "tensor_split": lambda t: torch.tensor_split(t(x), t(torch.tensor([1, 4])))[1],
    "hfft": lambda t: torch.fft.hfft(t(x), dim=2),
    "conj": lambda t: torch.view_as_real(torch.view_as_complex(t(x[...,
    :2].contiguous())).conj().resolve_conj()),
    "bilinear": lambda t: F.interpolate(t(image), scale_factor=2, mode="bilinear"),
    "grid": lambda t: F.grid_sample(t(image), F.affine_grid(t(torch.eye(2, 3).double().repeat(7, 1, 1)),
    (7, 2, 4, 4))),
    "embedding cut by rows": lambda t: F.embedding(t(torch.arange(9) % 7), t(m)).squeeze(),
    "gather": lambda t: t(m).gather(1, t(torch.arange(7).unsqueeze(1) % 4)).squeeze(1),
    "out of a view": lambda t: _out_of_a_view(t),
    "floor_divide_": lambda t: t(m).detach().clone().floor_divide_(t(m.abs() + 1).detach()),
    "pow_": lambda t: t(m.abs()).clone().pow_(t(m)),
    "no rows": lambda t: t(x)[t(torch.zeros(7, dtype=torch.bool))].flatten(),
    "no rows, reshaped": lambda t: torch.arange(0).reshape(1, 0, 3),
    "no rows, reduced": lambda t: t(x)[:0].sum(0),
    "no rows, joined": lambda t: torch.cat([t(m)[:0], t(m)]),
    "no columns": lambda t: t(m)[:, :0] @ t(m.t())[:0],
    "complex32": lambda t: t(m).to(torch.complex32).real.float(),
    "hash": lambda t: torch.hash_tensor(t(m)).to(torch.int64),
}  # fmt: skip


def _out_of_a_view(t):
    whole = torch.zeros(9, 4, dtype=torch.float64)
    torch.mm(t(m).detach(), t(torch.eye(4).double()).detach(), out=whole.narrow(0, 1, 7))
    return whole


@pytest.mark.parametrize(("workers", "axis"), [(2, 0), (3, 0), (2, 1), (2, 9)])
@pytest.mark.parametrize("name", OPS)
def test_the_values_and_gradients_of_one_process(name, workers, axis):
    signal("some", range(workers), axis=axis)
    results = []
    for place in (False, True):
        leaves = []

        def t(value, place=place, leaves=leaves):
            made = gt.tensor(value) if place else value.clone()
            if value.is_floating_point():
                leaves.append(made.requires_grad_())
            return made

        if place:
            with gt.signal.context("some"):
                out = OPS[name](t)
        else:
            out = OPS[name](t)
        if out.requires_grad:
            weights = torch.linspace(1, 2, out.numel(), dtype=torch.float64).reshape(out.shape)
            (out * weights).sum().abs().backward()
        results.append([out.detach().cpu()] + [leaf.grad.cpu() for leaf in leaves if leaf.grad is not None])
    for got, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


DTYPES = ["int16", "uint16", "uint32", "uint64", "complex32", "float8_e4m3fn", "bool", "half"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_to_other_layouts_and_workers(dtype):
    plain = torch.arange(14).reshape(7, 2).to(getattr(torch, dtype))
    x = gt.signal.tensor(plain, signal("three", [0, 1, 2]))
    for name, workers, axis in (
        ("across", [0, 1], 1),
        ("two", [1, 3], 0),
        ("one", [2], 0),
        ("all", [0, 1, 2, 3], 0),
    ):
        x = gt.signal.tensor(x, signal(name, workers, axis))
        assert gt.debug.placement(x)[0] == tuple(workers)
        assert torch.equal(x.cpu().view(torch.uint8), plain.view(torch.uint8))


@pytest.mark.parametrize("dtype", ["int16", "uint8", "int8", "half", "bfloat16", "bool"])
def test_sums_over_workers_of_every_dtype(dtype):
    plain = (torch.arange(14).reshape(7, 2) % 2).to(getattr(torch, dtype))
    x = gt.signal.tensor(plain, signal("three", [0, 1, 2]))
    for function in (
        lambda t: t.sum(0),
        lambda t: t.sum(0, dtype=t.dtype),
        lambda t: t.amax(0),
        lambda t: t.cumsum(0),
    ):
        assert torch.equal(function(x).cpu(), function(plain))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_fetched_and_viewed(dtype):
    plain = torch.arange(14).reshape(7, 2).to(getattr(torch, dtype))
    with gt.signal.context(signal("three", [0, 1, 2])):
        cut = gt.tensor(plain)
    for got in (cut, cut[2:5]):
        back = got.cpu()
        assert back.dtype == plain.dtype
        assert torch.equal(
            back.view(torch.uint8), (plain[2:5] if got.shape[0] == 3 else plain).view(torch.uint8)
        )


def test_dropout_in_attention_that_is_cut():
    q = torch.randn(4, 2, 5, 8)
    with gt.signal.context(signal("dp", [0, 1])):
        torch.manual_seed(0)
        out = F.scaled_dot_product_attention(gt.tensor(q), gt.tensor(q), gt.tensor(q), dropout_p=0.5)
        attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        y, _ = attention(q[:, 0], q[:, 0], q[:, 0])
    assert out.cpu().isfinite().all() and y.detach().cpu().isfinite().all()


@torch.library.custom_op("signals_test::twice", mutates_args=())
def twice(a: torch.Tensor) -> torch.Tensor:
    return a * 2


def test_an_op_written_in_python_runs_on_the_workers():
    with gt.signal.context(signal("dp", [0, 1])):
        out = twice(gt.tensor(m))
    assert torch.equal(out.cpu(), m * 2) and gt.debug.placement(out)[1] == "S(0)"


def test_what_is_refused_says_what_to_do():
    handle = gt.tensor(m)
    with pytest.raises(NotImplementedError, match=r"x\.cpu\(\)"):
        handle.to_sparse()
    with pytest.raises(NotImplementedError, match="returns a new tensor"):
        handle.resize_(2)
