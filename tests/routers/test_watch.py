"""What a forward reads, watched: every change is seen, and no change is seen where there is none."""

import pytest
import torch
from torch import nn

from wide_compiler.routers.watch import Watch


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
        return x


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


def test_settings_of_classes_and_globals_are_watched(monkeypatch):
    watch = Watch([Settled()])
    assert watch.same()
    monkeypatch.setattr(Settled, "factor", 3.0)
    assert not watch.same()
    monkeypatch.undo()
    assert watch.same()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert not watch.same()


CHANGES = {
    "a number": assign("number", 1.6),
    "a word": assign("word", "b"),
    "a rate": assign("drop.p", 0.2),
    "an entry of a list": lambda net: net.sizes.append(3),
    "an entry of a dict": lambda net: net.table.update(k=2),
    "an object's attribute": assign("settings.scale", 2.0),
    "what a function closes over": lambda net: net.turn(2.0),
    "a new attribute": assign("fresh", 1),
    "an attribute gone": lambda net: delattr(net, "word"),
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
    watch = Watch(nets)
    assert watch.same() and watch.same()
    CHANGES[what](nets[1])
    assert not watch.same()


HARMLESS = {
    "numbers in place": lambda net: net.fc.weight.data.mul_(2),
    "statistics": lambda net: net.norm(torch.randn(4, 3)),
    "another tensor of the kind": assign("fc.weight", nn.Parameter(torch.ones(3, 3))),
    "numbers elsewhere": lambda net: setattr(net.fc.weight, "data", torch.ones(3, 3)),
    "a value set to what it was": assign("number", 1.5),
    "a flag turned and turned back": lambda net: net.eval().train(),
    "a forward": lambda net: net(torch.randn(2, 3)),
    "a gradient": lambda net: net.fc(torch.randn(2, 3)).sum().backward(),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_changes_nothing_is_not_taken_for_a_change(what):
    nets = [Net() for _ in range(3)]
    watch = Watch(nets)
    HARMLESS[what](nets[1])
    assert watch.same()


def test_the_generation_tells_that_numbers_lie_elsewhere():
    net = Net()
    watch = Watch([net])
    before = watch.generation
    net.fc.weight.data.mul_(2)
    assert watch.same() and watch.generation == before
    net.fc.weight.data = torch.ones(3, 3)
    assert watch.same() and watch.generation == before + 1


def test_a_value_set_by_code_that_runs_hot_is_seen():
    net = Net()
    watch = Watch([net])

    def turn(value):  # Python rewrites such a line for speed once it has run a few times
        net.number = value

    for _ in range(50):
        turn(1.6)
        assert not watch.same()
        turn(1.5)
        assert watch.same() and watch.same()


def test_one_look_at_tables_that_nobody_has_written_to(monkeypatch):
    net = Net()
    watch = Watch([net])
    monkeypatch.setattr(watch, "_python_same", None)
    for change in (HARMLESS["numbers in place"], HARMLESS["statistics"], HARMLESS["a gradient"]):
        change(net)
        assert watch.same()
