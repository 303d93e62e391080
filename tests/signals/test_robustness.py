"""What strangers, forks, threads and many starts do to a run: nothing, and nothing is left behind."""

import contextlib
import os
import random
import socket
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn

import wide_compiler.signals as gt
from nightly import count
from signals.placed import signal
from signals.soak import setting, steps
from wide_compiler.observe import attach
from wide_compiler.signals import runtime
from wide_compiler.workers.local import alive

GARBAGE = [
    b"",
    b"\0" * 64,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x80\x05\x95" + b"\xff" * 200,
    b"\xff" * 4096,
]


def listening_ports(pids):
    """TCP ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def test_garbage_on_every_port(two):
    expected = steps(*setting(), 8)
    ports = listening_ports([os.getpid(), *two])
    assert ports  # the workers' own, by which they find each other
    chance = random.Random(0)
    model, optimizer, x = setting()

    def disturb(step):
        for port in ports:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=1) as stranger,
            ):
                stranger.sendall(chance.choice(GARBAGE) or chance.randbytes(100))

    assert steps(model, optimizer, x, 8, disturb) == expected
    assert all(map(alive, two))


def test_a_fork_has_no_workers_and_its_parent_goes_on(two):
    model, optimizer, x = setting()
    before = steps(model, optimizer, x, 3)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        words = "no error"
        try:
            x.cpu()
        except gt.NoWorkers as error:
            words = str(error)
        except BaseException as error:
            words = repr(error)
        os.write(write, words.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "fork of the script" in pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert os.getpid() in attach.running()  # who looks from outside still finds it
    after = steps(model, optimizer, x, 3)
    again = setting()
    assert steps(*again, 6) == before + after and all(map(alive, two))


def test_threads_that_train_at_once(two):
    """Each its own model; random numbers are drawn by one thread at a time, so these networks draw none."""

    def train(number, results):
        signal(f"of_{number}", [0, 1])
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape) * (number + 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x = torch.linspace(-1, 1, 24).reshape(6, 4)
        losses = []
        for _ in range(12):
            with gt.signal.context(f"of_{number}"):
                loss = model(gt.tensor(x)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results[number] = losses

    alone, together = {}, {}
    for number in range(4):
        train(number, alone)
    threads = [threading.Thread(target=train, args=(number, together)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def held():
    """What this process holds: (threads, open files, files of ours in temporary folders)."""
    folders = [tempfile.gettempdir(), "/dev/shm", attach.folder()]
    left = [name for folder in folders for name in os.listdir(folder) if str(os.getpid()) in name]
    return threading.active_count(), len(os.listdir("/proc/self/fd")), len(left)


def start_and_stop(workers):
    gt.cpu_workers(workers)
    assert gt.tensor(torch.ones(4, 2)).sum().item() == 8.0
    pids = list(runtime.engine().pool.pids)
    gt.shutdown()
    assert not any(map(alive, pids))


def test_many_starts_and_stops():
    gt.shutdown()
    start_and_stop(2)
    time.sleep(1)  # connections are closed by the threads that read from them
    before = held()
    for number in range(count(3, 200)):
        start_and_stop(1 + number % 3)
    deadline = time.monotonic() + 120
    while held() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(now <= then for now, then in zip(held(), before, strict=True)), (held(), before)
