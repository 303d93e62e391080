"""What computes goes to Ray's workers where the program has connected to one: a real Ray, on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import wide_compiler

PROGRAM = """
import hashlib

import ray

from wide_compiler.xcs import jit
from wide_compiler.xcs.pace import yes
from wide_compiler.xcs.parallel import processes, ray_workers

SALT = "salt"


def digest(text):
    value = (SALT + text).encode()
    for _ in range(8_000):
        value = hashlib.sha256(value).digest()
    return value.hex()


def picky(text):
    if text == "text 40":
        raise ValueError(f"no {text}")
    return digest(text)


@jit
def digests(texts):
    return [digest(text) for text in texts if len(text) > 6]


@jit
def picky_ones(texts):
    return [picky(text) for text in texts]


def sent(function, texts):
    # Its result where the plain loop has been slow for long, and whether Ray's workers made it.
    (site,) = function.__xcs__.sites
    before = site.counts.get("processes", 0)
    site.plans[0].ledger.records.clear()
    site.plans[0].ledger.spent = 100.0
    site.on = site.pace.ready = yes
    return function(texts), site.counts.get("processes", 0) == before + 1


def wanted():
    return [digest(text) for text in texts if len(text) > 6]


texts = [f"text {i}" for i in range(60)]
assert not ray_workers.connected()
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
assert ray_workers.connected() and ray_workers.count() == 2

assert digests(texts) == wanted() and not ray_workers.started()  # not worth starting workers for
for _ in range(3):
    assert sent(digests, texts) == (wanted(), True)
SALT = "pepper"
assert sent(digests, texts) == (wanted(), True)
assert ray_workers.started() and not processes._workers, "Ray's were there"

picky_ones(texts[:40])
assert sent(picky_ones, texts[:40]) == ([digest(text) for text in texts[:40]], True)
try:
    sent(picky_ones, texts)
except ValueError as error:
    assert str(error) == "no text 40" and error.__context__ is None and error.__cause__ is None
else:
    raise AssertionError("it was swallowed")

ray.shutdown()
assert not ray_workers.connected()
assert digests(texts) == wanted()
print("all of it")
"""


def test_a_program_with_ray(tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "program.py").write_text(PROGRAM)
    source = str(Path(wide_compiler.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "RAY_DISABLE_IMPORT_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.endswith("all of it\n"), done.stdout + done.stderr
