"""CUDA graphs: the kernels of a call recorded, to be launched again with one call of the driver."""

import gc
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


class CaptureRefused(Exception):
    """A call does what no recording can hold, such as waiting for a number from the GPU."""


def capture(
    call: Callable[[], Any], pool: Any = None, stream: torch.cuda.Stream | None = None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of what `call` launches, and what it gave. The call must be warm.

    A call with a backward pass must have warmed up on the same `stream`: autograd remembers where a leaf was
    first seen, and would go on there.
    """
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    collects = gc.isenabled()
    gc.disable()  # a tensor or graph collected meanwhile would free its memory, which a capture forbids
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            return graph, call()
    except Exception as error:
        while error.__context__ is not None:  # the end of a broken capture fails too, and says less
            error = error.__context__  # type: ignore[assignment]
        # A capture that fails leaves PyTorch's random generator believing that it goes on; one that ends
        # well sets it right.
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")
        line = (str(error).splitlines() or [""])[0][:200]
        frames = traceback.extract_tb(error.__traceback__)[:-5:-1]
        path = " < ".join(f"{frame.name} in {Path(frame.filename).name}" for frame in frames)
        raise CaptureRefused(f"{type(error).__name__}: {line} ({path})") from None
    finally:
        if collects:
            gc.enable()


@contextmanager
def uncached_autocast(also: bool = False) -> Iterator[None]:
    """What autocast casts once and keeps is freed when its context ends: no recording may read or make it.

    Nothing changes without autocast (and unless `also` says that the call enters it): torch.compile would
    compile anew, and what it tries out cannot be recorded. For the same reason calls warm up in here too.
    """
    before = torch.is_autocast_cache_enabled()
    if also or torch.is_autocast_enabled("cuda"):
        torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def on_stream(stream: torch.cuda.Stream, call: Callable[[], Any]) -> Any:
    """`call` on another stream, in its place between what was launched before and what comes after."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = call()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def _side_stream() -> torch.cuda.Stream:
    """This thread's stream beside the usual one: libraries keep a workspace for each stream, often 32 MB."""
    name = str(torch.cuda.current_device())
    if not hasattr(_side_streams, name):
        setattr(_side_streams, name, torch.cuda.Stream())
    return getattr(_side_streams, name)


_side_streams = threading.local()


def recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    """`call` as a CUDA graph if it can be one: to time what a recording will take."""
    stream = _side_stream()
    try:
        with uncached_autocast():
            on_stream(stream, call)
            graph, kept = capture(call, stream=stream)
    except CaptureRefused:  # it will run unrecorded, and is timed so
        return call

    def replay(kept: Any = (kept, call)) -> None:  # what it writes and reads stays alive with it
        graph.replay()

    return replay
