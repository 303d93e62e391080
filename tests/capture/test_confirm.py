"""What a forward asks for and only a trace, or another mode, answers differently: never a wrong number."""

import functools

import pytest
import torch
from torch import Tensor, nn

import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.routers import BaseTower, WideRouter

UNTUNED = WideConfig(tune_seconds=0)
outside = nn.Linear(3, 3)


class Member(BaseTower):
    def __init__(self, change, name="tower"):
        super().__init__(name)
        self.fc, self.change = nn.Linear(3, 3), change

    def forward(self, x):
        return self.change(self, self.fc(x), x)


def seeded(self, y, x):
    torch.default_generator.manual_seed(9)
    return y + torch.rand(2, 3)


ASKS = {
    "is it compiled": lambda self, y, x: y * (2.0 if torch.compiler.is_compiling() else 3.0),
    "is it exported": lambda self, y, x: y * (2.0 if torch.compiler.is_exporting() else 3.0),
    "the exact type of an input": lambda self, y, x: y * (2.0 if type(x) is Tensor else 3.0),
    "the exact type of a value": lambda self, y, x: y * (2.0 if type(y) is Tensor else 3.0),
    "whether oneDNN is on": lambda self, y, x: y * (2.0 if torch.backends.mkldnn.enabled else 3.0),
    "whether a value requires gradients": lambda self, y, x: y * (2.0 if y.requires_grad else 3.0),
    "whether a value is a leaf": lambda self, y, x: y * (2.0 if y.is_leaf else 3.0),
    "what made a value": lambda self, y, x: y * (2.0 if y.grad_fn is None else 3.0),
    "whether gradients are recorded": lambda self, y, x: y * (2.0 if torch.is_grad_enabled() else 3.0),
    "a seeded generator": seeded,
}


@pytest.mark.parametrize("name", ASKS)
def test_the_answer_is_that_of_a_plain_call(name):
    members = [Member(ASKS[name]) for _ in range(3)]
    wide = wide_compiler.compile(members, torch.randn(2, 3), config=UNTUNED)
    x = torch.randn(2, 3)
    for mode in (torch.enable_grad, torch.no_grad, torch.enable_grad):
        with mode():
            torch.testing.assert_close(wide.shared(x), torch.stack([member(x) for member in members]))
    if name in ("is it compiled", "is it exported"):
        assert wide.explain(measure=False).coverage == 1.0


@pytest.mark.parametrize("name", ["whether gradients are recorded", "whether a value requires gradients"])
def test_towers_of_a_router_too(name):
    router = WideRouter("towers", config=UNTUNED)
    towers = [Member(ASKS[name], f"t{i}") for i in range(3)]
    for tower in towers:
        router.attach(tower.name, tower)
    x = torch.randn(2, 3)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            for _ in range(2):
                torch.testing.assert_close(list(router(x).values()), [tower(x) for tower in towers])


@pytest.mark.parametrize("parameter", [outside.weight, outside.bias])
def test_a_parameter_outside_of_the_members_gets_its_gradient(parameter):
    members = [Member(lambda self, y, x: outside(y)) for _ in range(3)]
    wide = wide_compiler.compile(members, torch.randn(2, 3), config=UNTUNED)
    x = torch.randn(2, 3)
    outside.zero_grad()
    wide.shared(x).square().sum().backward()
    got = parameter.grad.clone()
    outside.zero_grad()
    torch.stack([member(x) for member in members]).square().sum().backward()
    torch.testing.assert_close(got, parameter.grad)


def keeps(self, y, x):
    self.last = y.detach()
    return y


def keeps_by_name(self, y, x):
    setattr(self, "last", y.detach())  # noqa: B010
    return y


def keeps_in_a_child(self, y, x):
    self.fc.last = y.detach()
    return y


@pytest.mark.parametrize("change", [keeps, keeps_by_name, keeps_in_a_child])
def test_a_new_attribute_is_kept_by_every_lane(change):
    members = [Member(change) for _ in range(3)]
    wide = wide_compiler.compile(members, torch.randn(2, 3), config=UNTUNED)
    xs = [torch.randn(2, 3) for _ in members]
    wide.each(xs)
    for lane, (member, x) in enumerate(zip(members, xs, strict=True)):
        own = wide.lane(lane)
        last = own.fc.last if change is keeps_in_a_child else own.last
        assert type(last) is Tensor
        torch.testing.assert_close(last, member(x))


class Rows(list):
    """No tree of PyTorch's."""


HOLDERS = {
    "a closure": (lambda y: lambda: y, lambda out: out()),
    "a partial": (lambda y: functools.partial(torch.add, y, 0), lambda out: out()),
    "a set": (lambda y: {y}, lambda out: next(iter(out))),
    "an iterator": (lambda y: iter([y]), next),
    "a generator": (lambda y: (v for v in (y,)), next),
    "a list of another class": (lambda y: Rows([y]), lambda out: out[0]),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_no_trace_of_a_trace_in_what_is_returned(name):
    wrap, unwrap = HOLDERS[name]
    members = [Member(lambda self, y, x: wrap(y)) for _ in range(3)]
    wide = wide_compiler.compile(members, torch.randn(2, 3), config=UNTUNED)
    xs = [torch.randn(2, 3) for _ in members]
    for _ in range(2):
        got = [unwrap(out) for out in wide.each(xs)]
        assert all(type(value) is Tensor for value in got)
        torch.testing.assert_close(got, [m.fc(x) for m, x in zip(members, xs, strict=True)])


TRANSFORMS = {
    "jvp": lambda self, y, x: torch.func.jvp(self.fc, (x,), (x,))[1],
    "vmap": lambda self, y, x: torch.vmap(self.fc)(x),
    "grad": lambda self, y, x: torch.func.grad(lambda v: self.fc(v).square().sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_inside_of_a_forward(name):
    members = [Member(TRANSFORMS[name]) for _ in range(3)]
    wide = wide_compiler.compile(members, torch.randn(2, 3), config=UNTUNED)
    xs = [torch.randn(2, 3) for _ in members]
    torch.testing.assert_close(list(wide.each(xs)), [m(x) for m, x in zip(members, xs, strict=True)])
    assert torch._C._functorch.peek_interpreter_stack() is None
