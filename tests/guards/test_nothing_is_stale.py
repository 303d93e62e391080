"""Whatever the members' Python reads may change between two calls: every door follows it."""

import copy
import os

import numpy as np
import pytest
import torch
from torch import nn

import wide_compiler
from kinds_of_reads import KINDS, make
from wide_compiler import WideConfig
from wide_compiler.routers import BaseTower, CompileRouter, WideRouter

UNTUNED = WideConfig(tune_seconds=0)
N = 3


@pytest.fixture(autouse=True)
def world_put_back():
    yield
    torch.set_default_dtype(torch.float32)
    for name in ("WIDE_TEST_K", "WIDE_TEST_L"):
        os.environ.pop(name, None)


class Member(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.fc, self.read = nn.Linear(3, 3), read

    def forward(self, x):
        return self.read(self.fc(x))


class Tower(BaseTower):
    def __init__(self, name, read):
        super().__init__(name)
        self.fc, self.read = nn.Linear(3, 3), read

    def forward(self, x):
        return self.read(self.fc(x))


class Branches(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.branches = nn.ModuleList(Tower(str(i), read) for i in range(N))

    def forward(self, x):
        return tuple(branch(x) for branch in self.branches)


def by_compile(read):
    members = [Member(read) for _ in range(N)]
    wide = wide_compiler.compile(members, torch.randn(2, 3), config=UNTUNED)
    return wide.shared, members, lambda: wide.explain(measure=False).coverage == 1.0


def by_wide_router(read):
    router = WideRouter("towers", config=UNTUNED)
    for i in range(N):
        router.attach(f"t{i}", Tower(f"t{i}", read))
    return (
        lambda x: list(router(x).values()),
        list(router.towers.values()),
        lambda: router.explain().together == 1 or any(r.how == "together" for r in router.explain().rows),
    )


def by_compile_router(read):
    model = Branches(read)
    planned = CompileRouter.from_module(model, torch.randn(2, 3), config=UNTUNED).compile()
    return planned, list(model.branches), lambda: planned is not model and bool(planned.plan.together)


DOORS = {"compile": by_compile, "WideRouter": by_wide_router, "CompileRouter": by_compile_router}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", KINDS)
def test_a_change_is_followed(name, door):
    kind = make(name)
    call, members, runs_wide = DOORS[door](kind.read)
    x = torch.randn(2, 3)
    before = [member(x) for member in members]
    for _ in range(2):  # the second call takes the short way
        torch.testing.assert_close(list(call(x)), before)
    assert runs_wide()
    kind.change()
    after = [member(x) for member in members]
    assert not all(torch.equal(a.double(), b.double()) for a, b in zip(before, after, strict=True))
    for _ in range(2):
        torch.testing.assert_close(list(call(x)), after)
    assert runs_wide()  # followed by a new capture, not by falling back


class Held:
    def __init__(self):
        self.v, self.inner = 2.0, [2.0]


class HeldInSlots:
    __slots__ = ("v",)

    def __init__(self):
        self.v = 2.0


# What a living module holds itself: its read, and a change.
HELD = {
    "a number": (lambda m, y: y * m.o, 2.0, lambda m: setattr(m, "o", 5.0)),
    "an object's attribute": (lambda m, y: y * m.o.v, Held, lambda m: setattr(m.o, "v", 5.0)),
    "a deep one": (lambda m, y: y * m.o.inner[0], Held, lambda m: m.o.inner.__setitem__(0, 5.0)),
    "slots": (lambda m, y: y * m.o.v, HeldInSlots, lambda m: setattr(m.o, "v", 5.0)),
    "a set": (lambda m, y: y * (2.0 if 1 in m.o else 5.0), lambda: {1, 2}, lambda m: m.o.discard(1)),
    "an array": (
        lambda m, y: y * float(m.o[0]),
        lambda: np.array([2.0]),
        lambda m: m.o.__setitem__(0, 5.0),
    ),
    "a list": (lambda m, y: y * m.o[0], lambda: [2.0], lambda m: m.o.__setitem__(0, 5.0)),
    "a tensor": (lambda m, y: y * m.o, lambda: torch.tensor([2.0]), lambda m: m.o.fill_(5.0)),
    "a forward of its own": (lambda m, y: y * 2.0, None, lambda m: setattr(m, "forward", lambda x: x * 7.0)),
    "a train flag": (lambda m, y: y * (2.0 if m.training else 5.0), None, lambda m: m.eval()),
}


class Holds(BaseTower):
    def __init__(self, name, read, value):
        super().__init__(name)
        self.fc, self.reader = nn.Linear(3, 3), read
        self.o = value() if callable(value) else value

    def forward(self, x):
        return self.reader(self, self.fc(x))


@pytest.mark.parametrize("name", HELD)
def test_what_one_of_several_living_towers_holds(name):
    read, value, change = HELD[name]
    router = WideRouter("towers", config=UNTUNED)
    for i in range(N):
        router.attach(f"t{i}", Holds(f"t{i}", read, value))
    towers, x = list(router.towers.values()), torch.randn(2, 3)
    torch.testing.assert_close(list(router(x).values()), [tower(x) for tower in towers])
    torch.testing.assert_close(list(router(x).values()), [tower(x) for tower in towers])
    assert any(row.how == "together" for row in router.explain().rows)
    change(towers[1])
    torch.testing.assert_close(list(router(x).values()), [tower(x) for tower in towers])
    torch.testing.assert_close(list(router(x).values()), [tower(x) for tower in towers])


class Configured(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fc, self.config = nn.Linear(3, 3), config

    def forward(self, x):
        return self.fc(x) * self.config.v + self.config.inner[0]


def test_an_object_that_all_members_hold_is_followed_and_one_of_their_own_is_not():
    config, x = Held(), torch.randn(2, 3)
    members = [Configured(config) for _ in range(N)]
    wide = wide_compiler.compile(members, x, config=UNTUNED)
    for change in (lambda: setattr(config, "v", 3.0), lambda: config.inner.append(1.0), config.inner.reverse):
        change()
        torch.testing.assert_close(wide.shared(x), torch.stack([member(x) for member in members]))
    assert wide.explain(measure=False).coverage == 1.0 and wide.programs.recaptures >= 2
    own = [Configured(Held()) for _ in range(N)]
    wide = wide_compiler.compile(own, x, config=UNTUNED)
    before = wide.shared(x)
    own[0].config.v = 9.0  # the wide model has copies of its own
    torch.testing.assert_close(wide.shared(x), before)


def test_a_value_that_comes_back_finds_its_capture_again():
    kind = make("a number in a global")
    call, members, _ = by_compile(kind.read)
    x = torch.randn(2, 3)
    wide = call.__self__
    for value in (2.0, 3.0, 2.0, 3.0, 2.0):
        kind.world.NUMBER = value
        torch.testing.assert_close(call(x), torch.stack([member(x) for member in members]))
    assert wide.programs.recaptures == 1


def test_an_equal_value_set_anew_is_no_change():
    kind = make("a number in a global")
    call, _, _ = by_compile(kind.read)
    x = torch.randn(2, 3)
    call(x)
    kind.world.NUMBER = float("2.0")
    call(x)
    assert call.__self__.programs.recaptures == 0


def test_a_number_that_changes_at_every_call_is_still_right():
    kind = make("a number in a global")
    call, members, _ = by_compile(kind.read)
    x = torch.randn(2, 3)
    for step in range(30):
        kind.world.NUMBER = 1.0 + step / 10
        torch.testing.assert_close(call(x), torch.stack([member(x) for member in members]))


def test_copies_follow_too():
    kind = make("a number in a global")
    call, members, _ = by_compile(kind.read)
    x = torch.randn(2, 3)
    clone = copy.deepcopy(call.__self__)
    kind.change()
    torch.testing.assert_close(clone.shared(x), torch.stack([member(x) for member in members]))
