"""Fork server for local workers: imports everything once, so that each worker starts in milliseconds.

Run as `python -m wide_compiler.workers.fork_server`. It reads one JSON object per line from standard input
(the `setup` of `serve`) and prints the new worker's process id for each. It exits when standard input closes,
that is when the script that started it has ended.
"""

import json
import os
import shutil
import signal
import sys
import traceback

import torch.distributed.checkpoint
import torch.distributed.tensor  # noqa: F401  imported before the fork, shared by all workers

from .serve import serve
from .worker import Worker  # noqa: F401


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the script, which stops its workers
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are never waited for; this prevents zombies
    folders: set[str] = set()
    for line in sys.stdin:
        setup = json.loads(line)
        folders.update(setup["folders"])
        pid = os.fork()
        if pid == 0:
            _become_worker(setup)
        print(pid, flush=True)
    for folder in folders:  # left behind if the script was killed
        shutil.rmtree(folder, ignore_errors=True)


def _become_worker(setup: dict) -> None:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # an op's prints go to stderr; the old stdout carries process ids
        status = serve(setup)
    except BaseException:
        traceback.print_exc()  # the process ends here, so nothing else would print it
    finally:
        os._exit(status)  # never return to the fork server's loop or run its exit handlers


if __name__ == "__main__":
    main()
