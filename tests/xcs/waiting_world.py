"""Pools of threads for tests: of a few, all of which may be busy."""

import contextlib
import threading
from unittest import mock

from wide_compiler.xcs import Config
from wide_compiler.xcs.costs import Budget, Schedule
from wide_compiler.xcs.parallel.threads import Overlap

WORKERS = 3  # a pool of these tests alone
CONFIGS = {"measured": Config(max_workers=WORKERS), "at once": Config(measure=False, max_workers=WORKERS)}
HANG = 60.0  # seconds: nothing here takes a tenth of that


@contextlib.contextmanager
def no_thread_free():
    """All threads of the pool run something that ends with this."""
    opened, begun = threading.Event(), threading.Semaphore(0)
    others = Overlap(lambda i: begun.release() or opened.wait(HANG), WORKERS, WORKERS)
    others.start(WORKERS)
    for _ in range(WORKERS):
        assert begun.acquire(timeout=HANG)
    try:
        yield
    finally:
        opened.set()
        others.finish()


def within_limits(function, *args):
    """What it gives or raises, if it ends at all."""
    found = []

    def run():
        try:
            found.append(function(*args))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANG / 6)
    assert found, "it hangs"
    return found[0]


def threaded(fast):
    return sum(counts.get("threads", 0) for counts in fast.stats().values())


def comes_to_threads(fast, *args):
    """With a look at every call, and every trial paid for: whatever else the machine does."""
    before, yes = threaded(fast), lambda self, seconds: True
    with (
        mock.patch.multiple(Budget, affords=yes),
        mock.patch.object(Schedule, "rest", lambda self, *_: None),
    ):
        for _ in range(100):
            fast(*args)
            if threaded(fast) > before:
                return True
    return False
