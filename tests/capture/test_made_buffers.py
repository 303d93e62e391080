"""Forwards that change their module's structure: buffers that they make are stacked, the rest refused."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import UnsupportedError, WideConfig

CONFIG = WideConfig(tune_seconds=0)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.a, self.b, self.box = nn.Linear(3, 3), nn.Linear(3, 3), nn.Module()
        self.register_buffer("none", None)
        self.register_buffer("tmp", torch.ones(3))


class Registered(Base):
    def forward(self, x):
        y = self.fc(x)
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros(3))
        self.seen = self.seen + y.detach().mean(0)
        return y * 2 + self.seen


class InPlace(Base):
    def forward(self, x):
        y = self.fc(x)
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros(3), persistent=False)
        self.seen += y.detach().mean(0)
        return y * 2 + self.seen


class Once(Base):
    def forward(self, x):
        y = self.fc(x)
        if not hasattr(self, "first"):
            self.register_buffer("first", y.detach().mean(0))
        return y * 2 + self.first


class WasNone(Base):
    def forward(self, x):
        y = self.fc(x)
        if self.none is None:
            self.none = torch.zeros(3)
        self.none = self.none + y.detach().mean(0)
        return y * 2 + self.none


class InTheDictionary(Base):
    def forward(self, x):
        y = self.fc(x)
        self._buffers["seen"] = self._buffers.get("seen", torch.zeros(3)) + y.detach().mean(0)
        return y * 2 + self.seen


class Nested(Base):
    def forward(self, x):
        y = self.fc(x)
        if not hasattr(self.box, "seen"):
            self.box.register_buffer("seen", torch.zeros(3))
        self.box.seen = self.box.seen + y.detach().mean(0)
        return y * 2 + self.box.seen


class OnlyInTraining(Base):
    def forward(self, x):
        y = self.fc(x)
        if self.training and not hasattr(self, "seen"):
            self.register_buffer("seen", y.detach().mean(0))
        return y + self.seen if hasattr(self, "seen") else y


class WithoutTensors(Base):
    def forward(self, x):
        if not hasattr(self, "act"):
            self.act = nn.Tanh()
        return self.act(self.fc(x))


MAKING = [Registered, InPlace, Once, WasNone, InTheDictionary, Nested, OnlyInTraining, WithoutTensors]


@pytest.mark.parametrize("kind", MAKING)
@pytest.mark.parametrize("training", [True, False])
def test_made_in_the_first_call(kind, training):
    models = [kind().double().train(training) for _ in range(3)]
    alone = copy.deepcopy(models)
    wide = wide_compiler.compile(models, torch.randn(2, 4).double(), config=CONFIG)
    for batch in (5, 5, 6, 5):
        x = torch.randn(batch, 4).double()
        torch.testing.assert_close(wide.shared(x), torch.stack([model(x) for model in alone]))
    for lane, model in enumerate(alone):
        assert wide.lane(lane).state_dict().keys() == model.state_dict().keys()
        torch.testing.assert_close(dict(wide.lane(lane).named_buffers()), dict(model.named_buffers()))
    assert wide.state_dict().keys() == alone[0].state_dict().keys()
    assert wide.explain(measure=False).coverage == 1.0


def test_made_once_training_begins():
    models = [OnlyInTraining().double().eval() for _ in range(3)]
    alone = copy.deepcopy(models)
    wide = wide_compiler.compile(models, torch.randn(2, 4).double(), config=CONFIG)
    for mode in (False, True, False, True):
        x = torch.randn(5, 4).double()
        expected = torch.stack([model.train(mode)(x) for model in alone])
        torch.testing.assert_close(wide.train(mode).shared(x), expected)


def test_copies_and_files_have_what_was_made(tmp_path):
    models = [Registered().double() for _ in range(3)]
    alone = copy.deepcopy(models)
    wide = wide_compiler.compile(models, torch.randn(2, 4).double(), config=CONFIG)
    x = torch.randn(5, 4).double()
    wide.shared(x), [model(x) for model in alone]
    again = copy.deepcopy(wide)
    wide.save(tmp_path / "all.safetensors")
    expected = torch.stack([model(x) for model in alone])
    torch.testing.assert_close(wide.shared(x), expected)
    torch.testing.assert_close(again.shared(x), expected)
    wide.load(tmp_path / "all.safetensors")
    torch.testing.assert_close(wide.shared(x), expected)
    wide.select_lanes([2, 0])
    torch.testing.assert_close(wide.shared(x), torch.stack([alone[2](x), alone[0](x)]))


class Parameter(Base):
    def forward(self, x):
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(3))
        return self.fc(x) * self.scale


class Module(Base):
    def forward(self, x):
        if not hasattr(self, "norm"):
            self.norm = nn.BatchNorm1d(3, affine=False)
        return self.norm(self.fc(x))


class Removed(Base):
    def forward(self, x):
        y = self.fc(x)
        if hasattr(self, "tmp"):
            y = y + self.tmp
            del self.tmp
        return y


class SetToNone(Base):
    def forward(self, x):
        y = self.fc(x)
        if self.tmp is not None:
            y, self.tmp = y + self.tmp, None
        return y


class Swapped(Base):
    def forward(self, x):
        y = self.a(self.fc(x))
        self.a, self.b = self.b, self.a
        return y


class OfAWeight(Base):
    def forward(self, x):
        if not hasattr(self, "mine"):
            self.register_buffer("mine", self.fc.bias.detach())
        return self.fc(x) + self.mine


REFUSED = {
    Parameter: "the forward makes the parameter scale",
    Module: "the forward makes the module norm",
    Removed: "the forward removes the buffer tmp",
    SetToNone: "the forward removes the buffer tmp",
    Swapped: "the forward replaces the module a",
    OfAWeight: "the forward makes the buffer mine of another tensor's memory",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_changes_are_refused_at_every_call(kind):
    wide = wide_compiler.compile([kind() for _ in range(3)], torch.randn(2, 4), config=CONFIG)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=REFUSED[kind]):
            wide.shared(torch.randn(5, 4))


def test_lanes_that_make_buffers_of_other_shapes():
    class Sized(Base):
        def __init__(self, size):
            super().__init__()
            self.size = size

        def forward(self, x):
            if not hasattr(self, "noise"):
                self.register_buffer("noise", torch.zeros(self.size))
            return self.fc(x) + self.noise.sum()

    wide = wide_compiler.compile([Sized(2), Sized(3)], torch.randn(2, 4), config=CONFIG)
    with pytest.raises(UnsupportedError, match="the forward makes the buffer noise in 2 of 2 lanes"):
        wide.shared(torch.randn(5, 4))
