"""CUDA graphs: a call's kernels recorded once and replayed with one launch.

A recording holds addresses. It is replayed only while every tensor it reads is where it was; and its results
are handed out only while nobody holds those of the call before, else copied. So there are two kinds:
one reads the caller's input where it lies and hands out its own memory, for loops that reuse their tensors;
one has the input copied in and the results copied out, for everything else.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import precision
from .when import capturing, plain_world

Run = Callable[[list[Any]], Sequence[Any]]

# Recordings, and places of inputs, that are remembered for one call; beyond that all is forgotten and begun
# again, because weights that keep moving leave useless ones behind.
MAX_RECORDINGS = 6
MAX_PLACES = 64


class Replay:
    """`run` as a recording where that can be done, else `run` itself; `why` says why not.

    Args:
        run: takes a list of arguments, gives a sequence of outputs; launches the same kernels each time.
        inputs: the positions of the caller's tensors, which may lie anywhere; the others seldom move.
    """

    def __init__(self, run: Run, inputs: Sequence[int]):
        self.run = run
        self.inputs = list(inputs)
        self.in_place: dict[Any, _Recording] = {}
        self.copying: dict[Any, _Recording] = {}
        self.places: set[Any] = set()
        self.pool: Any = None
        self.stream: Any = None
        self.why = ""

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if self.why or not plain_world() or capturing() or _wants_gradients(arguments):
            return self.run(arguments)
        settings = _settings()
        place = (_addresses(arguments), settings)
        recording = self.in_place.get(place)
        if recording is not None and recording.is_free():
            self._take_turns()
            recording.graph.replay()
            return recording.lend()
        kind = (_addresses(arguments, self.inputs), settings)
        if place in self.places and recording is None:
            recording = self._record(self.in_place, place, arguments)
            if recording is not None:
                recording.graph.replay()
                return recording.lend()
        elif kind in self.places:
            recording = self.copying.get(kind) or self._record(self.copying, kind, self._own(arguments))
            if recording is not None:
                self._take_turns()
                recording.take([arguments[i] for i in self.inputs])
                recording.graph.replay()
                return recording.copies()
        if len(self.places) > MAX_PLACES:
            self.places.clear()
        self.places |= {place, kind}
        return self.run(arguments)  # the first of its kind warms up what a recording may not do

    def _own(self, arguments: list[Any]) -> list[Any]:
        return [a.clone() if i in self.inputs else a for i, a in enumerate(arguments)]

    def _record(self, shelf: dict[Any, "_Recording"], key: Any, arguments: list[Any]) -> "_Recording | None":
        if len(shelf) >= MAX_RECORDINGS:
            shelf.clear()
        self._take_turns()
        try:
            graph, outputs = capture(lambda: self.run(arguments), self.pool)
        except CaptureRefused as error:
            self.why = f"no CUDA graph: {error}"
            return None
        self.pool = self.pool or graph.pool()
        buffers = [arguments[i] for i in self.inputs] if shelf is self.copying else []
        shelf[key] = _Recording(graph, arguments, buffers, outputs)
        return shelf[key]

    def _take_turns(self) -> None:
        """Two streams must not use a recording's memory at the same time."""
        stream = torch.cuda.current_stream()
        if self.stream is not None and self.stream != stream:
            stream.wait_stream(self.stream)
        self.stream = stream


class _Recording:
    """A graph, the buffers it reads the caller's input from (unless in place), and the outputs it writes."""

    def __init__(self, graph: Any, arguments: list[Any], buffers: list[Tensor], outputs: Sequence[Any]):
        self.graph, self.buffers, self.outputs = graph, buffers, outputs
        memory = {a.untyped_storage().data_ptr() for a in arguments if isinstance(a, Tensor)}
        self.storages = [o.untyped_storage() for o in outputs if isinstance(o, Tensor)]
        # Results that lie in the arguments' own memory are never ours to lend.
        self.lendable = all(s.data_ptr() not in memory for s in self.storages)
        self.unheld = [_holders(s) for s in self.storages]

    def is_free(self) -> bool:
        """Does nobody hold what was lent, nor a view of it?"""
        return self.lendable and [_holders(s) for s in self.storages] == self.unheld

    def take(self, given: list[Tensor]) -> None:
        for buffer, tensor in zip(self.buffers, given, strict=True):
            buffer.copy_(tensor)

    def lend(self) -> Sequence[Any]:
        if not self.lendable:
            return self.copies()
        return [o.detach() if isinstance(o, Tensor) else o for o in self.outputs]

    def copies(self) -> Sequence[Any]:
        return [o.clone() if isinstance(o, Tensor) else o for o in self.outputs]


def _holders(storage: torch.UntypedStorage) -> int:
    """How many tensors share this memory: views count, and what autograd has saved."""
    return torch._C._storage_Use_Count(storage._cdata)


def _addresses(arguments: list[Any], inputs: Sequence[int] = ()) -> tuple[Any, ...]:
    """Where each tensor lies; of the `inputs` only how they are laid out."""
    return tuple(
        [
            (a.shape if i in inputs else a.data_ptr(), a.stride())
            for i, a in enumerate(arguments)
            if isinstance(a, Tensor)
        ]
    )


def _settings() -> tuple[Any, ...]:
    """What kernels read when they are launched, and a recording therefore holds."""
    flags = torch.backends.cudnn.benchmark, torch.is_inference_mode_enabled(), torch.cuda.current_device()
    return precision("matmul"), precision("conv"), *flags


def _wants_gradients(arguments: list[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)


class CaptureRefused(Exception):
    """A call does what no recording can hold, such as waiting for a number from the GPU."""


def capture(call: Callable[[], Any], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of what `call` launches, and what it gave. The call must be warm."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool):
            return graph, call()
    except Exception as error:
        # A capture that fails leaves PyTorch's random generator believing that it goes on; one that ends
        # well sets it right.
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")
        raise CaptureRefused(
            f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
        ) from error


def recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    """`call` as a CUDA graph if it can be one: to time what a recording will take."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    try:
        graph, kept = capture(call)
    except CaptureRefused:  # it will run unrecorded, and is timed so
        return call

    def replay(kept: Any = kept) -> None:  # what it writes stays alive with it
        graph.replay()

    return replay
