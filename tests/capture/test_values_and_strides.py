"""Numbers that a forward returns, and questions about strides that a graph can follow."""

import pytest
import torch
from torch import nn

import wide_compiler


class Lined(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.line, self.then = nn.Linear(4, 4), then

    def forward(self, x):
        return self.then(self.line(x))


def compared(then, x=None):
    """The explanation of a call whose results are those of the members."""
    models = [Lined(then).double() for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 4, dtype=torch.float64))
    for batch in (2, 5):
        inputs = [torch.randn(batch, 4, dtype=torch.float64) if x is None else x(batch) for _ in models]
        for got, model, one in zip(wide.each(inputs), models, inputs, strict=True):
            torch.testing.assert_close(got, model(one))
    return wide.explain(measure=False)


NUMBERS = {
    "item": lambda y: (y, y.sum().item()),
    "whole number": lambda y: (y, y.argmax().item()),
    "truth": lambda y: (y, (y > 0).all().item()),
    "equal": lambda y: (y, torch.equal(y, y.abs())),
    "allclose": lambda y: (y, torch.allclose(y, y + 1e-14)),
    "nothing else": lambda y: y.sum().item(),
    "combinations": lambda y: torch.combinations(y[0]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_returned(name):
    explanation = compared(NUMBERS[name])
    assert explanation.coverage == 1.0 and not explanation.why


def test_a_number_that_decides_is_left_to_the_members():
    def then(y):
        number = y.sum().item()
        return y * 2 if number > 0 else y

    assert compared(then).why


STRIDES = {
    "windows": lambda y: y.as_strided((len(y), 3, 2), (*y.stride()[:1], 1, 1)).sum(-1),
    "offset": lambda y: y.as_strided((2, 2), (2, 1), 1),
    "asked inside": lambda y: y.t().reshape(-1) if y.t().is_contiguous() else y * 2,
    "in place": lambda y: y.clone().as_strided_((2, 3), (1, 1)),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides(name):
    explanation = compared(STRIDES[name])
    assert explanation.coverage == 1.0 and not explanation.why


def test_strides_of_inputs_decide_those_inside():
    def then(y):
        return y

    class Asks(Lined):
        def forward(self, x):
            y = x * 1
            return y + 1 if y.is_contiguous() else y + 2

    models = [Asks(then).double() for _ in range(2)]
    wide = wide_compiler.compile(models, torch.randn(4, 4, dtype=torch.float64))
    for x in (torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64).t()):
        for got, model in zip(wide.each([x, x]), models, strict=True):
            torch.testing.assert_close(got, model(x))


def test_a_view_by_strides_that_is_written_is_left_to_the_members():
    def then(y):
        y = y.clone()
        y.as_strided((2,), (1,), 0).zero_()
        return y

    assert compared(then).why
