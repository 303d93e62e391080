"""Inputs that share memory, and a forward that writes: the result is that of the members, run one by one."""

import pytest
import torch
from torch import nn

import wide_compiler
from fn import Fn
from wide_compiler import InputError
from wide_compiler.capture.strides import strided_copy
from wide_compiler.model.memory_overlap import overlap

N = 3


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def writes(self, x, y):
    x.add_(1.0)
    return self.fc(x) + y * 2


def reads(self, x, y):
    return self.fc(x + 1.0) + y * 2


def compiled(function, **more):
    models = [
        Fn(function, fc=nn.Linear(4, 4), **{k: v() for k, v in more.items()}).double() for _ in range(N)
    ]
    return models, wide_compiler.compile(models, (randn(4, 4), randn(4, 4)))


def loop(models, lanes):
    """Each member on its own copies, as a user would run it; a tensor given twice is copied once."""
    return [model(*arguments) for model, arguments in zip(models, lanes, strict=True)]


DOORS = ["stacked", "shared", "each", "packed"]


def called(wide, door, xs, view):
    """The wide result by lane, for the inputs (x, view(x))."""
    if door == "each":
        return wide.each(xs, [view(x) for x in xs])
    if door == "shared":
        return list(wide.shared(xs[0], view(xs[0])))
    if door == "stacked":
        x = torch.stack(xs)
        return list(wide.stacked(x, torch.vmap(view)(x) if view is not same else x))
    packed = wide_compiler.pack(xs)
    return wide_compiler.unpack(wide(packed, packed), N)


def same(x):
    return x


VIEWS = {"the same": same, "turned": lambda x: x.mT, "flat": lambda x: x.view(4, 4), "part": lambda x: x[:1]}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("door", DOORS)
def test_a_written_input_that_is_another_input_too(door, view, gradients):
    if door == "packed" and view != "the same":
        pytest.skip("a view of a packed tensor is another input")
    models, wide = compiled(writes)
    sources = [randn(4, 4).requires_grad_(gradients) for _ in range(N)]
    for _ in range(2):
        inputs = [1 * x for x in sources]
        got = called(wide, door, inputs, VIEWS[view])
        own = [x.clone() for x in (inputs if door != "shared" else inputs[:1] * N)]
        expected = loop(models, [(x, VIEWS[view](x)) for x in own])
        torch.testing.assert_close(list(got), expected)
        if gradients:
            results = [
                torch.autograd.grad(
                    sum(o.square().sum() for o in outs), sources, allow_unused=True, retain_graph=True
                )
                for outs in (got, expected)
            ]
            torch.testing.assert_close(*results)
        assert wide.explain(measure=False).counts["loop"] == 1
        assert "share memory" in wide.explain(measure=False).why


@pytest.mark.parametrize("door", DOORS)
def test_the_callers_tensors_are_left_alone(door):
    _, wide = compiled(writes)
    xs = [randn(4, 4) for _ in range(N)]
    before = [x.clone() for x in xs]
    called(wide, door, xs, same)
    torch.testing.assert_close(xs, before)


@pytest.mark.parametrize("door", DOORS)
def test_without_writes_it_stays_wide(door):
    models, wide = compiled(reads)
    xs = [randn(4, 4) for _ in range(N)]
    outs = called(wide, door, xs, same)
    torch.testing.assert_close(outs, loop(models, [(x, x) for x in (xs if door != "shared" else xs[:1] * N)]))
    assert wide.explain(measure=False).coverage == 1.0


def test_parts_of_one_tensor_that_do_not_overlap_stay_wide():
    models, wide = compiled(writes)
    both = randn(4, 8)
    for x, y in (both.chunk(2, dim=1), both.view(8, 4).chunk(2)):
        expected = loop(models, [(x.clone(), y.clone()) for _ in range(N)])
        torch.testing.assert_close(wide.shared(x, y), torch.stack(expected))
        assert wide.explain(measure=False).coverage == 1.0
    pairs = randn(N, 2, 4, 4)
    got = wide.stacked(pairs[:, 0], pairs[:, 1])
    torch.testing.assert_close(got, torch.stack(loop(models, [(p[0].clone(), p[1].clone()) for p in pairs])))
    assert wide.explain(measure=False).coverage == 1.0


def test_the_next_call_with_other_inputs_is_wide_again():
    models, wide = compiled(writes)
    x = randn(N, 4, 4)
    for inputs in ((x, x), (x, x.clone()), (x, x), (x, x.clone())):
        shared = inputs[0] is inputs[1]
        expected = [(a := x[i].clone(), a if shared else x[i].clone()) for i in range(N)]
        torch.testing.assert_close(wide.stacked(*inputs), torch.stack(loop(models, expected)))
        assert (wide.explain(measure=False).coverage == 1.0) is not shared


def test_a_keyword_that_is_the_same_tensor():
    models, wide = compiled(writes)
    x = randn(N, 4, 4)
    expected = torch.stack(loop(models, [(a := x[i].clone(), a) for i in range(N)]))
    torch.testing.assert_close(wide.stacked(x, y=x), expected)


def adds_to_buffer(self, x, y):
    x.add_(1.0)
    return self.fc(y) + self.state * x


def moves_buffer(self, x, y):
    self.state.mul_(0.5).add_(y)
    return self.fc(y) + x


class Stateful(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(4, 4), function
        self.register_buffer("state", randn(4, 4))

    def forward(self, x, y):
        return self.function(self, x, y)


@pytest.mark.parametrize("door", ["stacked", "each"])
@pytest.mark.parametrize("function", [adds_to_buffer, moves_buffer])
def test_an_input_that_is_the_models_own_buffer(function, door):
    models = [Stateful(function).double() for _ in range(N)]
    wide = wide_compiler.compile(models, (randn(4, 4), randn(4, 4)))
    for _ in range(2):
        y = randn(N, 4, 4)
        expected = [m(m.state, y[i]) for i, m in enumerate(models)]
        if door == "stacked":
            got = list(wide.stacked(wide.state, y))
        else:
            got = wide.each([wide.state[i] for i in range(N)], list(y))
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(wide.state, torch.stack([m.state for m in models]))
        assert "shares memory with state" in wide.explain(measure=False).why


def test_an_input_that_is_the_models_own_parameter():
    models = [
        Fn(lambda self, x, y: (x.add_(1.0), self.fc(y))[1], fc=nn.Linear(4, 4)).double() for _ in range(N)
    ]
    for model in models:
        model.requires_grad_(False)
    wide = wide_compiler.compile(models, (randn(4, 4), randn(4, 4)))
    y = randn(N, 4, 4)
    expected = torch.stack([m(m.fc.weight, y[i]) for i, m in enumerate(models)])
    torch.testing.assert_close(wide.stacked(wide.fc.weight, y), expected)
    torch.testing.assert_close(wide.fc.weight, torch.stack([m.fc.weight for m in models]))


def test_training_with_a_batch_norm_is_not_slowed_to_a_loop():
    models = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).double() for _ in range(N)]
    wide = wide_compiler.compile(models, randn(5, 4))
    x = randn(5, 4)
    torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in models]))
    assert wide.explain(measure=False).coverage == 1.0


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("view", VIEWS)
def test_inside_torch_compile(view, where):
    """A trace shows which tensors are views of one: then the members run, outside of it."""
    models, wide = compiled(writes)
    x = randn(4, 4)
    expected = loop(models, [(own := x.clone(), VIEWS[view](own)) for _ in range(N)])
    if where == "inside":
        got = torch.compile(lambda x: wide.shared(x, VIEWS[view](x)), backend="eager")(x)
    else:
        got = torch.compile(wide.shared, backend="eager")(x, VIEWS[view](x))
    torch.testing.assert_close(got, torch.stack(expected))
    y = randn(4, 4)
    whole = torch.compile(lambda x, y: wide.shared(x, y), backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(x, y), torch.stack(loop(models, [(x.clone(), y) for _ in range(N)])))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_inside_a_transform_it_is_refused(transform, view):
    _, wide = compiled(writes)

    def call(x):
        x = 1 * x
        return wide.shared(x, VIEWS[view](x))

    transformed = {
        "grad": torch.func.grad(lambda x: call(x).sum()),
        "vmap": torch.vmap(call),
        "jvp": lambda x: torch.func.jvp(call, (x,), (x,)),
    }[transform]
    with pytest.raises(InputError, match=r"views of one.*clone"):
        transformed(randn(4, 4) if transform != "vmap" else randn(2, 4, 4))


def test_overlap():
    x = torch.arange(24.0).view(4, 6)
    assert overlap(x, x) and overlap(x, x[1:2]) and overlap(x.T, x[:, 3:4])
    assert not overlap(x[:, :3], x[:, 3:]) and not overlap(x[::2], x[1::2]) and not overlap(x, x.clone())
    assert not overlap(x[:0], x)


@pytest.mark.parametrize(
    "make", [lambda x: x, lambda x: x.T, lambda x: x[:, ::2], lambda x: x[:1].expand(4, 6)]
)
def test_a_copy_is_laid_out_as_the_original(make):
    x = make(randn(4, 6))
    copy = strided_copy(x)
    assert copy.stride() == x.stride() and not overlap(copy, x)
    torch.testing.assert_close(copy, x)
