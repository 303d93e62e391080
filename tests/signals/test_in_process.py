"""`GT_WORKERS=0`: the same script in one process, with the same values, draws included."""

import os
import subprocess
import sys

SCRIPT = """
import torch
import wide_compiler.signals as gt
from wide_compiler.signals import runtime
for name, workers in (("dp", [0, 1]), ("other", [1])):
    shard = gt.ShardConfig(axis=0, workers=workers)
    gt.register_config(name, gt.SignalConfig(shard=shard, backward_signal="other"))
gt.manual_seed(3)
torch.manual_seed(3)
model = gt.nn.Linear(4, 2)
optimizer = gt.nn.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    with gt.signal.context("dp"):
        loss = (torch.nn.functional.dropout(model(gt.randn(6, 4)), 0.5) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.5f}", len(runtime.engine().pool.pids))
"""


def run(**env):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **env}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_same_values_without_workers():
    alone, count = run(GT_WORKERS="0")
    assert count == "0"
    many, count = run()
    assert count == "2"  # as many as the signals name
    assert alone == many
