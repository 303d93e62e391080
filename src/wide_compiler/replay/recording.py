"""Replay: a call's kernels recorded once, and launched again while all that they read is where it was.

A recording holds addresses: it is replayed only while every tensor that it reads is where it was. Weights
seldom move. Inputs often do, so a recording either reads the caller's tensors where they lie, for loops that
reuse them, or has buffers that inputs are copied into.

Results lie in the recording's own memory. They are lent to the caller while nobody holds those of an
earlier call; in `y = model(x)` the earlier result is held until the call is over, so a small recording has a
twin, and the two take turns. A caller who keeps all results gets copies, from a recording that never lends.
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
        # By the addresses of all tensors: reads inputs where they lie. The others have buffers for them.
        self.in_place: dict[Any, _Recording] = {}
        self.lending: dict[Any, _Recording] = {}
        self.copying: dict[Any, _Recording] = {}
        self.latest: _Recording | None = None  # the latest that read the caller's tensors where they lie
        self.lender: _Recording | None = None  # whose memory the latest call handed out
        self.places: set[Any] = set()
        self.pool: Any = None
        self.stream: Any = None
        self.why = ""
        # A recording has one set of buffers: it is launched, and its results handed out, by one thread at a
        # time.
        self.lock = threading.Lock()

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if self.why or capturing() or (torch.is_grad_enabled() and self._wants_gradients(arguments)):
            self.lender = None
            return self.run(arguments)
        with self.lock:
            self.lender = None
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
                self.lender = latest
                free.launch()
                return free.lend()
        return self._another(arguments, place)

    def _another(self, arguments: list[Any], place: Any) -> Sequence[Any]:
        """A call that is not like the one before: find its recording, or make one.

        A call seen for the second time is recorded as it is (`key`). One whose weights, shapes and strides
        were seen before (`kind`) is recorded with buffers for its inputs.
        """
        key = _hashable(place)
        states = [arguments[i] for i in self.states]
        kind = (
            tuple((t.data_ptr(), t.stride()) for t in states),
            tuple((arguments[i].shape, arguments[i].stride()) for i in self.inputs),
            place[-1],
        )
        lent = self._lent(self.in_place, key, arguments, record=key in self.places)
        if lent is not None:
            self.latest = self.lender
            self.latest.place = place  # type: ignore[union-attr]
            return lent
        copying = self.copying.get(kind)
        small = copying is not None and copying.bytes <= TWIN_BYTES
        lent = self._lent(self.lending, kind, arguments, record=small)
        if lent is not None:
            return lent
        if kind in self.places and not self.why:
            if copying is None:
                copying = self._record(self.copying, kind, arguments)
            if copying is not None:
                self._take_turns()
                copying.take([arguments[i] for i in self.inputs])
                copying.launch()
                return copying.copies()
        if len(self.places) > MAX_PLACES:
            self.places.clear()
        self.places |= {key, kind}
        with uncached_autocast():
            return self.run(arguments)  # the first of its kind warms up what a recording may not do

    def _lent(
        self, shelf: dict[Any, "_Recording"], name: Any, arguments: list[Any], record: bool
    ) -> Sequence[Any] | None:
        """The results in memory of a recording, or of its twin; None if there is none, or both are held.

        Args:
            record: make it if there is none.
        """
        recording = shelf.get(name)
        if recording is None and record and not self.why:
            recording = self._record(shelf, name, arguments)
        free = None if recording is None else recording.unheld() or self._twin(recording, arguments)
        if recording is None or free is None:
            return None
        self._take_turns()
        self.lender = recording
        recording.take([arguments[i] for i in self.inputs])
        free.launch()
        return free.lend()

    def _record(self, shelf: dict[Any, "_Recording"], key: Any, arguments: list[Any]) -> "_Recording | None":
        if len(shelf) >= MAX_RECORDINGS:
            shelf.clear()
            self.latest = None
        if shelf is not self.in_place:
            arguments = [a.clone() if i in self.inputs else a for i, a in enumerate(arguments)]
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
        if shelf is not self.in_place:
            recording.buffers = [arguments[i] for i in self.inputs]
        shelf[key] = recording
        return recording

    def _twin(self, recording: "_Recording", arguments: list[Any]) -> "_Recording | None":
        """Another one of a recording whose results are held, if there shall be one."""
        if not recording.may_have_twin:
            return None
        recording.may_have_twin = False
        if recording.buffers:
            arguments = list(arguments)
            for i, buffer in zip(self.inputs, recording.buffers, strict=True):
                arguments[i] = buffer
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

    `buffers` are what it reads the caller's inputs from, unless it reads these where they lie.
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

    def take(self, given: Sequence[Tensor]) -> None:
        """Copy the caller's inputs into the buffers, if there are any."""
        for buffer, tensor in zip(self.buffers, given, strict=False):
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
