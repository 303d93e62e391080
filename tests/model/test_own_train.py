"""Members whose own `train` or `eval` computes with tensors: each lane is what its member would be."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from wide_compiler import UnsupportedError, WideConfig

CONFIG = WideConfig(tune_seconds=0)


class Merged(nn.Linear):
    """As LoRA layers: in evaluation the adapter is part of the weight."""

    def __init__(self):
        super().__init__(4, 3)
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(3, 2))
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.merged:
            sign = -1 if mode else 1
            self.weight.data += sign * (self.up @ self.down)
            self.merged = not mode
        return self

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias)
        return y if self.merged else y + x @ self.down.T @ self.up.T


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("average", torch.zeros(3, 4))
        self.cache, self.kept, self.calls = None, {}, 0


class CacheInAttribute(Layer):
    def train(self, mode=True):
        super().train(mode)
        self.cache = None if mode else self.fc.weight.detach() * 2
        return self

    def forward(self, x):
        return self.fc(x) if self.cache is None else x @ self.cache.T


class CacheInBuffer(Layer):
    def train(self, mode=True):
        super().train(mode)
        if mode:
            self._buffers.pop("doubled", None)
        else:
            self.register_buffer("doubled", self.fc.weight.detach() * 2)
        return self

    def forward(self, x):
        return x @ self.doubled.T if "doubled" in self._buffers else self.fc(x)


class CacheInDict(Layer):
    def train(self, mode=True):
        super().train(mode)
        self.kept.clear()
        if not mode:
            self.kept["weight"] = self.fc.weight.detach() * 2
        return self

    def forward(self, x):
        return x @ self.kept["weight"].T if self.kept else self.fc(x)


class Average(Layer):
    def train(self, mode=True):
        super().train(mode)
        if not mode:
            self.average.lerp_(self.fc.weight.detach(), 0.5)
        return self

    def forward(self, x):
        return self.fc(x) if self.training else x @ self.average.T


class Frozen(Layer):
    def train(self, mode=True):
        super().train(mode)
        self.fc.weight.requires_grad_(self.calls < 2)
        self.calls += 1
        return self

    def forward(self, x):
        return self.fc(x)


class Counts(Layer):
    """Changes Python only, also where the mode is what it was."""

    def train(self, mode=True):
        self.calls += 1
        return super().train(mode)

    def forward(self, x):
        return self.fc(x) * self.calls


class OwnEval(Layer):
    def eval(self):
        self.average.copy_(self.fc.weight.detach())
        return super().eval()

    def forward(self, x):
        return self.fc(x) + x @ self.average.T


KINDS = [Merged, CacheInAttribute, CacheInBuffer, CacheInDict, Average, Frozen, Counts, OwnEval]


def inside(kind):
    return nn.Sequential(nn.Linear(4, 4), kind())


def switch(module, training):
    return module.train() if training else module.eval()


@pytest.mark.parametrize("make", [lambda kind: kind(), inside], ids=["itself", "inside"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_life_of_both_modes(kind, make):
    models = [make(kind).double() for _ in range(3)]
    alone = copy.deepcopy(models)
    wide = wide_compiler.compile(models, torch.randn(2, 4).double(), config=CONFIG)
    optimizer = torch.optim.SGD(wide.parameters(), lr=0.1, momentum=0.9)
    theirs = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in alone]
    for training in (True, False, False, True, True, False):
        switch(wide, training), [switch(model, training) for model in alone]
        x = torch.randn(5, 4).double()
        out = wide.shared(x)
        torch.testing.assert_close(out, torch.stack([model(x) for model in alone]))
        if training:
            optimizer.zero_grad()
            wide.shared(x).square().mean((1, 2)).sum().backward()
            optimizer.step()
            for model, own in zip(alone, theirs, strict=True):
                own.zero_grad()
                model(x).square().mean().backward()
                own.step()
    for lane, model in enumerate(alone):
        torch.testing.assert_close(wide.lane(lane).state_dict(), model.state_dict())
    torch.testing.assert_close(copy.deepcopy(wide).shared(x), torch.stack([model(x) for model in alone]))


def test_a_trunk_that_all_lanes_share():
    trunk = Merged().double()
    models = [nn.Sequential(trunk, nn.Linear(3, 2).double()) for _ in range(3)]
    alone = copy.deepcopy(models)
    wide = wide_compiler.compile(models, torch.randn(2, 4).double(), config=CONFIG)
    before = trunk.weight.clone()
    for training in (False, True, False):
        wide.train(training), [model.train(training) for model in alone]
        x = torch.randn(5, 4).double()
        torch.testing.assert_close(wide.shared(x), torch.stack([model(x) for model in alone]))
    assert torch.equal(trunk.weight, before)  # the user's own model is left alone


class Fused(Layer):
    """As reparametrised convolutions: evaluation has other modules."""

    def train(self, mode=True):
        super().train(mode)
        if not mode and hasattr(self, "fc"):
            self.fused = nn.Linear(4, 3)
            self.fused.load_state_dict(self.fc.state_dict())
            del self.fc
        return self

    def forward(self, x):
        return self.fused(x) if hasattr(self, "fused") else self.fc(x)


def test_other_modules_are_refused_and_nothing_has_changed():
    models = [Fused() for _ in range(3)]
    alone = copy.deepcopy(models)
    wide = wide_compiler.compile(models, torch.randn(2, 4), config=CONFIG)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"removes the module fc.*call it on the members"):
            wide.eval()
    x = torch.randn(5, 4)
    torch.testing.assert_close(wide.shared(x), torch.stack([model(x) for model in alone]))
    wide = wide_compiler.compile([model.eval() for model in models], torch.randn(2, 4), config=CONFIG)
    torch.testing.assert_close(wide.eval().shared(x), torch.stack([model.eval()(x) for model in alone]))


def test_a_submodule_alone_is_refused():
    wide = wide_compiler.compile([inside(Merged) for _ in range(2)], torch.randn(2, 4), config=CONFIG)
    with pytest.raises(UnsupportedError, match="1: the members' own train"):
        wide.get_submodule("1").eval()
    wide.eval().get_submodule("1").eval()  # merged already: nothing to compute
