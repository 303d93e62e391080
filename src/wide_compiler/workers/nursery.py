"""A process that has imported everything and waits to fork workers: the second worker costs milliseconds.

Run as `python -m wide_compiler.workers.nursery`. It reads one JSON object a line from its standard input
(what `serve` needs) and answers each with the new worker's process id. It leaves when that input closes, that
is when the script that started it is gone.
"""

import json
import os
import shutil
import signal
import sys
import traceback

import torch.distributed.checkpoint
import torch.distributed.tensor  # noqa: F401  imported before the fork, for all workers

from .serve import serve
from .worker import Worker  # noqa: F401


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the script; it tells its workers
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for, so they must not linger
    folders: set[str] = set()
    for line in sys.stdin:
        setup = json.loads(line)
        folders.update(setup["folders"])
        pid = os.fork()
        if pid == 0:
            _become_worker(setup)
        print(pid, flush=True)
    for folder in folders:  # a script that was killed has not removed them
        shutil.rmtree(folder, ignore_errors=True)


def _become_worker(setup: dict) -> None:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # what an op prints goes where errors go; the old 1 belongs to the nursery
        status = serve(setup)
    except BaseException:
        traceback.print_exc()  # nobody else will: the process ends here
    finally:
        os._exit(status)  # never back into the nursery's loop, nor its exit handlers


if __name__ == "__main__":
    main()
