"""Checkpoints are there as a whole or not at all: after a kill, on a full disk, in the wrong model."""

import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from training.fits import adam, lane_loss, loader, make_models, make_wide
from untouched import refused
from wide_compiler import CheckpointError, SaveError
from wide_compiler.training import Checkpoints, fit


def test_the_last_few_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path / "new" / "folder", keep=3)
    assert checkpoints.latest() is None and checkpoints.steps() == []
    for step in (1, 5, 30, 200):
        checkpoints.save(step, {"x": torch.full((3,), float(step))})
    assert checkpoints.steps() == [5, 30, 200]
    assert checkpoints.load(checkpoints.latest())["x"].tolist() == [200.0] * 3
    assert sorted(os.listdir(checkpoints.folder)) == [checkpoints.path(s).name for s in (5, 30, 200)]


def test_what_cannot_be_read(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoints.load(tmp_path / "nothing")
    path = checkpoints.save(1, {"x": torch.zeros(100)})
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoints.load(path)
    wide = make_wide(make_models())
    wide.save(tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"weights alone are read by wide\.load"):
        checkpoints.load(tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="keep"):
        Checkpoints(tmp_path, keep=0)


# Killed while saving.

SAVER = """
    import sys, itertools, torch
    from wide_compiler.training import Checkpoints
    checkpoints = Checkpoints(sys.argv[1], keep=2)
    for step in itertools.count(1):
        parts = [torch.full((200_000,), float(step)) for _ in range(10)]
        checkpoints.save(step, {"step": step, "parts": parts})
        if step == 3:
            print("saving", flush=True)
"""


@pytest.fixture
def saver(tmp_path):
    script = tmp_path / "saver.py"
    script.write_text(textwrap.dedent(SAVER))
    return script


def test_a_kill_while_saving_leaves_whole_checkpoints(tmp_path, saver):
    chance = random.Random(3)
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder)
    for _ in range(2):
        child = subprocess.Popen([sys.executable, saver, folder], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "saving\n"
        while True:  # until it is caught in the middle of a file
            time.sleep(chance.uniform(0.0, 0.01))
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            if list(folder.glob(".writing-*/*")):
                break
            child.send_signal(signal.SIGCONT)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert list(folder.glob(".writing-*/*")) and checkpoints.steps()
        for step in checkpoints.steps():
            state = checkpoints.load(checkpoints.path(step))
            assert state["step"] == step
            assert all(part.eq(step).all() for part in state["parts"])
    checkpoints.save(10**6, {"x": torch.zeros(1)})
    assert not list(folder.glob(".*")), "what was left behind stays"


# A full disk.


def too_big(checkpoints, kept, says):
    """Saving fails with a clear error; what was there is still there and whole."""
    with pytest.raises(SaveError) as caught:
        checkpoints.save(2, {"x": torch.zeros(1_000_000)})
    assert isinstance(caught.value, OSError)
    for word in (says, "step-00000002", f"last good one is {kept}"):
        assert word in str(caught.value)
    assert os.listdir(checkpoints.folder) == [kept.name]
    assert checkpoints.load(checkpoints.latest())["x"].tolist() == [1.0] * 10


def test_a_file_that_may_not_grow(tmp_path):
    """The limit on the size of files: the write fails half way, for any user."""
    checkpoints = Checkpoints(tmp_path)
    kept = checkpoints.save(1, {"x": torch.ones(10)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
        too_big(checkpoints, kept, "File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk(tmp_path):
    """A file system of 256 kB, where we may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount a file system")
    try:
        checkpoints = Checkpoints(disk)
        kept = checkpoints.save(1, {"x": torch.ones(10)})
        too_big(checkpoints, kept, "No space left on device")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match="there is none before it"):
        Checkpoints(tmp_path / "file" / "folder").save(1, {})


# The wrong model.


def run(folder, models=None, make=adam, **options):
    wide = make_wide(models or make_models())
    options = {"epochs": 1, "checkpoint": folder, **options}
    return wide, lambda: fit(wide, make(wide.parameters()), lane_loss, loader(), **options)


def test_a_checkpoint_of_another_architecture(tmp_path):
    _, train = run(tmp_path)
    train()
    for models, says in [
        (make_models(width=9), ["up.weight is (4, 8, 6) float64 there, (4, 9, 6) float64 here"]),
        (make_models(n=3), ["is of 4 lanes", "has 3"]),
        ([torch.nn.Sequential(m) for m in make_models()], ["lacks 0.up.weight"]),
        ([with_extra(m) for m in make_models()], ["lacks extra"]),
    ]:
        wide, train = run(tmp_path, models, resume=True)
        with refused(CheckpointError, "step-00000004.safetensors", *says, of=wide):
            train()
    with_more = [with_extra(m) for m in make_models()]
    run(tmp_path / "more", with_more)[1]()
    wide, train = run(tmp_path / "more", resume=True)
    with refused(CheckpointError, "it has extra, (4, 2) float64, not here", of=wide):
        train()


def with_extra(model):
    model.extra = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    return model


def test_a_checkpoint_of_another_training(tmp_path):
    _, train = run(tmp_path)
    train()
    for make, options, says in [
        (lambda p: torch.optim.SGD(p, 0.1), {}, "made with Adam, this optimiser is SGD"),
        (adam, {"accumulate": 2}, "accumulate was 1 when it was saved, now it is 2"),
        (adam, {"precision": "fp16"}, "precision='fp16' was False"),
    ]:
        wide, train = run(tmp_path, make=make, resume=True, **options)
        with refused(CheckpointError, says, of=wide):
            train()
    wide, train = run(tmp_path)
    with refused(CheckpointError, "of an earlier training", "resume=True", of=wide):
        train()
    wide, train = run(tmp_path / "empty", resume=True)
    with refused(CheckpointError, "no checkpoint in", "resume='auto'", of=wide):
        train()
    wide, train = run(tmp_path / "own")
    Checkpoints(tmp_path / "own").save(3, {"something": "else"})
    wide, train = run(tmp_path / "own", resume=True)
    with refused(CheckpointError, "not a checkpoint of fit", of=wide):
        train()


def test_a_full_disk_in_the_middle_of_fit(tmp_path):
    """The training stops with an error that names the checkpoint to go on from, and goes on from it."""
    calls = []

    def fill(moment):
        calls.append(moment.event)
        if moment.event == "epoch" and moment.epoch == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(SaveError, match=r"last good one is .*step-00000004"):
            run(tmp_path, epochs=3, callbacks=[fill])[1]()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    resumed, train = run(tmp_path, epochs=3, resume=True)
    losses = train().losses
    straight, train = run(tmp_path / "straight", epochs=3)
    assert losses.equal(train().losses)
    for name, value in straight.state_dict().items():
        assert value.equal(resumed.state_dict()[name]), name
    assert Path(tmp_path).exists() and calls
