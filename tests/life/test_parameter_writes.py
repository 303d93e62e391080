"""Members whose forward writes their parameters: the stacked parameter follows, as training goes on."""

import pytest
import torch
from torch import nn

import wide_compiler
from life_oracle import FEATURES, inputs, live


class Looped(nn.Linear):
    """A Python number that moves: the members run as Python, whatever else the forward does."""

    def __init__(self):
        super().__init__(FEATURES, FEATURES)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.renormalise()
        return super().forward(x)


class MaxNormData(Looped):
    """`weight.data = ...`: other memory under the same parameter."""

    def renormalise(self):
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.5)


class MaxNormInPlace(Looped):
    def renormalise(self):
        with torch.no_grad():
            self.weight.renorm_(2, 0, 0.5)


class MaxNormThroughData(Looped):
    def renormalise(self):
        self.weight.data.renorm_(2, 0, 0.5)


class MaxNormCopied(Looped):
    def renormalise(self):
        with torch.no_grad():
            self.weight.copy_(torch.renorm(self.weight, 2, 0, 0.5))


class UsedBeforeAndAfter(Looped):
    """The backward pass needs the numbers from before as well."""

    def forward(self, x):
        before = super(Looped, self).forward(x)
        self.calls += 1
        self.weight.data = self.weight.data * 0.5
        return before.tanh() @ self.weight


class SomeLanesOnly(Looped):
    """Each lane decides by its own numbers."""

    def renormalise(self):
        if self.weight.norm() > 1.2:
            self.weight.data = self.weight.data * (1.2 / self.weight.norm())


WRITERS = [MaxNormData, MaxNormInPlace, MaxNormThroughData, MaxNormCopied, UsedBeforeAndAfter, SomeLanesOnly]


def stack(make):
    return lambda: nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), make(), nn.Tanh(), make())


@pytest.mark.parametrize("make", WRITERS)
def test_weights_written_in_the_forward(make):
    life = live(make)
    assert all(phase.why for phase in life.phases)


@pytest.mark.parametrize("make", WRITERS[:2])
def test_weights_written_in_some_layers(make):
    live(stack(make))


class Rescaled(nn.Module):
    """As RWKV: weights divided for inference and multiplied again for training, once for each change."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(2))
        self.rescaled = False

    def forward(self, x):
        if self.rescaled == self.training:
            with torch.no_grad():
                for depth, layer in enumerate(self.layers):
                    (layer.weight.mul_ if self.training else layer.weight.div_)(2**depth)
            self.rescaled = not self.training
        for depth, layer in enumerate(self.layers):
            x = layer(x) if self.training else layer(x) * 2**depth
        return x


def test_weights_rescaled_when_the_mode_changes():
    live(Rescaled)


class TiedWriter(nn.Module):
    """One weight under two names, written under the second."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.b.weight = self.a.weight
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        assert self.a.weight is self.b.weight and isinstance(self.a.weight, nn.Parameter)
        self.b.weight.data = self.b.weight.data.clamp(-0.3, 0.3)
        return self.b(self.a(x).tanh())


def test_tied_weights_written_in_the_forward():
    live(TiedWriter)


class TiedBuffers(nn.Module):
    """One buffer under two names, written under the first."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.child = nn.Linear(FEATURES, FEATURES)
        self.child.register_buffer("seen", self.count)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.count += 1
        return self.child(x) * self.child.seen


def test_tied_buffers_written_in_the_forward():
    live(TiedBuffers)


def test_another_shape_is_refused():
    class Grows(Looped):
        def renormalise(self):
            if self.calls > 1:
                self.weight.data, self.bias.data = self.weight.data[:2], self.bias.data[:2]

    models = [Grows().double() for _ in range(2)]
    wide = wide_compiler.compile(models, inputs(3))
    wide.shared(inputs(3))
    with pytest.raises(wide_compiler.UnsupportedError, match=r"lane 0: .*weight.*\(2, 4\)"):
        wide.shared(inputs(3))


def test_the_original_models_follow_as_views():
    models = [MaxNormData().double() for _ in range(2)]
    wide = wide_compiler.compile(models, inputs(3), views=True)
    wide.shared(inputs(3))
    for lane, model in enumerate(models):
        assert torch.equal(model.weight, wide.tensors()["weight"][lane])
        assert model.weight.data_ptr() == wide.tensors()["weight"][lane].data_ptr()


class Decays(nn.Linear):
    """Branches on its numbers, so that export keeps it whole."""

    def forward(self, x):
        if self.weight.norm().item() > 0.3:
            self.decay()
        return super().forward(x)


class DecaysInPlace(Decays):
    def decay(self):
        with torch.no_grad():
            self.weight.mul_(0.9)


class DecaysThroughData(Decays):
    def decay(self):
        self.weight.data.mul_(0.9)


class DecaysWithOtherMemory(Decays):
    def decay(self):
        self.weight.data = self.weight.data * 0.9


@pytest.mark.parametrize("make", [DecaysInPlace, DecaysThroughData, DecaysWithOtherMemory])
def test_a_layer_kept_whole_that_writes_its_weight(make):
    layers = nn.Linear, make, nn.Linear
    life = live(lambda: nn.Sequential(*(layer(FEATURES, FEATURES) for layer in layers)))
    assert "1.weight" in life["eval"].why


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_renormalise_their_rows(kind):
    life = live(
        lambda: nn.Sequential(kind(6, FEATURES, max_norm=0.7), nn.Linear(FEATURES, 2)),
        make_inputs=lambda batch: torch.randint(0, 6, (batch, 5)),
    )
    assert not any(phase.why for phase in life.phases)
