"""Run scripts one by one, each in a fork of this process, which has imported PyTorch already.

Reads lines of JSON `{"script": path, "folder": path, "seconds": number}` and answers each with
`{"code": exit code, "output": what it printed}`. A fork has an empty `__main__`: a script sees what it
would see if it were run by itself, without the two seconds that `import torch` takes.
"""

import contextlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

import wide_compiler
import wide_compiler.routers
import wide_compiler.signals
import wide_compiler.training
import wide_compiler.xcs

with contextlib.suppress(ImportError):
    import peft  # noqa: F401
    import transformers  # noqa: F401


def run(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def in_a_fork(script: str, folder: str, seconds: float) -> int:
    """The exit code of `script`, run in `folder`; its output is in the file `output` there."""
    child = os.fork()
    if child == 0:
        os.setsid()  # the script's own processes end with it
        os.chdir(folder)
        output = os.open("output", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = [script]
        code = run(script)
        with contextlib.suppress(Exception):
            import atexit

            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


if __name__ == "__main__":
    wide_compiler.compile(torch.nn.Linear(2, 2), torch.randn(1, 2), n=2)  # imports what captures need
    for line in sys.stdin:
        task = json.loads(line)
        code = in_a_fork(task["script"], task["folder"], task["seconds"])
        output = (Path(task["folder"]) / "output").read_text(errors="replace")
        print(json.dumps({"code": code, "output": output}), flush=True)
