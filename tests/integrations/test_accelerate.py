"""Hugging Face Accelerate takes a wide model as it is."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wide_compiler
from wide_compiler.training import AdamW, clip_lane_norms_, lane_losses

accelerate = pytest.importorskip("accelerate")
N = 3
RATES = [1e-3, 1e-2, 3e-2]


@pytest.fixture
def accelerator(request):
    wide_compiler.signals.shutdown()  # while workers run, calls of all modules pass a hook
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(cpu=True, **getattr(request, "param", {}))
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def make_models():
    torch.manual_seed(1)
    return [
        nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double()
        for _ in range(N)
    ]


def batches(size=22):
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return DataLoader(TensorDataset(x, x[:, :2].sin()), 6)


def prepared(accelerator, models, make=lambda p: AdamW(p, lr=RATES), data=None):
    wide = wide_compiler.compile(
        copy.deepcopy(models),
        torch.randn(2, 4).double() if data is None else data,
        config=wide_compiler.WideConfig(tune_seconds=0),
    )
    optimizer = make(wide.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8)
    return accelerator.prepare(wide, optimizer, batches(), scheduler)


def train(accelerator, wide, optimizer, loader, scheduler, epochs=2):
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(wide):
                losses = lane_losses.mse(wide.shared(x), y)
                accelerator.backward(losses.sum())
                if accelerator.sync_gradients:
                    clip_lane_norms_(wide.parameters(), 0.05)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


@pytest.mark.parametrize(
    "accelerator", [{}, {"gradient_accumulation_steps": 2}], indirect=True, ids=["plain", "accumulated"]
)
def test_every_lane_is_trained_as_alone(accelerator):
    models = make_models()
    wide, optimizer, loader, scheduler = prepared(accelerator, models)
    train(accelerator, wide, optimizer, loader, scheduler)
    every = accelerator.gradient_accumulation_steps
    for lane, model in enumerate(models):
        own = torch.optim.AdamW(model.parameters(), RATES[lane])
        schedule = torch.optim.lr_scheduler.StepLR(own, 2, 0.8)
        for _ in range(2):
            for index, (x, y) in enumerate(batches()):
                (nn.functional.mse_loss(model(x), y) / every).backward()
                if (index + 1) % every == 0 or index + 1 == len(batches()):
                    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                    own.step()
                    schedule.step()
                    own.zero_grad()
        for name, value in model.state_dict().items():
            got = wide.lane(lane).state_dict()[name]
            torch.testing.assert_close(got, value, rtol=1e-9, atol=1e-9, msg=f"lane {lane}: {name}")
    assert accelerator.unwrap_model(wide).explain(measure=False).coverage == 1.0


def test_save_and_load_state(accelerator, tmp_path):
    parts = prepared(accelerator, make_models())
    train(accelerator, *parts, epochs=1)
    accelerator.save_state(str(tmp_path))
    train(accelerator, *parts, epochs=1)
    expected = copy.deepcopy(parts[0].state_dict())
    train(accelerator, *parts, epochs=1)
    accelerator.load_state(str(tmp_path))
    train(accelerator, *parts, epochs=1)
    for name, value in expected.items():
        assert value.equal(parts[0].state_dict()[name]), name


@pytest.mark.parametrize("accelerator", [{"mixed_precision": "bf16"}], indirect=True)
def test_mixed_precision(accelerator):
    models = [m.float() for m in make_models()]
    wide, optimizer, _, _ = prepared(accelerator, models, data=torch.randn(2, 4))
    x = torch.randn(5, 4)
    with accelerator.autocast():
        out = wide.shared(x)
    assert out.dtype == torch.bfloat16
    accelerator.backward(out.square().mean((1, 2)).sum())
    optimizer.step()
    # Its own door, that of `forward`, is autocast by `prepare` and gives float32 back.
    packed = wide(wide_compiler.pack([x] * N))
    assert packed.dtype == torch.float32 and packed.shape == (5, N * 2)
