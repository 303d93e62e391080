"""Waiting calls, overlapped: threads that start items in order, none after a known failure, none twice."""

import contextlib
import contextvars
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ...tuning.when import autocast_state, function_modes

CHEAP = 1e-3  # a call that is over by then is not worth a thread
_pools: dict[int, ThreadPoolExecutor] = {}
_here = threading.local()
_lock = threading.Lock()


def in_worker() -> bool:
    """Is this one of our threads? Then all may be busy, and waiting for another could wait for ever."""
    return getattr(_here, "worker", False)


def _forget() -> None:
    """In a forked process none of these threads goes on: new ones are started when needed."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def pool_of(workers: int) -> ThreadPoolExecutor:
    """So many threads, which are kept."""
    with _lock:
        if workers not in _pools:
            _pools[workers] = ThreadPoolExecutor(workers, thread_name_prefix="xcs")
        return _pools[workers]


@contextlib.contextmanager
def _modes(
    grad: bool, inference: bool, casts: list[tuple[str, Any]], devices: tuple[torch.device, ...]
) -> Iterator[None]:
    """The thread-local modes of PyTorch, as they are where the function was called."""
    with contextlib.ExitStack() as stack:
        for default in devices:
            stack.enter_context(default)
        if inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(grad))
        for device, dtype in casts:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        yield


def current_modes() -> tuple[bool, bool, list[tuple[str, Any]], tuple[torch.device, ...]]:
    casts = list(autocast_state())
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), casts, function_modes()


class Overlap:
    """Calls `call(0), ..., call(n - 1)`, several at a time."""

    def __init__(self, call: Callable[[int], Any], n: int, max_workers: int):
        self.call = call
        self.n = n
        self.pool = pool_of(max_workers)
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self.seconds: list[float] = []
        self.next = 0
        self.running = 0
        self.limit = n  # items below this may start
        self.stopped = False
        self.changed = threading.Condition()
        self.context = contextvars.copy_context()
        self.modes = current_modes()
        self.first_thread: int | None = None

    def start(self, threads: int) -> None:
        """Let so many threads work on it."""
        with self.changed:
            self.running += threads
        for _ in range(threads):
            self.pool.submit(self._work)

    def _work(self) -> None:
        _here.worker = True
        if self.first_thread is None:
            self.first_thread = threading.get_ident()
        try:
            with _modes(*self.modes):
                while (i := self._take()) is not None:
                    self._run(i)
        finally:
            _here.worker = False
            with self.changed:
                self.running -= 1
                self.changed.notify_all()

    def _take(self) -> int | None:
        with self.changed:
            if self.stopped or self.errors or self.next >= self.limit:
                return None
            self.next += 1
            return self.next - 1

    def _run(self, i: int) -> None:
        began = time.perf_counter()
        try:
            result, error = self.context.copy().run(self.call, i), None
        except BaseException as raised:
            result, error = None, raised
        with self.changed:
            self.seconds.append(time.perf_counter() - began)
            if error is None:
                self.results[i] = result
            else:
                self.errors[i] = error
            self.changed.notify_all()

    def done(self, i: int) -> bool:
        return i in self.results or i in self.errors

    def wait_for(self, i: int, timeout: float | None = None) -> bool:
        """Until item i is done or can no longer come."""
        with self.changed:
            self._wait(lambda: self.done(i) or self._ended(), timeout)
            return self.done(i)

    def finish(self) -> None:
        """Until every started item is done."""
        with self.changed:
            self._wait(self._ended, None)

    def _ended(self) -> bool:
        return self.running == 0

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> None:
        try:
            self.changed.wait_for(condition, timeout)
        except BaseException:  # Ctrl-C while waiting: nothing more is started
            self.stopped = True
            raise

    def waiting(self) -> bool:
        """Does the first item wait, rather than compute?"""
        if self.first_thread is None or not hasattr(time, "pthread_getcpuclockid"):
            return True
        try:
            clock = time.pthread_getcpuclockid(self.first_thread)
            before = time.clock_gettime(clock)
            began = time.perf_counter()
            self.wait_for(0, CHEAP)
            spent = time.clock_gettime(clock) - before
        except OSError:
            return True
        return spent < 0.5 * (time.perf_counter() - began)
