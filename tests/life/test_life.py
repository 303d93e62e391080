"""The life itself: ordinary models live it on the fast path, and what is wrong is found and named."""

import pytest
import torch
from torch import nn

import wide_compiler
from life_oracle import FEATURES, inputs, live, looped
from wide_compiler import ValidationError, oracle


def mlp():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2))


def with_norms():
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)
    )


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.into, self.back = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.back.weight = self.into.weight

    def forward(self, x):
        return self.back(self.into(x).tanh())


@pytest.mark.parametrize("make", [mlp, with_norms, Tied])
def test_ordinary_models_live_as_the_lane_graph(make):
    life = live(make)
    assert life.coverage == 1.0 and not looped(life)


def test_single_precision_is_turned_to_double():
    torch.manual_seed(0)
    models = [mlp() for _ in range(2)]
    batches = [[((torch.randn(3, FEATURES),), {}) for _ in models] for _ in range(2)]
    life = oracle.life(models, wide_compiler.compile(models, batches[0][0][0]), batches)
    assert life["eval in single precision"].report.worst < 1e-5 and life["eval"].report.worst < 1e-12


def test_a_shared_trunk_gathers_the_gradients_of_all_lanes():
    trunk = nn.Linear(FEATURES, 8)
    life = live(lambda: nn.Sequential(trunk, nn.Tanh(), nn.Linear(8, 2)))
    assert life.coverage == 1.0


def wrong_lane(wide):
    with torch.no_grad():
        wide.tensors()["0.weight"][1, 0, 0] += 1e-6


def wrong_buffer(wide):
    wide.tensors()["1.running_mean"][2] += 1e-6


def wrong_flags(wide):
    wide.train()
    wide.eval = wide.train = lambda *mode: wide


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (wrong_lane, r"phase 'eval': lane 1: output"),
        (wrong_buffer, r"phase 'eval': lane 2: output"),
        (wrong_flags, r"phase 'eval': lane 0: output"),
    ],
)
def test_the_first_difference_is_named(spoil, found):
    torch.manual_seed(0)
    models = [with_norms().double().eval() for _ in range(3)]
    batches = [[((inputs(3),), {}) for _ in models] for _ in range(2)]
    wide = wide_compiler.compile(models, batches[0][0][0])
    spoil(wide)
    with pytest.raises(ValidationError, match=found):
        oracle.life(models, wide, batches)


def test_an_exception_says_in_which_phase():
    class Fails(nn.Linear):
        def forward(self, x):
            if self.training:
                raise RuntimeError("no training today")
            return super().forward(x)

    with pytest.raises(RuntimeError, match="no training today") as caught:
        live(lambda: Fails(FEATURES, 2))
    assert caught.value.__notes__ == ["phase 'train' of the model's life"]


def test_members_that_do_not_survive_another_precision_are_let_off():
    class Doubled(nn.Linear):
        def __init__(self):
            super().__init__(FEATURES, 2)
            self.mix = torch.eye(FEATURES, dtype=torch.float64)

        def forward(self, x):
            return super().forward(x @ self.mix)

    life = live(Doubled)
    assert life["to single precision"].report.note.startswith(
        "not compared: a member alone fails: RuntimeError"
    )
