"""Every snippet of the document runs as it stands, with the import changed and nothing else."""

import os
import re

import pytest
import torch
from torch import nn

import wide_compiler.signals as gt
from signals.spec_004 import SNIPPETS

PYTHON = [i for i, (kind, _) in enumerate(SNIPPETS) if kind == "python"]
# The YAML that a snippet's text stands beside.
CONFIG_OF = {1: [0], 9: [2], 10: [3], 11: [2], 12: [2], 13: [0], 15: [16], 17: [16], 19: [18], 21: [20],
             23: [22], 24: [16], 25: [16], 26: [16], 28: [27]}  # fmt: skip


def names():
    """What the document's reader has at hand: ordinary modules, and ordinary tensors."""
    torch.manual_seed(0)
    layer1, layer2, model = nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(784, 10)
    return {
        "w": gt.randn(64, 32),
        "weight": gt.randn(64, 32),
        "layer1": layer1,
        "layer2": layer2,
        "model": model,
        "batch": torch.randn(128, 784),
        "batch_size": 300,
        "input": torch.randn(128, 64),
        "loss_fn": nn.MSELoss(),
        "targets": torch.randn(128, 10),
        "X_train": gt.randn(128, 784),
        "y_train": gt.randn(128, 10),
    }


@pytest.mark.parametrize("i", PYTHON)
def test_a_snippet_runs_with_the_import_changed(i, tmp_path, monkeypatch):
    gt.cpu_workers(4)
    gt.clear_configs()
    text = SNIPPETS[i][1]
    yaml = "".join(SNIPPETS[k][1] for k in CONFIG_OF.get(i, ()))
    for name in ("config.yaml", "training_config.yaml", "base_config.yaml"):
        (tmp_path / name).write_text(yaml or "unused:\n  compile: false\n")
    monkeypatch.chdir(tmp_path)
    text = re.sub(r"^import gt$", "import wide_compiler.signals as gt", text, flags=re.M)
    text = re.sub(r"^from gt(\.nn)? import", r"from wide_compiler.signals\1 import", text, flags=re.M)
    if yaml:
        gt.load_config(tmp_path / "config.yaml")
    for name in ("both_sharded", "forward", "backward"):
        gt.register_config(name, gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    space = {"gt": gt, "SignalConfig": gt.SignalConfig, "ShardConfig": gt.ShardConfig, **names()}
    if i == 10:
        space["model"], space["input"] = (lambda x: (x * 2).sum()), gt.randn(8, 4).requires_grad_()
    before = [sum(s["instructions"].values()) for s in gt.debug.worker_stats()]
    exec(compile(text.replace("range(100)", "range(2)"), f"snippet {i}", "exec"), space)
    after = [sum(s["instructions"].values()) for s in gt.debug.worker_stats()]
    if "context(" in text or "signal.enter" in text:
        assert after[0] > before[0] and after[1] > before[1]
    os.environ.pop("GT_CONFIG", None)  # as the snippet has set it
    gt.clear_configs()


def test_what_the_snippets_promise(tmp_path):
    """The hybrid and the pipeline, in the values of one process."""
    gt.cpu_workers(4)
    for texts, body in ((22, 23), (20, 21)):
        gt.clear_configs()
        space = {"gt": gt, **names()}
        with torch.no_grad():
            expected = space["layer2"](space["layer1"](space["input"]))
        (tmp_path / "config.yaml").write_text(SNIPPETS[texts][1])
        gt.load_config(tmp_path / "config.yaml")
        exec(SNIPPETS[body][1], space)
        torch.testing.assert_close(space["output"].detach().cpu(), expected, rtol=1e-4, atol=1e-5)
    gt.clear_configs()
