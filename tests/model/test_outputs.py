"""What `each` hands out is what the members would have given: writable, contiguous, of their own size."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import wide_compiler
from fn import Fn
from wide_compiler import InputError, WideConfig, lanes
from wide_compiler.routers import BaseTower, WideRouter

N = 3


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def compiled(make, *sample):
    models = [make().double() for _ in range(N)]
    return models, wide_compiler.compile(models, sample)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


WRITES = {
    "mul_": lambda out, i: out.mul_(i + 2.0),
    "row": lambda out, i: out[0].zero_(),
    "masked": lambda out, i: out.masked_fill_(out > 0, float(i)),
    "relu": lambda out, i: nn.functional.relu(out, inplace=True),
    "view": lambda out, i: out.view(-1)[::2].add_(1.0),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("lane", [None, 1])
def test_outputs_may_be_written(write, lane):
    models, wide = compiled(net, randn(5, 4))
    xs = [randn(5, 4).requires_grad_() for _ in range(N)]
    results = []
    for outs in (wide.each(xs), [m(x) for m, x in zip(models, xs, strict=True)]):
        for i in range(N) if lane is None else [lane]:
            WRITES[write](outs[i], i)
        gradients = torch.autograd.grad(sum((i + 1) * o.square().sum() for i, o in enumerate(outs)), xs)
        results.append((outs, gradients))
    torch.testing.assert_close(*results)
    assert wide.explain(measure=False).coverage == 1.0


def test_a_write_leaves_alone_what_backward_has_saved():
    """A member alone refuses to go backward here; a wrong gradient would be the other way to differ."""
    models, wide = compiled(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()), randn(5, 4))
    xs = [randn(5, 4).requires_grad_() for _ in range(N)]
    outs = wide.each(xs)
    outs[0].mul_(2.0)
    expected = [m(x) for m, x in zip(models, xs, strict=True)]
    got = torch.autograd.grad(sum(o.sum() for o in outs), xs)
    torch.testing.assert_close(
        got, torch.autograd.grad(sum(o.sum() for o in expected) + expected[0].sum(), xs)
    )


def test_outputs_without_gradients_may_be_written_where_there_are_some():
    models, wide = compiled(net, randn(5, 4))
    xs = [randn(5, 4) for _ in range(N)]
    with torch.no_grad():
        outs = wide.each(xs)
        expected = [m(x) for m, x in zip(models, xs, strict=True)]
    scale = randn(2).requires_grad_()
    for out, other in zip(outs, expected, strict=True):
        out.mul_(scale), other.mul_(scale)
        torch.testing.assert_close(out, other)
        assert out.requires_grad


def test_outputs_that_share_memory_still_do():
    """A write to one of two outputs that are one tensor shows in the other, gradients included."""
    models, wide = compiled(
        lambda: Fn(lambda self, x: (y := self.fc(x), y.view(-1)), fc=nn.Linear(4, 4)), randn(2, 4)
    )
    xs = [randn(2, 4).requires_grad_() for _ in range(N)]
    results = []
    for outs in (wide.each(xs), [m(x) for m, x in zip(models, xs, strict=True)]):
        for first, _ in outs:
            first.mul_(3.0)
        gradients = torch.autograd.grad(sum(second.square().sum() for _, second in outs), xs)
        results.append((outs, gradients))
    torch.testing.assert_close(*results)


MAKES = {
    "conv": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8)),
    "conv, batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), (2, 3, 8, 8)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 9)),
    "linear": (lambda: nn.Linear(4, 5), (2, 3, 4)),
    "mixed": (
        lambda: Fn(lambda self, x: {"a": self.conv(x), "b": x.mean((2, 3))}, conv=nn.Conv2d(3, 4, 1)),
        (2, 3, 4, 4),
    ),
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", MAKES)
def test_outputs_are_contiguous(name, gradients):
    make, shape = MAKES[name]
    models, wide = compiled(make, randn(*shape))
    for strategy in (None, "grouped", "loop"):
        if strategy:
            wide = wide_compiler.compile(models, (randn(*shape),), config=WideConfig(strategy=strategy))
        xs = [randn(*shape) for _ in range(N)]
        with torch.set_grad_enabled(gradients):
            outs = wide.each(xs)
            for m, x, out in zip(models, xs, outs, strict=True):
                for got, expected in zip(
                    torch.utils._pytree.tree_leaves(out), torch.utils._pytree.tree_leaves(m(x)), strict=True
                ):
                    assert got.stride() == expected.stride()
                    torch.testing.assert_close(got.view(2, -1), expected.view(2, -1))


class Chosen(nn.Module):
    """As many rows as have a positive first number: a size that depends on values."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y = self.fc(x)
        return y[y[:, 0] > 0], x.sum()


def test_each_gives_outputs_of_different_sizes():
    models, wide = compiled(Chosen, randn(6, 4))
    xs = [randn(6, 4) for _ in range(N)]
    xs[1] = xs[1][:1].repeat(6, 1)
    got = wide.each(xs)
    expected = [m(x) for m, x in zip(models, xs, strict=True)]
    assert len({tuple(out[0].shape) for out in expected}) > 1
    torch.testing.assert_close(got, expected)
    assert wide.explain(measure=False).counts["loop"] == 1
    sum(out[0].square().sum() for out in got).backward()
    sum(out[0].square().sum() for out in expected).backward()
    for i, model in enumerate(models):
        torch.testing.assert_close(wide.fc.weight.grad[i], model.fc.weight.grad)
        assert wide.calls[i] == model.calls == 1


def test_the_other_doors_refuse_outputs_of_different_sizes_and_no_buffer_moves():
    _, wide = compiled(Chosen, randn(6, 4))
    x = torch.stack([randn(6, 4), randn(1, 4).repeat(6, 1), randn(1, 4).repeat(6, 1)])
    with pytest.raises(InputError, match="lanes cannot be stacked"):
        wide.stacked(x)
    assert not wide.calls.any()


def test_each_gives_structures_that_differ():
    class Early(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x) if x.sum() > 0 else None

    models, wide = compiled(Early, randn(2, 4))
    xs = [randn(2, 4).abs(), -randn(2, 4).abs(), randn(2, 4).abs()]
    got, expected = wide.each(xs), [m(x) for m, x in zip(models, xs, strict=True)]
    assert got[1] is None
    torch.testing.assert_close([got[0], got[2]], [expected[0], expected[2]])


@pytest.mark.parametrize("compiled", [False, True])
def test_outputs_of_towers_may_be_written(compiled):
    class Tower(BaseTower):
        def __init__(self, name):
            super().__init__(name)
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x)

    router = WideRouter("collective", config=WideConfig(tune_seconds=0))
    for i in range(N):
        router.attach(f"t{i}", Tower(f"t{i}").double())
    x = randn(2, 3, 8, 8)
    call = torch.compile(router.wide_forward, backend="eager") if compiled else router.wide_forward
    outs = call(x)
    for i in range(N):
        out, expected = outs[f"t{i}"], router[f"t{i}"](x)
        torch.testing.assert_close(out.view(2, -1), expected.view(2, -1))
        torch.testing.assert_close(out.mul_(2.0), expected.mul_(2.0))
        torch.testing.assert_close(out.relu_(), expected.relu_())
    sum(out.sum() for out in outs.values()).backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inside_torch_compile(backend):
    models, wide = compiled(lambda: nn.Conv1d(3, 4, 3), randn(2, 3, 9))

    @torch.compile(fullgraph=True, backend=backend)
    def step(xs):
        outs = wide.each(xs)
        return [out.view(2, -1).mul_(2.0) for out in outs]

    xs = [randn(2, 3, 9) for _ in range(N)]
    torch.testing.assert_close(step(xs), [m(x).view(2, -1) * 2 for m, x in zip(models, xs, strict=True)])


@pytest.mark.parametrize("captured", [True, False])
def test_zeros_of_both_signs_are_two_numbers(captured):
    models = [Fn(lambda self, x: (x, (x[0, 0] * self.sign).item()), sign=s) for s in (1.0, -1.0)]
    if not captured:
        models = [Fn(lambda self, x: (x, (x[0, 0] * self.sign).numpy().item()), sign=s) for s in (1.0, -1.0)]
    wide = wide_compiler.compile(models, torch.zeros(2, 3), config=WideConfig(tune_seconds=0))
    assert [str(y) for _, y in wide.each([torch.zeros(2, 3)] * 2)] == ["0.0", "-0.0"]
    assert [str(y) for y in wide.shared(torch.zeros(2, 3))[1]] == ["0.0", "-0.0"]


class _WithObjects(nn.Module):
    """Gives Python objects that a caller may change."""

    def __init__(self, names):
        super().__init__()
        self.names = names

    def forward(self, x):
        return {"y": x * 2, "set": set(self.names), "object": SimpleNamespace(k=[1]), "array": np.arange(2)}


@pytest.mark.parametrize("names", ["ab", "a"])
@pytest.mark.parametrize("door", ["each", "shared"])
def test_objects_that_a_caller_changes_are_new_at_every_call(names, door):
    models, x = [_WithObjects("a"), _WithObjects(names)], torch.ones(2, 3)
    wide = wide_compiler.compile(models, x, config=WideConfig(tune_seconds=0))
    for _ in range(3):
        outs = wide.each([x, x]) if door == "each" else lanes.unstack(wide.shared(x), 2)
        for model, out in zip(models, outs, strict=True):
            want = model(x)
            assert out["set"] == want["set"] and out["object"] == want["object"]
            assert out["array"].tolist() == [0, 1]
            out["set"].add("z")
            out["object"].k.append(2)
            out["array"] += 1
    assert wide.explain(measure=False).coverage == 1.0


def test_hand_out_of_other_leaves():
    tree = {"x": torch.arange(N), "k": 3, "s": lanes.LaneValues("abc")}
    assert [(t["x"].item(), t["k"], t["s"]) for t in lanes.hand_out(tree, N)] == [
        (0, 3, "a"),
        (1, 3, "b"),
        (2, 3, "c"),
    ]


@pytest.mark.parametrize("shape", [(N,), (N, 2), (N, 0), (N, 2, 3), (N, 0, 3)])
def test_handed_out_rows_learn_and_can_be_written(shape):
    source = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    flags = []
    rows = lanes.hand_out(source.exp(), N, lambda _, reached: flags.append(reached))
    with torch.no_grad():
        expected = [row.clone() for row in source.exp()]
    rows[0].mul_(3)  # exp has saved its result: a write must not reach it
    torch.testing.assert_close([row.detach() for row in rows], [expected[0] * 3, *expected[1:]])
    (rows[0].sum() + rows[2].sum()).backward()
    weights = torch.tensor([3.0, 0.0, 1.0, *[0.0] * (N - 3)], dtype=torch.float64)
    torch.testing.assert_close(
        source.grad, source.detach().exp() * weights.view(N, *[1] * (source.dim() - 1))
    )
    assert flags == [[True, False, True, *[False] * (N - 3)]]
