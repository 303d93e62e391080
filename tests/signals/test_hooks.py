"""Modules are watched while workers run, and not before or after: a hook costs every forward of a script."""

import os
import subprocess
import sys

SCRIPT = """
from torch.nn.modules import module
import wide_compiler.signals as gt
counts = [len(module._global_forward_pre_hooks)]
for _ in range(2):
    gt.cpu_workers(1)
    counts.append(len(module._global_forward_pre_hooks))
    gt.shutdown()
    counts.append(len(module._global_forward_pre_hooks))
print(counts)
"""


def test_the_hook_is_there_while_workers_run():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "GT_WORKERS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stdout.strip() == "[0, 1, 0, 1, 0]", done.stderr
