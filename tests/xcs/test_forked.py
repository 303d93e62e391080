"""A process forked from one that has used threads has none of them, and must not wait for them."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing, time
from wide_compiler.xcs import jit

def fetch(x):
    time.sleep(0.01)
    return x * 2

@jit
def fetch_all(xs):
    return [fetch(x) for x in xs]

def child(queue):
    queue.put(fetch_all(list(range(16))))

if __name__ == "__main__":
    for _ in range(3):
        fetch_all(list(range(16)))
    assert "threads" in str(fetch_all.stats())
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    process = fork.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_threads_of_its_own(tmp_path):
    path = tmp_path / "forks.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == str([2 * i for i in range(16)])
