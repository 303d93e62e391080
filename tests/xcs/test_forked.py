"""A process forked from one that has used threads or workers has none of them, and must not wait for them."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing, time
from wide_compiler.xcs import jit
from wide_compiler.xcs.parallel import processes

def fetch(x):
    time.sleep(0.01)
    return x * 2

@jit
def fetch_all(xs):
    return [fetch(x) for x in xs]

def child(queue):
    queue.put((fetch_all(list(range(16))), len(processes._workers)))

if __name__ == "__main__":
    for _ in range(3):
        fetch_all(list(range(16)))
    assert "threads" in str(fetch_all.stats())
    processes._started()
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    process = fork.Process(target=child, args=(queue,))
    process.start()
    print(*queue.get(timeout=60))
    process.join()
    assert all(worker.process.poll() is None for worker in processes._workers)  # those of the parent live on
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_threads_of_its_own(tmp_path):
    path = tmp_path / "forks.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == f"{[2 * i for i in range(16)]} 0"
