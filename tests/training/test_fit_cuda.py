"""fit on a CPU and, where there is one, on a GPU: there with a recorded step."""

import pytest
import torch

from training.fits import PLAIN, N, everything, lane_loss, loader, make_models, make_set, make_wide, same_bits
from wide_compiler import WideConfig
from wide_compiler.training import AdamW, EarlyStop, fit
from wide_compiler.training.lane_step import LaneStep

RECORDED = WideConfig(compile=True, backend="eager", tune_seconds=0.05)
RATES = [1e-3 * (lane + 1) for lane in range(N)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path / "tuning"))


@pytest.fixture
def steps(monkeypatch):
    """The steps that fit makes, to look into."""
    made = []
    original = LaneStep.__init__

    def remember(self, *args, **kwargs):
        original(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(LaneStep, "__init__", remember)
    return made


def run(device, folder=None, dropout=0.0, kill_at=None, dtype=torch.float64, **options):
    config = RECORDED if device == "cuda" else PLAIN
    wide = make_wide(make_models(dropout=dropout), config).to(device, dtype)
    optimizer = AdamW(wide.parameters(), lr=RATES)

    def kill(moment):
        if moment.event == "step" and moment.step == kill_at:
            raise KeyboardInterrupt

    options = {"epochs": 6, "clip": 0.5, "seed": 3, "callbacks": [kill], **options}
    if folder is not None:
        options |= {"checkpoint": folder, "checkpoint_every": 5, "resume": "auto"}
    data = loader(size=24)
    history = fit(wide, optimizer, lane_loss, data, validation=[make_set(7, seed=5).tensors], **options)
    return wide, optimizer, history


def test_the_same_training_on_any_device_and_recorded_on_a_gpu(device, steps):
    _, _, history = run(device)
    _, _, expected = run("cpu")
    torch.testing.assert_close(history.losses, expected.losses, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(history.validation, expected.validation, rtol=1e-7, atol=1e-9)
    step = steps[0].recorded
    if device == "cuda":
        assert step.why == "" and step.recordings and step.recordings[0].whole
    else:
        assert step.why and not step.recordings


def test_resumed_is_uninterrupted(device, tmp_path):
    straight = everything(*run(device, tmp_path / "a", dropout=0.3))
    for at in (7, 16):
        with pytest.raises(KeyboardInterrupt):
            run(device, tmp_path / "b", dropout=0.3, kill_at=at)
    assert same_bits(everything(*run(device, tmp_path / "b", dropout=0.3)), straight) == []


def test_a_stopped_lane_leaves_the_others_alone(device, steps):
    def stop(moment):
        if moment.event == "step" and moment.step == 9:
            moment.stop([2], "by hand")

    free, _, _ = run(device)
    wide, _, history = run(device, callbacks=[stop], early_stop=EarlyStop(99, restore=False))
    others = [0, 1, 3]
    assert list(history.stopped) == [2]
    for name, value in free.state_dict().items():
        assert value[others].equal(wide.state_dict()[name][others]), name
        if value.is_floating_point():
            assert not value[2].equal(wide.state_dict()[name][2]), name
    if device == "cuda":
        # One from before, and one that puts back the stopped lane's statistics of the batch norm.
        assert [recording.whole for recording in steps[1].recorded.recordings] == [True, True]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision(device, precision):
    single = {"dtype": torch.float32, "split": lambda batch: (batch[0].float(), (batch[1].float(),))}
    _, _, full = run(device, **single)
    _, _, history = run(device, precision=precision, **single)
    assert not history.nan_lanes and not history.losses.equal(full.losses)
    torch.testing.assert_close(history.losses, full.losses, rtol=0.1, atol=0.05)
