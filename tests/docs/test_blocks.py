"""Every Python block of the README and the docs runs by itself, pasted into an empty file."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import NOT_RUN, PYTHON, ROOT

EXTRAS = ("accelerate", "jax", "lightning", "matplotlib", "onnxruntime", "optuna", "peft", "ray", "sklearn",
          "torchmetrics", "transformers")  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A process that runs scripts in forks of itself (`block_server.py`)."""
    home = tmp_path_factory.mktemp("home")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOME": str(home), "GT_WORKERS": ""}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, Path(__file__).parent / "block_server.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_a_block_runs_alone(block, server, tmp_path):
    compile(block.code, str(block), "exec")
    if block.title in NOT_RUN:
        pytest.skip(block.title)
    for name in re.findall(r"^\s*(?:import|from) (\w+)", block.code, re.MULTILINE):
        if name in EXTRAS:
            pytest.importorskip(name)
    if "ray_workers" in block.code:
        pytest.importorskip("ray")
    script = tmp_path / "pasted.py"
    script.write_text(block.code)
    task = {"script": str(script), "folder": str(tmp_path), "seconds": 300}
    server.stdin.write(json.dumps(task) + "\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    assert answer["code"] == 0, answer["output"][-3000:]
