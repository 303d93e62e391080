"""Custom autograd functions for all lanes at once: their own forward and backward, equal to the loop."""

import pytest
import torch
from torch import nn

import wide_compiler
from life_oracle import FEATURES, live, looped


class Gelu(torch.autograd.Function):
    """As Bloom's: an approximation with a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x) * 3


class Scaled(torch.autograd.Function):
    """Attributes on ctx, several inputs and outputs, an argument that is a number."""

    @staticmethod
    def forward(ctx, x, scale, power):
        ctx.power, ctx.scale = power, scale
        ctx.save_for_backward(x, None)
        largest = x.abs().amax(-1)
        ctx.mark_non_differentiable(largest)
        return x.abs() ** power * scale, largest

    @staticmethod
    def backward(ctx, grad, _):
        x, _ = ctx.saved_tensors
        assert ctx.needs_input_grad[0]
        scale = (grad * x.abs()).sum(0) if ctx.needs_input_grad[1] else None
        return grad * ctx.scale * ctx.power, scale, None


class SetUp(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5 * ctx.saved_tensors[0].cos()


class AsksForValues(Gelu):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2 if x.sum() > 0 else x * 3


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def member(function):
    class Member(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.scale = nn.Linear(FEATURES, FEATURES), nn.Parameter(torch.rand(FEATURES))

        def forward(self, x):
            return function(self, self.lin(x), x)

    return Member


CASES = {
    "saved tensors": lambda m, h, x: Gelu.apply(h),
    "twice": lambda m, h, x: Gelu.apply(Gelu.apply(h) + x),
    "attributes and numbers": lambda m, h, x: (
        Scaled.apply(h, m.scale, 2)[0] + Scaled.apply(h, m.scale, 1)[1][:, None]
    ),
    "a separate set-up": lambda m, h, x: SetUp.apply(h),
}


def ways(function):
    models = [member(function)() for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, FEATURES))
    return {row.op: row.how for row in wide.explain(measure=False).rows}


@pytest.mark.parametrize("name", CASES)
def test_a_life(name):
    assert not looped(live(member(CASES[name])))
    assert "loop" not in ways(CASES[name]).values()


def test_an_input_that_lanes_share_gets_the_sum_of_their_gradients():
    models = [member(CASES["twice"])().double() for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, FEATURES).double())
    x = torch.randn(2, FEATURES, dtype=torch.float64, requires_grad=True)
    wide.shared(x).square().sum().backward()
    got, x.grad = x.grad, None
    sum(model(x).square().sum() for model in models).backward()
    torch.testing.assert_close(got, x.grad)


def test_a_function_of_the_input_alone_and_a_second_derivative():
    models = [member(lambda m, h, x: SetUp.apply(h) * h)().double() for _ in range(2)]
    wide = wide_compiler.compile(models, torch.randn(2, FEATURES).double())
    x = torch.randn(2, FEATURES, dtype=torch.float64, requires_grad=True)

    def second(outputs):
        (first,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(second(wide.shared(x)), second(torch.stack([m(x) for m in models])))


@pytest.mark.parametrize("function", [AsksForValues, Written])
def test_what_vmap_cannot_run_runs_lane_by_lane_and_is_right(function):
    name = function.__name__
    live(member(lambda m, h, x: function.apply(h * 1)))
    assert ways(lambda m, h, x: function.apply(h * 1)).get(name, "loop") == "loop"


def test_seeds_per_lane_and_torch_compile():
    models = [member(CASES["saved tensors"])() for _ in range(3)]
    x = torch.randn(2, FEATURES)
    wide = wide_compiler.compile(models, x)
    expected = wide.shared(x)
    torch.testing.assert_close(torch.compile(wide.shared, backend="aot_eager")(x), expected)
    wide.seed([1, 2, 3])
    torch.testing.assert_close(wide.shared(x), expected)
