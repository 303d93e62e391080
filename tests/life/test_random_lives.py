"""Random lives by every door, and by name what they have found."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import wide_compiler
from nightly import SEED, count
from wide_compiler.routers import CompileRouter, WideRouter

sys.path.insert(0, str(Path(__file__).parent))
import random_lives

LIVES_A_TEST = 5


@pytest.mark.parametrize("door", random_lives.DOORS)
@pytest.mark.parametrize("part", range(count(3, 150)))
def test_random_lives_equal_the_loop(door, part):
    for i in range(LIVES_A_TEST):
        random_lives.live(SEED + 100_000 + LIVES_A_TEST * part + i, doors=(door,))


class AsksForGradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) + 1 if torch.is_grad_enabled() else self.linear(x)


class CallsUnderOtherMode(AsksForGradients):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)


class AsksInHelper(AsksForGradients):
    def forward(self, x):
        return super().forward(x) * (2 if _records() else 3)


def _records() -> bool:
    return torch.is_grad_enabled()


def router_of(towers, **options):
    router = WideRouter("router", config=wide_compiler.WideConfig(**options))
    for i, tower in enumerate(towers):
        router.attach(f"t{i}", tower)
        router.register_tower(f"t{i}")
    return router


class Branches(nn.Module):
    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x):
        return [member(x) for member in self.members]


def called_by(door, members, sample, **options):
    """A function from an input to the outputs of all members."""
    config = wide_compiler.WideConfig(**options)
    if door == "compile":
        wide = wide_compiler.compile(members, sample, config=config)
        return lambda x: wide.each([x.clone() for _ in members])
    if door == "router":
        router = router_of(members, **options)
        return lambda x: list(router.wide_forward(x).values())
    return CompileRouter.from_module(Branches(members), config=config).compile()


@pytest.mark.parametrize("door", ["compile", "router", "branches"])
@pytest.mark.parametrize("kind", [AsksForGradients, CallsUnderOtherMode, AsksInHelper])
@pytest.mark.parametrize("first", [False, True])
def test_a_graph_of_one_gradient_mode_is_not_run_in_the_other(door, kind, first):
    members = [kind().double() for _ in range(3)]
    x = torch.randn(2, 4, dtype=torch.float64)
    with torch.set_grad_enabled(first):
        call = called_by(door, copy.deepcopy(members), x, tune_seconds=0)
    for mode in (first, not first, first, not first):
        with torch.set_grad_enabled(mode):
            for got, member in zip(call(x), members, strict=True):
                assert (
                    torch.allclose(got, member(x), rtol=1e-12)
                    and got.requires_grad == member(x).requires_grad
                )


class ReplacesBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + x.detach().mean(0)
        return self.linear(x) - self.mean


class WritesBuffer(ReplacesBuffer):
    def forward(self, x):
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        return self.linear(x) - self.mean


class WritesPart(ReplacesBuffer):
    def forward(self, x):
        self.mean[1:] += x.detach().mean(0)[1:]
        return self.linear(x) - self.mean


@pytest.mark.parametrize("door", ["compile", "router", "branches"])
@pytest.mark.parametrize("kind", [ReplacesBuffer, WritesBuffer, WritesPart])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_measuring_leaves_buffers_as_they_were(door, kind, mode):
    members = [kind().double() for _ in range(3)]
    x = torch.randn(2, 4, dtype=torch.float64)
    call = called_by(door, copy.deepcopy(members), x, tune_seconds=0.02)
    for _ in range(3):
        with mode():
            for got, member in zip(call(x), members, strict=True):
                assert torch.allclose(got, member(x), rtol=1e-9)


class BranchesOnValue(nn.Module):
    def forward(self, x):
        return x * 2 if x.mean() > 0 else x - 1


class KeepsTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.kept = nn.Parameter(torch.randn(4)), None

    def forward(self, x):
        if self.kept is None:
            self.kept = self.weight.detach().softmax(0)
        return x * self.kept


class CountsBoth(nn.Module):
    """A buffer, in a forward that runs as Python."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.steps += 1
        return x * self.steps


@pytest.mark.parametrize("kind", [BranchesOnValue, KeepsTensor, CountsBoth])
@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
def test_members_that_run_as_python_run_in_inference_mode(kind, first):
    members = [nn.Sequential(nn.Linear(4, 4), kind()).double().eval() for _ in range(3)]
    x = torch.randn(2, 4, dtype=torch.float64)
    wide = wide_compiler.compile(copy.deepcopy(members), x, config=wide_compiler.WideConfig(tune_seconds=0))
    for mode in (first, torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            xs = [torch.randn(2, 4, dtype=torch.float64) for _ in members]
            for got, member, own in zip(wide.each(xs), members, xs, strict=True):
                assert torch.allclose(got, member(own), rtol=1e-9)


class GivesNumbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        y = x + self.table((x[:, 0].abs() * 3).long().clamp(0, 4))
        self.seen[1:].add_(1)  # a write into a view: the whole graph is compared
        return {"out": y + self.seen, "size": x.shape[0], "name": "rows", "none": None}


def test_numbers_beside_tensors_in_the_output_of_a_compared_graph():
    members = [GivesNumbers().double() for _ in range(3)]
    x = torch.randn(2, 4, dtype=torch.float64)
    wide = wide_compiler.compile(copy.deepcopy(members), x, config=wide_compiler.WideConfig(tune_seconds=0))
    assert not wide.explain(measure=False).why
    with torch.no_grad():
        for got, member in zip(wide.each([x.clone() for _ in members]), members, strict=True):
            want = member(x)
            assert torch.allclose(got.pop("out"), want.pop("out")) and got == want
