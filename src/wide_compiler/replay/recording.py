"""Replay: a call's kernels recorded once, and launched again while all that they read is where it was.

A recording holds addresses. It is replayed only while every tensor it reads is where it was; and its results
are handed out only while nobody holds those of the call before, else copied. So there are two kinds:
one reads the caller's input where it lies and hands out its own memory, for loops that reuse their tensors;
one has the input copied in and the results copied out, for everything else. Of the first kind a small one
gets a twin: in `y = model(x)` the result of the call before is held until the call is over; two take turns.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..guards.modes import capturing, current_stream, launch_settings
from .cuda_graph import CaptureRefused, capture, uncached_autocast

Run = Callable[[list[Any]], Sequence[Any]]

# Recordings, and places of inputs, that are remembered for one call; beyond that all is forgotten and begun
# again, because weights that keep moving leave useless ones behind.
MAX_RECORDINGS = 4
MAX_PLACES = 64
# A recording that takes more memory has no twin; it also takes so long that copies do not matter.
TWIN_BYTES = 256 * 2**20


class Replay:
    """`run` as a recording where that can be done, else `run` itself; `why` says why not.

    Args:
        run: takes a list of arguments, gives a sequence of outputs; launches the same kernels each time.
        arguments: of a first call; what is a tensor there is one in every call.
        inputs: the positions of the caller's tensors, which may lie anywhere; the others seldom move.
    """

    def __init__(self, run: Run, arguments: Sequence[Any], inputs: Sequence[int]):
        self.run = run
        self.inputs = list(inputs)
        self.tensors = [i for i, a in enumerate(arguments) if isinstance(a, Tensor)]
        self.states = [i for i in self.tensors if i not in self.inputs]
        self.in_place: dict[Any, _Recording] = {}
        self.copying: dict[Any, _Recording] = {}
        self.latest: _Recording | None = None
        self.places: set[Any] = set()
        self.pool: Any = None
        self.stream: Any = None
        self.has_lent = False  # did the latest call read the caller's tensors, and hand out own memory?
        self.why = ""
        # A recording has one set of buffers: it is launched, and its results handed out, by one thread at a
        # time.
        self.lock = threading.Lock()

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if self.why or capturing() or (torch.is_grad_enabled() and self._wants_gradients(arguments)):
            self.has_lent = False
            return self.run(arguments)
        with self.lock:
            self.has_lent = False
            return self._replayed(arguments)

    def _replayed(self, arguments: list[Any]) -> Sequence[Any]:
        # This is all that a call of a small model costs, so it is written for speed: where everything lies,
        # compared with where it lay at the last call.
        tensors = [arguments[i] for i in self.tensors]
        layouts = [t.is_contiguous() or t.stride() for t in tensors]  # the first is quicker to ask
        place = ([t.data_ptr() for t in tensors], layouts, launch_settings())
        latest = self.latest
        if latest is not None and latest.place == place:
            free = latest.unheld()
            if free is not None:
                if current_stream() != self.stream:
                    self._take_turns()
                self.has_lent = True
                free.launch()
                return free.lend()
        return self._another(arguments, place)

    def _another(self, arguments: list[Any], place: Any) -> Sequence[Any]:
        """A call that is not like the one before: find its recording, or make one."""
        key = _hashable(place)
        states = [arguments[i] for i in self.states]
        kind = (
            tuple((t.data_ptr(), t.stride()) for t in states),
            tuple((arguments[i].shape, arguments[i].stride()) for i in self.inputs),
            place[-1],
        )
        recording = self.in_place.get(key)
        if recording is None and key in self.places:
            recording = self._record(self.in_place, key, arguments)
            if recording is not None:
                recording.place = place
        free = None if recording is None else recording.unheld() or self._twin(recording, arguments)
        if free is not None:
            self._take_turns()
            self.latest, self.has_lent = recording, True
            free.launch()
            return free.lend()
        if kind in self.places and not self.why:
            recording = self.copying.get(kind) or self._record(self.copying, kind, self._own(arguments))
            if recording is not None:
                self._take_turns()
                recording.take([arguments[i] for i in self.inputs])
                recording.launch()
                return recording.copies()
        if len(self.places) > MAX_PLACES:
            self.places.clear()
        self.places |= {key, kind}
        with uncached_autocast():
            return self.run(arguments)  # the first of its kind warms up what a recording may not do

    def _own(self, arguments: list[Any]) -> list[Any]:
        return [a.clone() if i in self.inputs else a for i, a in enumerate(arguments)]

    def _record(self, shelf: dict[Any, "_Recording"], key: Any, arguments: list[Any]) -> "_Recording | None":
        if len(shelf) >= MAX_RECORDINGS:
            shelf.clear()
            self.latest = None
        # Recordings of one pool write where others of it have their results: right for those whose results
        # are copied out at once, and wrong for what is lent.
        copying = shelf is self.copying
        try:
            recording = self._recorded(arguments, self.pool if copying else None)
        except CaptureRefused as error:
            self.why = f"no CUDA graph: {error}"
            return None
        if copying:
            self.pool = self.pool or recording.graph.pool()
            recording.buffers = [arguments[i] for i in self.inputs]
        shelf[key] = recording
        return recording

    def _twin(self, recording: "_Recording", arguments: list[Any]) -> "_Recording | None":
        """Another one of a recording whose results are held, if there shall be one."""
        if not recording.may_have_twin:
            return None
        recording.may_have_twin = False
        try:
            recording.twin = self._recorded(arguments, None)
        except CaptureRefused:  # for want of memory, say: the one there is goes on, and is copied
            return None
        return recording.twin

    def _recorded(self, arguments: list[Any], pool: Any) -> "_Recording":
        self._take_turns()
        torch.cuda.empty_cache()  # as a capture does; what is reserved grows by its memory then
        before = torch.cuda.memory_reserved()
        with uncached_autocast():
            graph, outputs = capture(lambda: self.run(arguments), pool)
        return _Recording(graph, arguments, outputs, torch.cuda.memory_reserved() - before)

    def _take_turns(self) -> None:
        """Two streams must not use a recording's memory at the same time."""
        now = current_stream()
        if self.stream is not None and self.stream != now:
            other = torch.cuda.Stream(
                stream_id=self.stream[0], device_index=self.stream[1], device_type=self.stream[2]
            )
            torch.cuda.current_stream().wait_stream(other)
        self.stream = now

    def _wants_gradients(self, arguments: list[Any]) -> bool:
        return any(arguments[i].requires_grad for i in self.tensors)


class _Recording:
    """A graph, the outputs it writes, and the bytes it has for itself.

    `buffers` are what it reads the caller's input from, unless it reads that in place.
    """

    def __init__(self, graph: Any, arguments: list[Any], outputs: Sequence[Any], size: int):
        self.graph, self.outputs, self.bytes = graph, outputs, size
        self.buffers: list[Tensor] = []
        self.place: Any = None
        self.twin: _Recording | None = None
        self.launch = graph.replay
        self.first: Any = outputs[0].detach if outputs and isinstance(outputs[0], Tensor) else None
        memory = {a.untyped_storage().data_ptr() for a in arguments if isinstance(a, Tensor)}
        self.storages = [o.untyped_storage() for o in outputs if isinstance(o, Tensor)]
        # Results that lie in the arguments' own memory are never ours to lend.
        self.lendable = all(s.data_ptr() not in memory for s in self.storages)
        self.may_have_twin = self.lendable and size <= TWIN_BYTES
        self.handles = [s._cdata for s in self.storages]
        self.holders = [_holders(h) for h in self.handles]

    def unheld(self) -> "_Recording | None":
        """This, or its twin: one of which nobody holds what was lent, nor a view of it."""
        if self.is_free():
            return self
        twin = self.twin
        return twin if twin is not None and twin.is_free() else None

    def is_free(self) -> bool:
        return self.lendable and [_holders(h) for h in self.handles] == self.holders

    def take(self, given: list[Tensor]) -> None:
        for buffer, tensor in zip(self.buffers, given, strict=True):
            buffer.copy_(tensor)

    def lend(self) -> Sequence[Any]:
        return [o.detach() if isinstance(o, Tensor) else o for o in self.outputs]

    def copies(self) -> Sequence[Any]:
        return [o.clone() if isinstance(o, Tensor) else o for o in self.outputs]


# How many tensors share a memory: views count, and what autograd has saved.
_holders = torch._C._storage_Use_Count


def _hashable(place: Any) -> Any:
    addresses, layouts, settings = place
    return tuple(addresses), tuple(layouts), settings
