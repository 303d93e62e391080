"""An interrupted training goes on as if nothing had been: bit for bit, wherever it was interrupted."""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import wide_compiler
from nightly import count, one_of
from training.fits import N, adam, everything, lane_loss, loader, make_models, make_set, make_wide, same_bits
from wide_compiler.training import EarlyStop, LaneSchedulers, PerLane, Population, fit, fold_batches

Plateau = torch.optim.lr_scheduler.ReduceLROnPlateau


def lane_adam(parameters):
    return wide_compiler.training.Adam(parameters, 1e-2)


class Noisy(torch.utils.data.Dataset):
    """Draws from the global generator whenever a sample is read."""

    def __init__(self, size=20):
        self.x, self.y = make_set(size).tensors

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(6, dtype=torch.float64), self.y[i]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Noisy())


def no_options(optimizer):
    return {}


CASES = {
    "global order": (lambda: DataLoader(make_set(), 6, shuffle=True), no_options),
    "own generator": (loader, no_options),
    "random samples": (lambda: DataLoader(Noisy(), 6, shuffle=True), no_options),
    "a stream": (lambda: DataLoader(Stream(), 6), no_options),
    "workers": (lambda: DataLoader(Noisy(), 6, shuffle=True, num_workers=1), no_options),
    "own data": (lambda: PerLane([loader(seed=lane) for lane in range(N)]), no_options),
    "folds": (lambda: fold_batches(make_set(23), N, batch_size=6)[0], no_options),
    "accumulate": (loader, lambda o: {"accumulate": 3}),
    "schedule": (loader, lambda o: {"scheduler": torch.optim.lr_scheduler.MultiStepLR(o, [2, 5])}),
    "one cycle": (loader, lambda o: {"scheduler": torch.optim.lr_scheduler.OneCycleLR(o, 0.02, 12)}),
    "by epoch": (
        loader,
        lambda o: {"scheduler": torch.optim.lr_scheduler.StepLR(o, 1, 0.5), "schedule": "epoch"},
    ),
    "early stop": (
        loader,
        lambda o: {
            "validation": [make_set(7, seed=5).tensors],
            "early_stop": EarlyStop(1, min_delta=0.01),
            "validate_every": 3,
        },
    ),
    "training loss": (loader, lambda o: {"early_stop": EarlyStop(1, min_delta=0.05)}),
    "plateau by lane": (
        loader,
        lambda o: {
            "scheduler": LaneSchedulers(o, lambda own, lane: Plateau(own, factor=0.5, patience=lane)),
            "schedule": "validation",
            "validation": [make_set(7, seed=5).tensors],
            "validate_every": 1,
        },
    ),
    "by hand": (loader, no_options),
    "clip": (loader, lambda o: {"clip": 0.1}),
}


class Killed(Exception):
    pass


def train(folder, case, kill_at=None, lane_seeds=False, make=adam, resume="auto", population=False):
    data, options = CASES[case]
    wide = make_wide(make_models(dropout=0.3))
    if lane_seeds:
        wide.seed(3)
    optimizer = make(wide.parameters())

    def kill(moment):
        if case == "by hand" and moment.event == "step" and moment.step == 5:
            moment.stop([1], "by hand")
        if moment.event == "step" and moment.step == kill_at:
            raise Killed

    history = fit(
        wide,
        Population(wide, optimizer) if population else optimizer,
        lane_loss,
        data(),
        epochs=3,
        seed=13,
        checkpoint=folder,
        checkpoint_every=2,
        resume=resume,
        callbacks=[kill],
        **options(optimizer),
    )
    return everything(wide, optimizer, history)


def interrupted(folder, case, at, **options):
    for step in at:
        with pytest.raises(Killed):
            train(folder, case, kill_at=step, **options)
        torch.manual_seed(step)  # what another process would begin with
    return train(folder, case, **options)


@pytest.mark.parametrize("case", one_of(2, CASES))
def test_resumed_is_uninterrupted(tmp_path, case):
    make = lane_adam if case == "plateau by lane" else adam
    straight = train(tmp_path / "straight", case, make=make)
    at = (3, 4) if case == "accumulate" else (3, 7)
    assert same_bits(interrupted(tmp_path / "killed", case, at, make=make), straight) == []
    assert len(straight["losses"]) > at[-1]
    assert ("stopped at" in straight["stopped"]) == (case in ("early stop", "training loss", "by hand"))


def test_resumed_with_a_seed_for_each_lane(tmp_path):
    straight = train(tmp_path / "a", "global order", lane_seeds=True)
    assert same_bits(interrupted(tmp_path / "b", "global order", (5,), lane_seeds=True), straight) == []
    assert not straight["losses"].equal(train(tmp_path / "c", "global order")["losses"])


@pytest.mark.parametrize("name", one_of(3, ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion"]))
def test_resumed_with_settings_by_lane(tmp_path, name):
    def make(parameters):
        rates = [1e-3 * (lane + 1) for lane in range(N)]
        return getattr(wide_compiler.training, name)(parameters, lr=rates)

    straight = train(tmp_path / "a", "by hand", make=make)
    assert same_bits(interrupted(tmp_path / "b", "by hand", (4, 7), make=make), straight) == []
    assert "lane 1 stopped at step 5: by hand" in straight["stopped"]


def test_resumed_with_a_populations_masks(tmp_path):
    straight = train(tmp_path / "a", "by hand", make=lane_adam, population=True)
    resumed = interrupted(tmp_path / "b", "by hand", (4, 7), make=lane_adam, population=True)
    assert same_bits(resumed, straight) == [] and "stopped at" in straight["stopped"]


def test_a_finished_training_gives_its_result_again(tmp_path):
    first = train(tmp_path, "early stop")
    assert same_bits(train(tmp_path, "early stop", resume=True), first) == []


def test_a_finished_training_may_go_on(tmp_path):
    def run(folder, epochs, **options):
        wide = make_wide(make_models())
        optimizer = adam(wide.parameters())
        history = fit(wide, optimizer, lane_loss, loader(), epochs=epochs, checkpoint=folder, **options)
        return everything(wide, optimizer, history)

    run(tmp_path / "a", 2)
    longer = run(tmp_path / "a", 4, resume=True)
    assert same_bits(longer, run(tmp_path / "b", 4)) == []


def test_callbacks_with_a_state(tmp_path):
    class Counter:
        count = 0

        def __call__(self, moment):
            self.count += moment.event == "step"

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    for epochs in (1, 3):
        wide, counter = make_wide(make_models()), Counter()
        options = {"checkpoint": tmp_path, "resume": "auto", "callbacks": [counter]}
        fit(wide, adam(wide.parameters()), lane_loss, loader(), epochs=epochs, **options)
    assert counter.count == 12


# Killed for real.


def child(folder, environment):
    command = [sys.executable, Path(__file__).with_name("killed_fit.py"), folder]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_kill_nine(tmp_path):
    """A process killed at random moments, several times in a row, ends with the bits of one that was not."""
    root = Path(__file__).parents[2]
    paths = [str(root / "src"), str(root / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "WIDE_COMPILER_CACHE": str(tmp_path / "tuning"),
        "OMP_NUM_THREADS": "1",
    }
    # The first process on a busy machine finds answers that a second one may change: after it they stand.
    for run in ("first", "straight"):
        straight = child(tmp_path / run, environment)
        out, _ = straight.communicate()
        assert straight.returncode == 0
    total = sum(line.startswith("step") for line in out.splitlines())
    chance = random.Random(17)
    # The first comes before the first validation, perhaps before the first checkpoint.
    kills = [chance.randrange(1, 6), *sorted(chance.sample(range(11, total), count(1, 4)))]
    seen = []
    for at in kills:
        process = child(tmp_path / "killed", environment)
        for line in process.stdout:
            event, step = line.split()
            if event == "step" and int(step) >= at:
                break
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        assert process.wait() == -signal.SIGKILL
        seen.append(int(rest[-1]) if rest else int(step))
        assert not (tmp_path / "killed.result").exists()
        if at > 10:  # it has trained, validated and saved: from here on the checkpoint says what was measured
            shutil.rmtree(tmp_path / "tuning", ignore_errors=True)
    last = child(tmp_path / "killed", environment)
    out, _ = last.communicate()
    assert last.returncode == 0
    first_step = next(line for line in out.splitlines() if line.startswith("step"))
    assert int(first_step.split()[1]) > 2, "it began from the beginning"
    results = [torch.load(tmp_path / f"{name}.result") for name in ("straight", "killed")]
    assert same_bits(*results) == []
    assert len(results[0]["losses"]) == total and seen == sorted(seen)
    assert results[0]["stopped"].count("stopped at") == N
