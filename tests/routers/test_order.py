"""Towers run in the order of their registration wherever one can see what another does."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler.routers import WideRouter

FACTOR = 1.0


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)


class ReadsGlobal(Plain):
    def forward(self, x):
        return self.linear(x) * FACTOR


class Harmless(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 4)

    def forward(self, x):
        return self.second(self.first(x))


class WritesInput(Harmless):
    def forward(self, x):
        x.mul_(2)
        return super().forward(x)


class WritesData(Harmless):
    def forward(self, x):
        x[0] += 1
        return super().forward(x)


class SetsGlobal(Harmless):
    def forward(self, x):
        global FACTOR
        FACTOR += 1
        return super().forward(x)


class WritesByFlag(Plain):
    def __init__(self, writes):
        super().__init__()
        self.writes = writes

    def forward(self, x):
        if self.writes:
            x.add_(1)
        return super().forward(x)


class Draws(nn.Module):
    """Draws numbers, and runs as Python."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x):
        self.calls += 1
        y = x + torch.rand_like(x)
        return y if self.inner is None else self.inner(y)


def router_of(towers):
    router = WideRouter("router", config=wide_compiler.WideConfig(tune_seconds=0))
    for i, tower in enumerate(towers):
        router.attach(f"t{i}", tower)
        router.register_tower(f"t{i}")
    return router


def compare(towers, calls=3, compiled=False):
    global FACTOR
    if compiled:
        torch._dynamo.reset()  # many routers: the limit of recompilations is for all of them
    router = router_of(copy.deepcopy(towers))
    run = router.compile(backend="eager") if compiled else router.wide_forward
    for _ in range(calls):
        x = torch.randn(2, 4, dtype=torch.float64)
        outcomes = []
        for call in (lambda x: [tower(x) for tower in towers], lambda x: list(run(x).values())):
            FACTOR = 1.0
            torch.manual_seed(0)
            mine = x.clone()
            with torch.no_grad():
                outcomes.append([*call(mine), mine])
        for want, got in zip(*outcomes, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=0)
    if compiled:
        torch._dynamo.reset()
    return router.explain()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [WritesInput, WritesData])
@pytest.mark.parametrize("order", ["aab", "baa", "aba", "aabaa", "abab", "aabaab"])
def test_a_tower_that_writes_its_input(kind, order, compiled):
    makers = {"a": Plain, "b": kind}
    found = compare([makers[letter]().double() for letter in order], compiled=compiled)
    assert found.together == 2 * order.split("b").count("aa")


def test_a_tower_that_sets_what_others_read():
    for order in ("aab", "baa", "aabaa"):
        makers = {"a": ReadsGlobal, "b": SetsGlobal}
        compare([makers[letter]().double() for letter in order])


def test_towers_of_one_structure_some_of_which_write():
    compare([WritesByFlag(writes).double() for writes in (False, True, False, True, False)])


def test_towers_that_draw_in_python():
    compare([Draws(nn.Linear(4, 4)).double(), Draws(), Draws(nn.Linear(4, 4)).double(), Draws()])


@pytest.mark.parametrize("order", ["aba", "ababa", "cabac"])
def test_other_towers_between_them_leave_towers_together(order):
    makers = {"a": Plain, "b": Harmless, "c": nn.Tanh}
    found = compare([makers[letter]().double() for letter in order])
    assert found.together == sum(order.count(letter) for letter in "abc" if order.count(letter) > 1)
