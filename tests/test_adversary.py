"""What an adversary found: every test here names one way in which the wide model was not the loop."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from wide_compiler import oracle

N = 3


class Fn(nn.Module):
    """A module that runs one function of itself and its input; whatever else is given becomes an attribute."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def members(make, n=N, train=False):
    return [make(lane).double().train(train) for lane in range(n)]


def linears(function, **attributes):
    """N members of `function` with a Linear(4, 4); an attribute that is a list of N differs by lane."""

    def make(lane):
        own = {
            k: v[lane] if isinstance(v, list) and len(v) == N else copy.deepcopy(v)
            for k, v in attributes.items()
        }
        return Fn(function, fc=nn.Linear(4, 4), **own)

    return members(make)


def assert_equal(models, wide, *args, rtol=1e-8, **kwargs):
    """Outputs, gradients, buffers and a step, on one input for all lanes and on one per lane."""
    own = [tuple(a + i if torch.is_tensor(a) and a.is_floating_point() else a for a in args) for i in range(len(models))]
    for inputs in ({"shared_input": (args, kwargs)}, {"inputs": [(a, kwargs) for a in own]}):
        oracle.compare(models, wide, **inputs, gradients=True, learning_rate=0.1).check(rtol=rtol)


def check(models, sample=None, x=None):
    sample = rand(2, 4) if sample is None else sample
    wide = wide_compiler.compile(models, sample)
    assert_equal(models, wide, rand(5, 4) if x is None else x)
    return wide


def check_calls(models, x, calls=3):
    """Several calls one after another, against copies of the models called likewise; one input per lane."""
    loop = copy.deepcopy(models)
    wide = wide_compiler.compile(models, x)
    for _ in range(calls):
        out = wide.stacked(torch.stack([x + i for i in range(len(models))]))
        for lane, model in enumerate(loop):
            torch.testing.assert_close(out[lane], model(x + lane))
    return wide


# Lanes whose Python differs.


@pytest.mark.parametrize("slopes", [[0.01, 0.5, 0.25], [0.5, 0.01, 0.25]])
def test_argument_left_out_because_one_lane_has_the_default(slopes):
    # 0.01 is leaky_relu's default, so lane 0's captured node has no such argument and the others' is lost.
    check(members(lambda i: nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(slopes[i]))))


def test_keyword_left_out_because_one_lane_has_the_default():
    check(linears(lambda m, x: torch.add(m.fc(x), x, alpha=m.alpha), alpha=[1, 2, 3]))


def test_attention_is_causal_in_some_lanes():
    def forward(m, x):
        h = m.fc(x)
        return F.scaled_dot_product_attention(h, h, h, is_causal=m.causal)

    check(linears(forward, causal=[False, True, True]), rand(2, 3, 4), rand(5, 3, 4))


@pytest.mark.parametrize("make", [nn.ELU, nn.Softplus, nn.CELU])
def test_activation_parameter_differs_by_lane(make):
    # SyntaxError: duplicate argument 'lane_scalar_0'
    check(members(lambda i: nn.Sequential(nn.Linear(4, 4), make([0.5, 2.0, 0.25][i]))))


def test_python_output_differs_by_lane():
    check(linears(lambda m, x: (m.fc(x), m.temperature), temperature=[0.5, 1.5, 2.5]))


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.factor * grad, None


def test_argument_of_an_autograd_function_differs_by_lane():
    check(linears(lambda m, x: Reverse.apply(m.fc(x), m.factor), factor=[1.0, 2.0, 3.0]))


def test_guard_of_another_lane():
    # Lane 0 branches at batch 10, lane 1 at batch 3; only lane 0's guards are kept.
    check(linears(lambda m, x: m.fc(x) if x.shape[0] > m.limit else m.fc(x) * 2, limit=[10, 3, 10]))


def test_plain_list_names_the_same_layers_in_another_order():
    def make(lane):
        a, b = nn.Linear(4, 4), nn.Linear(4, 4)
        order = [b, a] if lane == 1 else [a, b]
        return Fn(lambda m, x: m.order[1](m.order[0](x).tanh()), a=a, b=b, order=order)

    check(members(make))


@pytest.mark.parametrize("path", ["", "1"])
def test_train_flags_differ_by_lane(path):
    # Equal to the loop, or an error: not lane 0's flags for all.
    models = members(lambda i: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), train=True)
    models[1].get_submodule(path).eval()
    try:
        wide = wide_compiler.compile(models, rand(2, 4))
    except wide_compiler.AlignmentError:
        return
    assert_equal(models, wide, rand(5, 4))


def test_number_that_is_whole_in_the_first_lanes_only():
    models = members(lambda i: Fn(lambda m, x: (x * m.s).double() * m.w, w=nn.Parameter(rand(4)), s=[1, 1, 0.5][i]))
    check(models, torch.randint(0, 9, (2, 4)), torch.randint(0, 9, (5, 4)))


def test_number_beside_a_mask_keeps_its_precision():
    models = linears(lambda m, x: torch.where(x > 0, m.s, m.fc(x)), s=[0.1, 0.3, 0.7])
    x = rand(5, 4)
    out = wide_compiler.compile(models, rand(2, 4)).shared(x)
    for lane, model in enumerate(models):
        torch.testing.assert_close(out[lane], model(x), rtol=0, atol=1e-12)


def test_numpy_attribute():
    # ValueError: the truth value of an array is ambiguous
    scales = [np.arange(4.0) + lane for lane in range(N)]
    check(linears(lambda m, x: m.fc(x) * torch.from_numpy(m.scale), scale=scales))


# Arguments that are not tensors.


def check_arguments(function, first, second):
    models = linears(function)
    wide = wide_compiler.compile(models, (rand(2, 4), first))
    x = rand(5, 4)
    for argument in (first, second):
        oracle.compare(models, wide, shared_input=((x, argument), {})).check(rtol=1e-8)


def test_long_numpy_argument_changes():
    # The cache key is its repr, which leaves out the middle.
    first = np.zeros(5000)
    second = first.copy()
    second[2500] = 3.0
    check_arguments(lambda m, x, a: m.fc(x) * (1.0 + float(a.sum())), first, second)


def test_numpy_argument_changes_in_a_late_digit():
    check_arguments(lambda m, x, a: m.fc(x) + float(a[0]) * 1e9, np.array([0.1]), np.array([0.1 + 1e-12]))


def test_minus_zero_argument():
    check_arguments(lambda m, x, s: torch.copysign(m.fc(x), s), 0.0, -0.0)


def test_object_argument_changes_in_place():
    class Options:
        scale = 1.0

    options = Options()
    models = linears(lambda m, x, o: m.fc(x) * o.scale)
    wide = wide_compiler.compile(models, (rand(2, 4), options))
    x = rand(5, 4)
    for options.scale in (1.0, 2.0):
        oracle.compare(models, wide, shared_input=((x, options), {})).check(rtol=1e-8)


def test_size_as_output():
    check(linears(lambda m, x: (m.fc(x), x.shape[0])))


# State that a forward moves.


class Averaging(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return self.fc(x) + self.mean


def test_buffer_assigned_anew():
    check(members(lambda i: Averaging()))


def test_buffer_assigned_anew_over_calls():
    check_calls(members(lambda i: Averaging()), rand(2, 4))


def plain_tensor(m, x):
    m.h = (m.fc(x) + m.h).detach()
    return m.fc(x) + m.h


def from_none(m, x):
    h = m.fc(x) if m.h is None else m.fc(x) + m.h
    m.h = h.detach()
    return h


def in_dict(m, x):
    m.state["step"] += 1
    return m.fc(x) * m.state["step"]


def in_list(m, x):
    m.state[0] += 1
    return m.fc(x) * m.state[0]


def in_object(m, x):
    m.state.step += 1
    return m.fc(x) * m.state.step


def tensor_in_list_written(m, x):
    m.state[0].add_(x.mean(0))
    return m.fc(x) * m.state[0]


def tensor_in_list_assigned(m, x):
    m.state[0] = m.state[0] + x.mean(0)
    return m.fc(x) * m.state[0]


class Steps:
    def __init__(self):
        self.step = 0


@pytest.mark.parametrize(
    "forward, attributes",
    [
        (plain_tensor, {"h": torch.zeros(2, 4, dtype=torch.float64)}),
        (from_none, {"h": None}),
        (in_dict, {"state": {"step": 0}}),
        (in_list, {"state": [0]}),
        (in_object, {"state": Steps()}),
        (tensor_in_list_written, {"state": [torch.zeros(4, dtype=torch.float64)]}),
        (tensor_in_list_assigned, {"state": [torch.zeros(4, dtype=torch.float64)]}),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_python_state_that_a_forward_changes(forward, attributes):
    check_calls(linears(forward, **attributes), rand(2, 4))


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["random", "numpy"])
def test_draws_from_pythons_own_generators_are_not_frozen(draw):
    wide = wide_compiler.compile(linears(lambda m, x: m.fc(x) * float(draw())), rand(2, 4))
    x = rand(2, 4)
    assert not torch.equal(wide.shared(x), wide.shared(x))


def test_constant_made_and_written_in_forward():
    def forward(m, x):
        c = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
        c += m.fc(x).sum(0)
        return c * x

    check(linears(forward))


def test_forward_reads_the_gradient_mode():
    models = linears(lambda m, x: m.fc(x) if torch.is_grad_enabled() else m.fc(x) * 2)
    x = rand(2, 4)
    wide = wide_compiler.compile(models, x)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            out = wide.shared(x)
            for lane, model in enumerate(models):
                torch.testing.assert_close(out[lane], model(x))


def test_forward_reads_requires_grad_of_its_input():
    models = linears(lambda m, x: m.fc(x) if x.requires_grad else m.fc(x) * 2)
    x = rand(2, 4)
    wide = wide_compiler.compile(models, x)
    x.requires_grad_()
    for lane, out in enumerate(wide.shared(x)):
        torch.testing.assert_close(out, models[lane](x))


# What cannot be captured and runs per lane.


class Uncapturable(nn.Module):
    """Branches on a value; has a norm and a counter that is equal in all lanes."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        with torch.no_grad():
            self.count += 1
        h = self.norm(self.fc(x))
        return h * 2 if h.sum() > 1e9 else h + self.count.item()


INSIDE = pytest.mark.parametrize(
    "make", [lambda i: Uncapturable(), lambda i: nn.Sequential(nn.Linear(4, 4), Uncapturable())], ids=["whole", "inside"]
)


@INSIDE
def test_train_flags_of_what_runs_per_lane_follow_back_and_forth(make):
    models = members(make, train=True)
    x = rand(5, 4)
    wide = wide_compiler.compile(models, x)
    for mode in (True, False, True):
        wide.train(mode)
        out = wide.shared(x)
        for lane, model in enumerate(models):
            torch.testing.assert_close(out[lane], model.train(mode)(x), msg=f"train={mode}")


@INSIDE
def test_equal_buffers_written_by_what_runs_per_lane(make):
    check(members(make, train=True))


def test_python_number_out_of_a_module_kept_whole():
    class Largest(nn.Module):
        def forward(self, x):
            largest = x.abs().max().item()
            return largest if largest > 0 else 1.0

    models = members(lambda i: Fn(lambda m, x: m.fc(x) / m.largest(x), fc=nn.Linear(4, 4), largest=Largest()))
    check(models, rand(2, 4), rand(2, 4) * 7)
