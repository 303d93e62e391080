"""Under a Lightning Trainer every lane is what a plain training of it alone is."""

import copy
import logging
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wide_compiler
from wide_compiler.training import AdamW, evaluate, lane_losses

lightning = pytest.importorskip("lightning")
from wide_compiler.integrations.lightning import WideLightningModule  # noqa: E402

N = 3
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
RATES = [1e-3, 1e-2, 3e-2]


@pytest.fixture(autouse=True)
def _no_advice():
    """Lightning recommends more data workers and the like."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make_models():
    torch.manual_seed(1)
    return [
        nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double()
        for _ in range(N)
    ]


def batches(size=22, seed=0):
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return DataLoader(TensorDataset(x, x[:, :2].sin()), 6)


def trainer(folder, **options):
    return lightning.Trainer(
        **{
            "max_epochs": 3,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": folder,
            **options,
        }
    )


def make_module(models, **options):
    wide = wide_compiler.compile(
        copy.deepcopy(models), torch.randn(2, 4).double(), config=wide_compiler.WideConfig(tune_seconds=0)
    )
    return WideLightningModule(wide, lane_losses.mse, lambda p: AdamW(p, lr=RATES), **options)


def scheduler(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8)


def alone(model, rate, data, clip=None, accumulate=1):
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    schedule = scheduler(optimizer)
    for _ in range(3):
        for index, (x, y) in enumerate(data):
            (nn.functional.mse_loss(model(x), y) / accumulate).backward()
            if (index + 1) % accumulate and index + 1 < len(data):
                continue
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()


@pytest.mark.parametrize("clip, accumulate", [(None, 1), (0.05, 1), (0.05, 2)])
def test_every_lane_is_trained_as_alone(tmp_path, clip, accumulate):
    models = make_models()
    module = make_module(models, scheduler=scheduler)
    run = trainer(tmp_path, gradient_clip_val=clip, accumulate_grad_batches=accumulate)
    run.fit(module, batches(), batches(9, seed=3))
    for lane, model in enumerate(models):
        alone(model, RATES[lane], batches(), clip, accumulate)
        for name, value in model.state_dict().items():
            got = module.wide.lane(lane).state_dict()[name]
            torch.testing.assert_close(got, value, rtol=1e-9, atol=1e-9, msg=f"lane {lane}: {name}")
    assert module.wide.explain(measure=False).coverage == 1.0
    expected = evaluate(module.wide, lane_losses.mse, batches(9, seed=3))
    torch.testing.assert_close(module.lane_validation.cpu(), expected)
    logged = run.callback_metrics
    assert float(logged["val_loss_best"]) == pytest.approx(float(expected.min()), rel=1e-5)
    assert {
        f"{kind}_loss_{which}" for kind in ("train", "val") for which in ("best", "median", "worst")
    } <= set(logged)


def test_batches_with_lanes(tmp_path):
    models = make_models()
    module = make_module(models, stacked=True)
    stacked = [wide_compiler.stack([list(batches(seed=lane))[i] for lane in range(N)]) for i in range(4)]
    trainer(tmp_path, max_epochs=1).fit(module, DataLoader(stacked, batch_size=None))
    assert module.lane_losses.shape == (N,)
    wrong = [wide_compiler.stack([batch] * 2) for batch in batches()]
    with pytest.raises(wide_compiler.InputError, match="expected 3 lanes on axis 0"):
        trainer(tmp_path, max_epochs=1).fit(module, DataLoader(wrong, batch_size=None))


def test_checkpoint_and_resume(tmp_path):
    straight = make_module(make_models(), scheduler=scheduler)
    trainer(tmp_path).fit(straight, batches())
    first = make_module(make_models(), scheduler=scheduler)
    run = trainer(tmp_path, max_epochs=1)
    run.fit(first, batches())
    run.save_checkpoint(tmp_path / "one.ckpt")
    second = make_module(make_models(), scheduler=scheduler)
    trainer(tmp_path).fit(second, batches(), ckpt_path=tmp_path / "one.ckpt", weights_only=False)
    for name, value in straight.wide.state_dict().items():
        assert value.equal(second.wide.state_dict()[name]), name


def test_bf16(tmp_path):
    models = [m.float() for m in make_models()]
    wide = wide_compiler.compile(models, torch.randn(2, 4), config=wide_compiler.WideConfig(tune_seconds=0))
    seen = []
    module = WideLightningModule(
        wide, lambda y, t: seen.append(y.dtype) or lane_losses.mse(y, t), lambda p: AdamW(p, lr=RATES)
    )
    data = [(x.float(), y.float()) for x, y in batches()]
    trainer(tmp_path, precision="bf16-mixed", max_epochs=1).fit(module, DataLoader(data, batch_size=None))
    assert set(seen) == {torch.bfloat16}


def test_a_loss_that_is_not_per_lane(tmp_path):
    module = make_module(make_models())
    module.loss = lambda y, t: (y - t).square().mean()
    with pytest.raises(ValueError, match=r"one loss per lane \[3\]"):
        trainer(tmp_path).fit(module, batches())
    with pytest.raises(ValueError, match="schedule"):
        make_module(make_models(), schedule="batch")


def test_without_lightning_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "wide_compiler.integrations.lightning")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'wide_compiler\[lightning\]'"):
        import wide_compiler.integrations.lightning  # noqa: F401
