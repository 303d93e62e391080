"""Calls that overlap in threads: started in order, none after a known failure, none twice.

The calling thread works as well: where no other thread is free, that costs speed and nothing else.
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
    """The modes of another thread, in this one: gradients, inference, autocast and default devices."""
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
    """Are there hooks in this thread for tensors that are saved for gradients?"""
    return _hooks(False) is not None


_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks  # its argument: even under a trace
_hooks_allowed: Any = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]


CHEAP = 1e-3  # seconds: a call that ends within this time is not worth a thread
_pools: dict[int, ThreadPoolExecutor] = {}
_here = threading.local()
_lock = threading.Lock()


def usable(max_workers: int) -> bool:
    """May other threads run items for this one? Not from a thread that runs an item already, nor once the
    interpreter shuts down, nor where this thread rounds denormal numbers to zero or has, or forbids, hooks
    for tensors that are saved: that is not carried to another one."""
    alone = max_workers < 2 or getattr(_here, "worker", False) or not threading.main_thread().is_alive()
    flushing = _smallest_normal * 0.5 == 0.0
    return not alone and not flushing and not saves_are_seen() and _hooks_allowed()


def crowded(error: BaseException) -> bool:
    """Were too many files or connections open? One call at a time may succeed."""
    numbers = [one.errno for one in chain(error) if isinstance(one, OSError)]
    return errno.EMFILE in numbers or errno.ENFILE in numbers


def _forget() -> None:
    """A forked process has none of these threads: new ones are started when needed."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def pool_of(workers: int) -> ThreadPoolExecutor:
    """A pool of that many threads, which is kept."""
    with _lock:
        if workers not in _pools:
            _pools[workers] = ThreadPoolExecutor(workers, thread_name_prefix="xcs")
        return _pools[workers]


class Overlap:
    """Calls `call(0), ..., call(n - 1)`, several at a time."""

    def __init__(self, call: Callable[[int], Any], n: int, max_workers: int):
        self.call = call
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
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self.modes = grad, inference, list(autocast_state()), function_modes()
        self.caller = threading.get_ident()

    def up_to(self, limit: int, threads: int) -> None:
        """Run the items below this one, in so many threads with this one."""
        self.limit = limit
        try:
            self.start(threads - 1)
        finally:
            self.finish()  # whatever happens here: what was begun must not run twice

    def start(self, threads: int) -> None:
        """Let that many threads help as soon as they are free, if this is not over by then."""
        try:
            for _ in range(threads):
                self.pool.submit(_help, weakref.ref(self), self.limit)
        except RuntimeError:
            pass  # the system gives no more threads: those that there are do it, the calling one among them

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
        """Run the items that no other thread has started, and wait for the others. After Ctrl-C no more are
        started."""
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
    """Work on it, unless the items below this limit were all begun before a thread was free."""
    run = overlap()
    if run is not None and run.limit == limit:
        run.work()
