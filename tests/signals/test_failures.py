"""Workers that die, hang or fail: the script hears of it at once, by name, and nothing is left behind."""

import os
import random
import signal as os_signal
import subprocess
import sys
import time

import pytest

import wide_compiler.signals as gt
from nightly import count
from signals.soak import setting, steps
from wide_compiler.signals import runtime
from wide_compiler.workers.local import alive


def test_death_is_named_and_the_restart_goes_on_as_if_nothing_had_happened(two, tmp_path):
    model, optimizer, x = setting()
    expected = steps(model, optimizer, x, 12)
    rng = random.Random(5)
    for k in range(count(2, 5)):
        model, optimizer, x = setting()
        done = steps(model, optimizer, x, 6)
        gt.checkpoint(tmp_path / str(k), model=model, optimizer=optimizer)
        victim, when = rng.randrange(2), rng.randrange(4)
        pids = list(runtime.engine().pool.pids)
        with pytest.raises(gt.WorkerDied, match=f"worker {victim}") as caught:
            steps(model, optimizer, x, 6, lambda i, v=victim, w=when, p=pids: i == w and os.kill(p[v], 9))
            gt.debug.worker_stats()
        assert caught.value.worker == victim
        assert not any(map(alive, pids))
        with pytest.raises(gt.WorkerDied):
            x.sum()
        gt.restart(tmp_path / str(k), model=model, optimizer=optimizer)
        assert done + steps(model, optimizer, x, 6) == expected


def test_an_error_of_the_program_names_the_line_and_the_workers_go_on(two):
    with gt.signal.context("dp"):
        table = gt.randn(4, 3)
        bad = gt.tensor([9, 9])  # out of range on every worker; on one alone it ends the run
        picked = table[bad]  # the line in question
    with pytest.raises(gt.WorkerFailed, match=r"test_failures.py:\d+") as caught:
        picked.sum().item()
    assert "index" in str(caught.value)
    with pytest.raises(gt.WorkerFailed):  # made from what does not exist
        (picked + 1).sum().item()
    assert table.sum().item() == pytest.approx(table.cpu().sum().item(), rel=1e-5)
    assert len(gt.debug.worker_stats()) == 2


def test_out_of_memory_is_an_error_of_the_program_if_all_run_out(two):
    with gt.signal.context("dp"):
        x = gt.randn(4, 4)
        huge = gt.empty(1 << 20, 1 << 30)
    with pytest.raises(gt.WorkerFailed, match=r"test_failures.py:\d+: .*memory"):
        huge.sum().item()
    assert x.shape == (4, 4) and x.sum().item() == pytest.approx(x.cpu().sum().item(), rel=1e-4, abs=1e-5)


def test_an_error_of_one_worker_alone_ends_the_run(two):
    engine = runtime.engine()
    with gt.signal.context("dp"):
        x = gt.randn(4, 4)
    x.sum().item()
    template = engine.new_template("aten.mm.default", ((0, 0), (0, 0)), {})
    # As if worker 1 had lost a value: it alone fails, worker 0 goes on to a collective.
    engine.record("free", ([x._ref.number],), (1,))
    with pytest.raises(gt.WorkerDied, match="worker 1 alone failed") as caught:
        engine.record("op", (template, (x._ref.number,) * 2, (10**6,), ()), (0, 1), "mm", (), (10**6,))
        gt.debug.worker_stats()
    assert caught.value.worker == 1


def test_a_stopped_worker_is_found(two):
    with gt.signal.context("dp"):
        x = gt.randn(4, 4)
    x.sum().item()
    runtime.engine().failures.silence_seconds = 2.0
    os.kill(two[1], os_signal.SIGSTOP)
    with pytest.raises(gt.WorkerHung, match="worker 1 has been silent"):
        for _ in range(1000):
            x.sum().item()


def test_a_stuck_worker_is_found(two):
    engine = runtime.engine()
    with gt.signal.context("dp"):
        x = gt.randn(4, 4)
    x.sum().item()
    engine.failures.hang_seconds = 1.5
    # Worker 0 waits in a collective to which worker 1 never comes.
    engine.record("fetch", (x._ref.number, 10**6, 0), (0,), "fetch")
    with pytest.raises(gt.WorkerHung, match="worker 0 has been at one instruction"):
        gt.debug.worker_stats()


def test_tensors_outlive_their_workers_with_a_clear_word(two):
    x = gt.zeros(2)
    gt.shutdown()
    with pytest.raises(gt.NoWorkers, match="shut down"):
        x + 1
    gt.shutdown()


SCRIPT = """
import sys, time, os, signal
import torch
import wide_compiler.signals as gt
from wide_compiler.signals import runtime
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
gt.cpu_workers(2)
pool = runtime.engine().pool
big = gt.tensor(torch.zeros(1 << 20))  # on its way through a file
folders = getattr(pool, "_folder", None), pool.payloads  # Ray's workers have neither
print(*pool.pids, *filter(None, folders), flush=True)
how = sys.argv[1]
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
x = gt.zeros(2)
while how == "interrupted":
    x.sum().item()
"""


@pytest.mark.parametrize("how", ["killed", "interrupted", "ends"])
def test_no_process_is_left_when_the_script_goes(how, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    script = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    words = script.stdout.readline().split()
    pids, folders = [int(p) for p in words[:2]], words[2:]
    if how == "interrupted":
        time.sleep(0.3)
        os.killpg(script.pid, os_signal.SIGINT)
    try:
        _, errors = script.communicate(timeout=60)
    finally:
        script.kill()
    if how == "interrupted":
        assert "KeyboardInterrupt" in errors
    deadline = time.monotonic() + 120

    def left():
        return [p for p in pids if alive(p)] + [f for f in folders if os.path.exists(f)]

    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left(), errors
    interrupted = (-2, 1)  # by the signal, or, with Ray in the process, by the exception
    assert script.returncode in {"killed": (-9,), "interrupted": interrupted, "ends": (0,)}[how], errors
