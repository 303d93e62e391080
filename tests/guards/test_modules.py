"""Living modules: every change of structure, hooks, flags and tensors is seen, and no other."""

import functools

import pytest
import torch
from torch import nn

from wide_compiler.guards import ModuleGuard, Observer


class Settings:
    def __init__(self):
        self.scale = 1.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act, self.drop = nn.Linear(3, 3), nn.ReLU(), nn.Dropout(0.1)
        self.norm = nn.BatchNorm1d(3)
        self.number, self.word, self.sizes, self.table = 1.5, "a", [1, 2], {"k": 1}
        self.settings, self.plain, self.nothing = Settings(), torch.zeros(2), float("nan")
        self.parts = nn.Identity()
        self.parts.names = ["a"]
        factor = [1.0]
        self.function = lambda x: x * factor[0]
        self.turn = lambda value: factor.__setitem__(0, value)

    def forward(self, x):
        scale = self.number * self.sizes[0] * self.table["k"] * self.settings.scale * len(self.parts.names)
        x = self.function(self.drop(self.act(self.norm(self.fc(x)))) * scale)
        return x if self.word == "a" and self.nothing != 0 else x + self.plain.sum()


def guarded(nets):
    """A guard that rests on what a forward of each has read."""
    guard = ModuleGuard(nets)
    for net in nets:
        observer = Observer([net])
        buffers = [b.clone() for b in net.buffers()]
        observer.run(functools.partial(net, torch.randn(4, 3)))
        for buffer, before in zip(net.buffers(), buffers, strict=True):
            buffer.copy_(before)
        guard.rest_on(observer.reads)
    return guard


def assign(path, value):
    def change(net):
        owner, _, name = path.rpartition(".")
        target = net.get_submodule(owner) if owner != "settings" else net.settings
        setattr(target, name, value)

    return change


SCALE = 1.0


class Settled(Net):
    factor = 2.0

    def forward(self, x):
        return x * self.factor * SCALE


def test_settings_of_classes_and_globals_are_guarded(monkeypatch):
    guard = guarded([Settled()])
    assert guard.holds()
    monkeypatch.setattr(Settled, "factor", 3.0)
    assert not guard.holds()
    monkeypatch.undo()
    assert guard.holds()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert not guard.holds()


CHANGES = {
    "a number": assign("number", 1.6),
    "a word": assign("word", "b"),
    "a rate": assign("drop.p", 0.2),
    "an entry of a list": lambda net: net.sizes.append(3),
    "an entry of a dict": lambda net: net.table.update(k=2),
    "an object's attribute": assign("settings.scale", 2.0),
    "what a function closes over": lambda net: net.turn(2.0),
    "an attribute gone": lambda net: delattr(net, "word"),
    "another forward": assign("forward", lambda x: x),
    "a train flag": lambda net: net.norm.eval(),
    "a child": assign("act", nn.Tanh()),
    "one child more": assign("more", nn.Tanh()),
    "a hook": lambda net: net.act.register_forward_hook(lambda *args: None),
    "a pre-hook": lambda net: net.register_forward_pre_hook(lambda *args: None),
    "a backward hook": lambda net: net.fc.register_full_backward_hook(lambda *args: None),
    "a parameter where there was none": lambda net: net.act.register_parameter(
        "p", nn.Parameter(torch.ones(1))
    ),
    "a buffer where there was none": lambda net: net.act.register_buffer("b", torch.ones(1)),
    "a frozen parameter": lambda net: net.fc.weight.requires_grad_(False),
    "another dtype": lambda net: net.fc.half(),
    "another shape": lambda net: setattr(net.fc.weight, "data", torch.zeros(4, 3)),
    "another table of children": lambda net: vars(net).update(_modules=dict(net._modules, act=nn.Tanh())),
    "an entry of a list in a part": lambda net: net.parts.names.append("b"),
    "a tie": assign("fc.bias", None),
    "a plain tensor of another kind": assign("plain", torch.zeros(3)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_seen(what):
    nets = [Net() for _ in range(3)]
    guard = guarded(nets)
    assert guard.holds() and guard.holds()
    CHANGES[what](nets[1])
    assert not guard.holds()


HARMLESS = {
    "numbers in place": lambda net: net.fc.weight.data.mul_(2),
    "statistics": lambda net: net.norm(torch.randn(4, 3)),
    "another tensor of the kind": assign("fc.weight", nn.Parameter(torch.ones(3, 3))),
    "numbers elsewhere": lambda net: setattr(net.fc.weight, "data", torch.ones(3, 3)),
    "a value set to what it was": assign("number", 1.5),
    "an attribute that no forward reads": assign("fresh", 1),
    "a flag turned and turned back": lambda net: net.eval().train(),
    "a forward": lambda net: net(torch.randn(2, 3)),
    "a gradient": lambda net: net.fc(torch.randn(2, 3)).sum().backward(),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_changes_nothing_is_not_taken_for_a_change(what):
    nets = [Net() for _ in range(3)]
    guard = guarded(nets)
    HARMLESS[what](nets[1])
    assert guard.holds()


def test_the_generation_tells_that_numbers_lie_elsewhere():
    net = Net()
    guard = guarded([net])
    before = guard.generation
    net.fc.weight.data.mul_(2)
    assert guard.holds() and guard.generation == before
    net.fc.weight.data = torch.ones(3, 3)
    assert guard.holds() and guard.generation == before + 1


def test_a_value_set_by_code_that_runs_hot_is_seen():
    net = Net()
    guard = guarded([net])

    def turn(value):  # Python rewrites such a line for speed once it has run a few times
        net.number = value

    for _ in range(50):
        turn(1.6)
        assert not guard.holds()
        turn(1.5)
        assert guard.holds() and guard.holds()
