"""A forward that asks how its inputs lie in memory: each layout has its own program, or the members run."""

import pytest
import torch
from torch import nn

import wide_compiler
from fn import Fn

N = 3


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def compiled(function, sample):
    models = [Fn(function, fc=nn.Linear(4, 4)).double() for _ in range(N)]
    return models, wide_compiler.compile(models, sample)


LAYOUTS = {
    "contiguous": lambda *shape: randn(*shape),
    "turned": lambda *shape: randn(*shape[:-2], shape[-1], shape[-2]).mT,
    "every other": lambda *shape: randn(*shape[:-1], 2 * shape[-1])[..., ::2],
    "repeated": lambda *shape: randn(*shape[:-2], 1, shape[-1]).expand(shape),
}

ASKS = {
    "is_contiguous": lambda self, x: self.fc(x) if x.is_contiguous() else -self.fc(x),
    "stride": lambda self, x: self.fc(x) * x.stride(-1) + x.stride()[0],
    "stride of torch": lambda self, x: self.fc(x) * torch.Tensor.stride(x, 0),
}


@pytest.mark.parametrize("sample", LAYOUTS)
@pytest.mark.parametrize("asks", ASKS)
def test_each_layout_is_answered(asks, sample):
    models, wide = compiled(ASKS[asks], LAYOUTS[sample](5, 4))
    for _ in range(2):
        for name, make in LAYOUTS.items():
            x, xs = make(5, 4), make(N, 5, 4)
            torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in models]), msg=name)
            expected = [m(x) for m, x in zip(models, xs, strict=True)]
            torch.testing.assert_close(wide.stacked(xs), torch.stack(expected), msg=name)
            torch.testing.assert_close(wide.each(list(xs)), expected, msg=name)
            if asks == "is_contiguous":  # a stride that depends on the batch is no part of a graph
                assert wide.explain(measure=False).coverage == 1.0


def test_lanes_that_lie_differently_run_one_by_one():
    models, wide = compiled(ASKS["is_contiguous"], randn(5, 4))
    xs = [randn(5, 4), randn(4, 5).T, randn(5, 4)]
    for _ in range(2):
        torch.testing.assert_close(wide.each(xs), [m(x) for m, x in zip(models, xs, strict=True)])
        assert "differ between lanes" in wide.explain(measure=False).why
        alike = [randn(5, 4) for _ in range(N)]
        torch.testing.assert_close(wide.each(alike), [m(x) for m, x in zip(models, alike, strict=True)])
        assert wide.explain(measure=False).coverage == 1.0


def test_channels_last():
    def forward(self, x):
        return self.conv(x) * (2.0 if x.is_contiguous(memory_format=torch.channels_last) else 1.0)

    models = [Fn(forward, conv=nn.Conv2d(3, 4, 3)).double() for _ in range(N)]
    x = randn(2, 3, 6, 6)
    wide = wide_compiler.compile(models, x)
    for y in (x, x.to(memory_format=torch.channels_last), x):
        torch.testing.assert_close(wide.shared(y), torch.stack([m(y) for m in models]))
        assert wide.explain(measure=False).coverage == 1.0


def test_what_was_packed_counts_as_contiguous():
    models, wide = compiled(ASKS["is_contiguous"], randn(5, 4))
    xs = [randn(5, 4) for _ in range(N)]
    expected = [m(x) for m, x in zip(models, xs, strict=True)]
    torch.testing.assert_close(wide_compiler.unpack(wide(wide_compiler.pack(xs)), N), expected)


INSIDE = {
    "a value it has computed": lambda self, x: self.fc(x) * (1.0 if x.mT.is_contiguous() else 2.0),
    "strides of a result": lambda self, x: (y := self.fc(x)) * y.t().stride(0),
    "an offset": lambda self, x: self.fc(x) + x.storage_offset(),
}


@pytest.mark.parametrize("asks", INSIDE)
def test_strides_of_values_inside_a_forward(asks):
    """Fused, but for an offset: that of a lane's slice is not what the member would see."""
    models, wide = compiled(INSIDE[asks], randn(5, 4))
    for make in (LAYOUTS["contiguous"], LAYOUTS["turned"]):
        x = make(5, 4)
        torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in models]))
        xs = [make(5, 4) for _ in range(N)]
        torch.testing.assert_close(wide.each(xs), [m(x) for m, x in zip(models, xs, strict=True)])
        explanation = wide.explain(measure=False)
        if asks == "an offset":
            assert "which differs for lanes" in explanation.why
        else:
            assert explanation.coverage == 1.0


def test_a_branch_on_values_that_asks_too():
    """The members run as Python for another reason: their inputs lie as they were given all the same."""
    models, wide = compiled(
        lambda self, x: self.fc(x) if x.sum() > 0 and x.is_contiguous() else -self.fc(x), randn(5, 4)
    )
    for make in LAYOUTS.values():
        xs = make(N, 5, 4).abs()
        torch.testing.assert_close(
            wide.stacked(xs), torch.stack([m(x) for m, x in zip(models, xs, strict=True)])
        )


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.stride() is not None
        return (x if x.is_contiguous() else x.contiguous()) * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


QUIET = {
    "contiguous()": lambda self, x: self.fc(x).mT.contiguous().view(-1),
    "a norm": lambda self, x: self.fc(x) + torch.nn.functional.layer_norm(x, (4,)),
    "an autograd function": lambda self, x: Scale.apply(self.fc(x)),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_not_asked_costs_nothing(name):
    models, wide = compiled(QUIET[name], randn(5, 4))
    x = randn(5, 4)
    torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in models]))
    assert not wide.explain(measure=False).why
    assert not wide.programs.layout_matters


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU])
def test_modules_of_torch_may_ask(make):
    models = [make(4, 4).double() for _ in range(N)]
    wide = wide_compiler.compile(models, randn(5, 2, 4))
    x = randn(5, 2, 4)
    torch.testing.assert_close(wide.shared(x)[0], torch.stack([m(x)[0] for m in models]))
    assert not wide.programs.layout_matters and wide.explain(measure=False).coverage == 1.0
