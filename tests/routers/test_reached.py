"""Towers whose outputs a loss does not use keep their gradients: optimisers leave them alone."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler.routers import CompileRouter, WideRouter

CONFIG = wide_compiler.WideConfig(tune_seconds=0)
DOORS = ["router", "stacked", "prepared", "branches"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 4)

    def forward(self, x):
        return self.b(self.norm(self.a(x)).tanh())


class TwoHeads(Net):
    def forward(self, x):
        y = super().forward(x)
        return y.sin(), x.sum() + self.a(x)


class Views(Net):
    def forward(self, x):
        y = super().forward(x)
        return y, y.T


class Branches(nn.Module):
    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x):
        return [member(x) for member in self.members]


class Stages(nn.Module):
    """Each branch is two modules, joined one after the other."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = nn.ModuleList(first), nn.ModuleList(second)

    def forward(self, x):
        return [b(a(x)) for a, b in zip(self.first, self.second, strict=True)]


def called_by(door, members):
    """A function from the input to the outputs, and one that says how many towers ran together."""
    if door == "branches":
        fast = CompileRouter.from_module(Branches(members), config=CONFIG).compile()
        return fast, lambda: 3 * fast.ran.together
    router = WideRouter("router", config=CONFIG, stacked=door == "stacked")
    for i, member in enumerate(members):
        router.attach(f"t{i}", member)
        router.register_tower(f"t{i}")
    if door == "prepared":
        router.prepare_for_compile()
    return lambda x: list(router.wide_forward(x).values()), lambda: router.explain().together


def train(call, parameters, losses):
    """Steps of AdamW, each with the outputs that its loss uses; the gradients before each step."""
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
    torch.manual_seed(0)
    seen = []
    for step, loss in enumerate(losses):
        if step % 3:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        x = torch.randn(3, 4, dtype=torch.float64)
        loss(call(x)).backward()
        seen.append([None if p.grad is None else p.grad.clone() for p in parameters])
        optimizer.step()
    return seen, parameters


def compare(call, parameters, plain, plain_parameters, losses):
    got, mine = train(call, parameters, losses)
    want, theirs = train(plain, plain_parameters, losses)
    for step, (a, b) in enumerate(zip(got, want, strict=True)):
        assert [g is None for g in a] == [g is None for g in b], step
        for g, h in zip(a, b, strict=True):
            if g is not None:
                torch.testing.assert_close(g, h, rtol=1e-9, atol=1e-12)
    for p, q in zip(mine, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def one(i):
    return lambda outputs: outputs[i].square().sum()


def two(i, j):
    return lambda outputs: (outputs[i] * outputs[j]).sum()


def every(outputs):
    return sum(y.square().sum() for y in outputs)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "losses",
    [[one(0), one(1), two(0, 2)], [two(1, 2), every, one(0), one(0)], [every, one(2), two(0, 1), every]],
)
def test_losses_of_some_towers(door, losses):
    members = [Net().double() for _ in range(3)]
    mine = copy.deepcopy(members)
    call, together = called_by(door, mine)
    plain = Branches(members)
    compare(call, [p for m in mine for p in m.parameters()], plain, plain.parameters(), losses)
    assert together() == 3


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", [TwoHeads, Views])
def test_towers_with_several_outputs(door, kind):
    members = [kind().double() for _ in range(3)]
    mine = copy.deepcopy(members)
    (call, _), plain = called_by(door, mine), Branches(members)
    losses = [
        lambda outputs: outputs[0][0].sum(),
        lambda outputs: outputs[0][0].sum() + outputs[1][1].square().sum(),
    ]
    for loss in losses:
        x = torch.randn(3, 4, dtype=torch.float64)
        for members_, run in ((mine, call), (members, plain)):
            for member in members_:
                member.zero_grad()
            loss(run(x)).backward()
        for a, b in zip(mine, members, strict=True):
            for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
                want = torch.zeros_like(q) if q.grad is None else q.grad
                got = torch.zeros_like(p) if p.grad is None else p.grad
                torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("losses", [[one(0), two(1, 2)], [every, one(1), one(2)]])
def test_branches_of_two_stages(losses):
    members = Stages([Net() for _ in range(3)], [nn.Linear(4, 4) for _ in range(3)]).double()
    plain = copy.deepcopy(members)
    fast = CompileRouter.from_module(members, config=CONFIG).compile()
    fast(torch.randn(3, 4, dtype=torch.float64))
    compare(fast, fast.parameters(), plain, plain.parameters(), losses)


@pytest.mark.parametrize("door", DOORS)
def test_one_forward_twice_in_a_graph_and_twice_backward(door):
    members = [Net().double() for _ in range(3)]
    mine = copy.deepcopy(members)
    (call, _), plain = called_by(door, mine), Branches(members)

    def again(run):
        return lambda x: run(run(x)[1].tanh())

    parameters = [p for m in mine for p in m.parameters()]
    compare(again(call), parameters, again(plain), plain.parameters(), [one(0), one(1), two(0, 2), every])

    x = torch.randn(3, 4, dtype=torch.float64)
    for run, own in ((call, mine), (plain, members)):
        for member in own:
            member.zero_grad()
        outputs = run(x)
        outputs[0].sum().backward(retain_graph=True)
        outputs[0].square().sum().backward(retain_graph=True)
        outputs[2].square().sum().backward()
    for a, b in zip(mine, members, strict=True):
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            assert q.grad is None or torch.allclose(p.grad, q.grad, rtol=1e-9)
