"""Run calls in threads: started in index order, none after a known failure, none twice.

The calling thread runs items too, so progress does not depend on free threads in the pool.
"""

import contextlib
import contextvars
import errno
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ...guards.modes import autocast_state, function_modes
from ...measure.clock import now
from ..exceptions import chain, raise_interrupt


@contextlib.contextmanager
def modes(grad: bool, inference: bool, casts: list[tuple[str, Any]], devices: tuple) -> Iterator[None]:
    """Apply the modes of another thread in this one: grad mode, inference mode, autocast, default devices."""
    with contextlib.ExitStack() as stack:
        for default in devices:
            stack.enter_context(default)
        if inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(grad))
        for device, dtype in casts:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        yield


_smallest_normal = sys.float_info.min


def saves_are_seen() -> bool:
    """Return whether this thread has hooks for tensors saved by autograd."""
    return _hooks(False) is not None


_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks  # its argument is `ignore_is_tracing`
_hooks_allowed: Any = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]


CHEAP = 1e-3  # seconds; shorter calls are not worth a thread
_pools: dict[int, ThreadPoolExecutor] = {}
_here = threading.local()
_lock = threading.Lock()


def usable(max_workers: int) -> bool:
    """Return whether other threads may run items for this one.

    They may not if this thread is itself running an item, or if the interpreter is shutting down. They also
    may not if this thread flushes denormals to zero or has, or forbids, saved tensor hooks, since this state
    is not transferred.
    """
    alone = max_workers < 2 or getattr(_here, "worker", False) or not threading.main_thread().is_alive()
    flushing = _smallest_normal * 0.5 == 0.0
    return not alone and not flushing and not saves_are_seen() and _hooks_allowed()


def crowded(error: BaseException) -> bool:
    """Return whether too many files or connections were open, so that a retry alone may succeed."""
    numbers = [one.errno for one in chain(error) if isinstance(one, OSError)]
    return errno.EMFILE in numbers or errno.ENFILE in numbers


def _forget() -> None:
    """Drop the pools after a fork, since the child process does not have their threads."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def pool_of(workers: int) -> ThreadPoolExecutor:
    """Return the cached pool of this size."""
    with _lock:
        return _pools.get(workers) or _pools.setdefault(workers, ThreadPoolExecutor(workers, "xcs"))


class Overlap:
    """Runs `call(0), ..., call(n - 1)`, several at a time."""

    def __init__(self, call: Callable[[int], Any], n: int, max_workers: int):
        self.call = call
        self.pool = pool_of(max_workers)
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self.seconds: list[float] = []
        self.next = 0
        self.running = 0
        self.limit = n  # only items below this may start
        self.stopped = False
        self.changed = threading.Condition()
        self.context = contextvars.copy_context()
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self.modes = grad, inference, list(autocast_state()), function_modes()
        self.caller = threading.get_ident()

    def up_to(self, limit: int, threads: int) -> None:
        """Run the items below `limit` in `threads` threads, this one included."""
        self.limit = limit
        try:
            self.start(threads - 1)
        finally:
            self.finish()  # also after an exception, so that no started item runs twice

    def start(self, threads: int) -> None:
        """Let up to `threads` pool threads help when they are free."""
        try:
            for _ in range(threads):
                self.pool.submit(_help, weakref.ref(self), self.limit)
        except RuntimeError:
            pass  # no more threads available; the existing ones and the calling thread do the work

    def work(self) -> None:
        """Run items in this thread until all have started."""
        nested, _here.worker = getattr(_here, "worker", False), True
        try:
            with modes(*self.modes):
                while (i := self._take()) is not None:
                    self._run(i)
        finally:
            _here.worker = nested

    def _take(self) -> int | None:
        with self.changed:
            if self._all_started():
                return None
            self.next += 1
            self.running += 1
            return self.next - 1

    def _run(self, i: int) -> None:
        began = now()
        try:
            result, error = self.context.copy().run(self.call, i), None
        except BaseException as raised:
            result, error = None, raised
        with self.changed:
            self.seconds.append(now() - began)
            self.running -= 1
            if error is None:
                self.results[i] = result
            else:
                self.errors[i] = error
            self.changed.notify_all()
        if error is not None and threading.get_ident() == self.caller:
            raise_interrupt(error)

    def finish(self) -> None:
        """Run the items not started yet and wait for the others. After Ctrl-C no more items start."""
        try:
            if not self._all_started():
                self.work()
            with self.changed:
                self.changed.wait_for(lambda: self._all_started() and self.running == 0)
        except BaseException:
            self.stopped = True
            raise

    def _all_started(self) -> bool:
        return self.stopped or bool(self.errors) or self.next >= self.limit


def _help(overlap: "weakref.ref[Overlap]", limit: int) -> None:
    """Run items of `overlap`, unless it is gone or has moved on to another limit."""
    run = overlap()
    if run is not None and run.limit == limit:
        run.work()
