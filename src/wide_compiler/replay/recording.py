"""Replay: record a call's kernels once, and launch them again while all tensors are at the same addresses.

A recording contains addresses, so it is valid only while every tensor it reads is where it was. Weights
seldom move. Inputs often do, so a recording either reads the caller's tensors in place, for loops that reuse
them, or copies inputs into its own buffers.

Outputs are in the recording's memory. They are lent to the caller as long as no output of an earlier call is
alive. In `y = model(x)` the earlier output is alive until the call returns, so a small recording has a twin,
and the two alternate. A caller who keeps all outputs gets copies, from a recording that never lends.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..guards.modes import capturing, current_stream, launch_settings
from .cuda_graph import CaptureRefused, capture, uncached_autocast

Run = Callable[[list[Any]], Sequence[Any]]

# Maximum number of recordings, and of input addresses, per call; beyond it all are dropped, because weights
# that keep moving leave unusable recordings behind.
MAX_RECORDINGS = 4
MAX_PLACES = 64
# A larger recording has no twin; its run time makes copies negligible.
TWIN_BYTES = 256 * 2**20


class Replay:
    """Runs `run` as a recording if possible, else directly; `why` holds the reason.

    Args:
        run: function from a list of arguments to a sequence of outputs; launches the same kernels each time.
        arguments: of a first call; tensors must be at the same positions in every call.
        inputs: positions of the caller's tensors, which may be at any address; others seldom move.
    """

    def __init__(self, run: Run, arguments: Sequence[Any], inputs: Sequence[int]):
        self.run = run
        self.inputs = list(inputs)
        self.tensors = [i for i, a in enumerate(arguments) if isinstance(a, Tensor)]
        self.states = [i for i in self.tensors if i not in self.inputs]
        # Keyed by addresses of all tensors: these read inputs in place. The other two have input buffers.
        self.in_place: dict[Any, _Recording] = {}
        self.lending: dict[Any, _Recording] = {}
        self.copying: dict[Any, _Recording] = {}
        self.latest: _Recording | None = None  # the last one that read inputs in place
        self.lender: _Recording | None = None  # the one whose memory the last call returned
        self.places: set[Any] = set()
        self.pool: Any = None
        self.stream: Any = None
        self.why = ""
        # A recording has one set of buffers, so only one thread at a time may launch it and take its outputs.
        self.lock = threading.Lock()

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        learns = torch.is_grad_enabled() and any(arguments[i].requires_grad for i in self.tensors)
        if self.why or capturing() or learns:
            self.lender = None
            return self.run(arguments)
        with self.lock:
            self.lender = None
            return self._replayed(arguments)

    def _replayed(self, arguments: list[Any]) -> Sequence[Any]:
        # Hot path: for a small model this is the whole cost of a call. Compare all addresses with the last
        # call's.
        tensors = [arguments[i] for i in self.tensors]
        layouts = [t.is_contiguous() or t.stride() for t in tensors]  # cheaper than strides
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
        """Find or make a recording for a call that differs from the last one.

        A call with addresses seen before (`key`) is recorded in place. A call whose weights, shapes and
        strides were seen before (`kind`) is recorded with input buffers.
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
            return self.run(arguments)  # the first call of its kind does work that cannot be recorded

    def _lent(
        self, shelf: dict[Any, "_Recording"], name: Any, arguments: list[Any], record: bool
    ) -> Sequence[Any] | None:
        """Return outputs lent by a recording or its twin; None if neither is available.

        Args:
            record: make the recording if there is none.
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
        # Recordings that share a pool overwrite each other's outputs. That is fine if outputs are copied at
        # once, but not if they are lent.
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
        """Record a twin of a recording whose outputs are alive, unless it may not have one."""
        if not recording.may_have_twin:
            return None
        recording.may_have_twin = False
        if recording.buffers:
            arguments = list(arguments)
            for i, buffer in zip(self.inputs, recording.buffers, strict=True):
                arguments[i] = buffer
        try:
            recording.twin = self._recorded(arguments, None)
        except CaptureRefused:  # such as out of memory: continue with copies
            return None
        return recording.twin

    def _recorded(self, arguments: list[Any], pool: Any) -> "_Recording":
        self._take_turns()
        torch.cuda.empty_cache()  # as a capture does, so that its memory can be measured
        before = torch.cuda.memory_reserved()
        with uncached_autocast():
            graph, outputs = capture(lambda: self.run(arguments), pool)
        return _Recording(graph, arguments, outputs, torch.cuda.memory_reserved() - before)

    def _take_turns(self) -> None:
        """Make the current stream wait for the last one, since both use the recording's memory."""
        now = current_stream()
        if self.stream is not None and self.stream != now:
            number, index, kind = self.stream
            other = torch.cuda.Stream(stream_id=number, device_index=index, device_type=kind)
            torch.cuda.current_stream().wait_stream(other)
        self.stream = now


class _Recording:
    """A CUDA graph, its outputs, and its memory in bytes.

    `buffers` are its input buffers; empty if it reads the caller's tensors in place.
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
        # Outputs that are views of arguments must not be lent.
        self.lendable = all(s.data_ptr() not in memory for s in self.storages)
        self.may_have_twin = self.lendable and size <= TWIN_BYTES
        self.handles = [s._cdata for s in self.storages]
        self.holders = [_holders(h) for h in self.handles]

    def unheld(self) -> "_Recording | None":
        """Return this recording or its twin, whichever has no outputs alive, counting views; else None."""
        if self.is_free():
            return self
        twin = self.twin
        return twin if twin is not None and twin.is_free() else None

    def is_free(self) -> bool:
        return self.lendable and [_holders(h) for h in self.handles] == self.holders

    def take(self, given: Sequence[Tensor]) -> None:
        """Copy the caller's inputs into the buffers, if any."""
        for buffer, tensor in zip(self.buffers, given, strict=False):
            buffer.copy_(tensor)

    def lend(self) -> Sequence[Any]:
        return [o.detach() if isinstance(o, Tensor) else o for o in self.outputs]

    def copies(self) -> Sequence[Any]:
        return [o.clone() if isinstance(o, Tensor) else o for o in self.outputs]


# Number of tensors that share a storage, including views and tensors saved by autograd.
_holders = torch._C._storage_Use_Count


def _hashable(place: Any) -> Any:
    addresses, layouts, settings = place
    return tuple(addresses), tuple(layouts), settings
