"""What the pages on signals and clusters show is run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wide_compiler.signals as gt

PAGE = Path(__file__).parents[2] / "docs" / "signals.md"


@pytest.mark.usefixtures("workers")
def test_the_page_runs(tmp_path):
    text = PAGE.read_text()
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert gt.debug.placement(names["y"] if names["y"].shape == (100, 100) else names["x"])[1] == "S(0)"
    for _ in range(5):
        names["step"](names["X"], names["y"])
    assert names["step"].replayed == 3, names["step"].why
    stages, meshes = re.findall(r"```yaml\n(.*?)```", text, re.S)
    (tmp_path / "config.yaml").write_text(stages)
    assert set(gt.load_config(tmp_path / "config.yaml")) == {"stage_1", "stage_1_backward"}
    (tmp_path / "config.yaml").write_text(meshes)
    read = gt.load_config(tmp_path / "config.yaml")
    assert read["data_times_tensor"] == read["the_same"]


CLUSTER = re.findall(r"```python\n(.*?)```", (PAGE.parent / "cluster.md").read_text(), re.S)


@pytest.mark.parametrize("number", range(len(CLUSTER)))
def test_a_block_of_the_page_on_clusters_runs_alone(number, tmp_path):
    if "ray_workers" in CLUSTER[number]:
        pytest.importorskip("ray")
    (tmp_path / "pasted.py").write_text(CLUSTER[number])
    environment = {**os.environ, "PYTHONPATH": str(PAGE.parents[1] / "src"), "GT_WORKERS": ""}
    command = [sys.executable, "pasted.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
