"""Random lives with rarer modules and changes, in a process of its own: it changes what lives are made of."""

import os
import subprocess
import sys
from pathlib import Path

from nightly import SEED, count

HERE = Path(__file__).parent


def test_wider_lives_equal_the_loop():
    command = [sys.executable, HERE / "wider_lives.py", str(SEED + 300_000), str(count(10, 400))]
    roots = [str(HERE.parents[1] / "src"), str(HERE.parent)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    )
    assert done.returncode == 0 and " 0 wrong" in done.stdout, done.stdout + done.stderr
