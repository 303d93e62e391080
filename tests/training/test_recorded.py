"""Per-lane optimisers inside a recorded training step (on a CPU the same step runs plainly)."""

import pytest
import torch

from training.loops import Both, LionReference, N
from wide_compiler import WideConfig
from wide_compiler.training import SGD, Adagrad, Adam, AdamW, Lion, Population, RMSprop, TrainStep

QUICK = WideConfig(compile=True, backend="eager", tune_seconds=0.05)
LRS = [1e-4 * 2**i for i in range(N)]
BETAS = [0.8 + 0.02 * i for i in range(N)]
CASES = {
    "sgd": (SGD, {"lr": LRS, "momentum": BETAS, "weight_decay": BETAS}),
    "sgd numbers": (SGD, {"lr": 1e-2, "momentum": 0.9}),
    "adam": (Adam, {"lr": LRS, "betas": (BETAS, 0.999), "weight_decay": BETAS}),
    "adamw": (AdamW, {"lr": LRS, "weight_decay": BETAS}),
    "adamw numbers": (AdamW, {"lr": 1e-2}),
    "rmsprop": (RMSprop, {"lr": LRS, "alpha": BETAS, "momentum": 0.5}),
    "adagrad": (Adagrad, {"lr": LRS, "lr_decay": 0.1}),
    "lion": (Lion, {"lr": LRS, "betas": (BETAS, 0.99)}),
}


def lane_loss(y, target):
    return (y - target).square().mean((1, 2))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))


def run(both, step, count):
    """The loop takes the same steps."""
    for _ in range(count):
        x, y = both.batch()
        step(x, y)
        for model, optimizer, a, b in zip(both.models, both.own, x, y, strict=True):
            optimizer.zero_grad()
            (model(a) - b).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize("case", [case for case in CASES if case != "lion"])
def test_a_schedule_moves_on_inside_one_recording(case, device):
    ours, options = CASES[case]
    both = Both(ours, getattr(torch.optim, ours.__name__), options, config=QUICK, device=device)
    step = TrainStep(both.wide, both.optimizer, lane_loss)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (both.optimizer, *both.own)]
    for _ in range(8):
        run(both, step, 1)
        for scheduler in schedulers:
            scheduler.step()
    both.check()
    if device == "cuda":
        assert step.why == ""
        assert len(step.recordings) == 1 and step.recordings[0].whole
        assert step.recordings[0].guard.holds(*_arguments(both))


def _arguments(both):
    x, y = both.batch()
    return (x,), (y,)


@pytest.mark.parametrize("case", CASES)
def test_masks_copies_and_new_settings_between_recorded_steps(case, device):
    ours, options = CASES[case]
    stock = LionReference if ours is Lion else getattr(torch.optim, ours.__name__)
    both = Both(ours, stock, options, config=QUICK, device=device)
    population = Population(both.wide, both.optimizer)
    step = TrainStep(both.wide, both.optimizer, lane_loss)
    x, y = both.batch()
    for _ in range(5):
        step(x, y)
    population.mask([2])
    before = {name: t.clone() for name, t in both.wide.state_dict().items()}
    for _ in range(5):
        step(x, y)
    now = both.wide.state_dict()
    for name in before:
        assert torch.equal(before[name][2], now[name][2]), name
        assert not torch.equal(before[name][3], now[name][3]), name
    population.unmask()
    population.copy(0, 5)
    for _ in range(5):
        step(x[:1].expand_as(x), y[:1].expand_as(y))
    for name, tensor in both.wide.state_dict().items():
        torch.testing.assert_close(tensor[0], tensor[5], msg=name)
    if device == "cuda":
        assert step.why == "" and step.recordings
