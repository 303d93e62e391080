"""CUDA graphs: record the kernels of a call and launch them with one driver call."""

import gc
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


class CaptureRefused(Exception):
    """Raised for a call that cannot be captured, such as one that synchronises with the GPU."""


def capture(
    call: Callable[[], Any],
    pool: Any = None,
    stream: torch.cuda.Stream | None = None,
    free_memory: bool = True,
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return the graph of the kernels that `call` launches, and its result. The call must be warmed up.

    A call with a backward pass must have been warmed up on the same `stream`, because autograd runs backward
    on the stream where a leaf was first used.

    Args:
        free_memory: free unused memory first. That takes a fifth of a second, and without it a capture that
            needs most of the GPU's memory may fail, as the allocator cannot free any during a capture.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    if free_memory:
        gc.collect()
        torch.cuda.empty_cache()
    collects = gc.isenabled()
    gc.disable()  # freeing GPU memory is not allowed during a capture
    try:
        with torch.cuda.stream(stream or _side_stream()):
            graph.capture_begin(pool, "thread_local")
            try:
                result = call()
            finally:
                graph.capture_end()
            return graph, result
    except Exception as error:
        # A failed capture leaves PyTorch's random generator in capture mode; a successful one resets it.
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")
        raise CaptureRefused(_described(error)) from None
    finally:
        if collects:
            gc.enable()


def _described(error: BaseException) -> str:
    """Return the first error of a failed capture in one line, with the innermost frames that raised it."""
    while error.__context__ is not None:  # ending a failed capture raises again, with less information
        error = error.__context__
    line = (str(error).splitlines() or [""])[0][:200]
    frames = traceback.extract_tb(error.__traceback__)[:-5:-1]
    path = " < ".join(f"{frame.name} in {Path(frame.filename).name}" for frame in frames)
    return f"{type(error).__name__}: {line} ({path})"


@contextmanager
def uncached_autocast(also: bool = False) -> Iterator[None]:
    """Context manager without autocast's weight cache, which is freed when autocast ends.

    Nothing changes without autocast, unless `also` says that the call enters it: torch.compile would
    recompile, and its autotuning cannot be recorded. For the same reason, warm-up calls run in this context
    too.
    """
    before = torch.is_autocast_cache_enabled()
    if also or torch.is_autocast_enabled("cuda"):
        torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def on_stream(stream: torch.cuda.Stream, call: Callable[[], Any]) -> Any:
    """Run `call` on another stream, ordered after earlier work and before later work."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = call()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def _side_stream() -> torch.cuda.Stream:
    """Return this thread's side stream; reused, because libraries allocate a workspace per stream (32 MB)."""
    name = str(torch.cuda.current_device())
    if not hasattr(_side_streams, name):
        setattr(_side_streams, name, torch.cuda.Stream())
    return getattr(_side_streams, name)


_side_streams = threading.local()


def recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return `call` as a CUDA graph if possible, to time a recording."""
    stream = _side_stream()
    try:
        with uncached_autocast():
            on_stream(stream, call)
            try:
                graph, kept = capture(call, stream=stream, free_memory=False)
            except CaptureRefused:
                graph, kept = capture(call, stream=stream)
    except CaptureRefused:  # it will run without recording, so time it that way
        return call

    def replay(kept: Any = (kept, call)) -> None:  # keeps inputs and outputs alive
        graph.replay()

    return replay
