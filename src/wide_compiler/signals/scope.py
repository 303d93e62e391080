"""Scopes of signals: `signal.context`, `signal.enter`, `signal.exit`, `signal.tensor`."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..errors import ArgumentError
from ..workers.callsite import warn_user
from ..workers.layout import Axes
from ..workers.regions import Regions
from ..workers.stream import Mesh
from . import runtime, signal_config

if TYPE_CHECKING:
    from .creation import CreationMode


class Placement(NamedTuple):
    """The placement by an active signal.

    Attributes:
        mesh: its workers.
        axes: for each mesh dimension the axis of data that it shards, or None.
        parameters: the same for parameters.
        name: of the signal.
        compile: whether ops that repeat are compiled.
    """

    mesh: Mesh
    axes: Axes
    parameters: Axes
    name: str
    compile: bool

    @property
    def gathers(self) -> tuple[int, ...]:
        """Mesh dimensions that shard rows of data, and parameters only to save memory."""
        both = zip(self.axes, self.parameters, strict=True)
        return tuple([d for d, (axis, own) in enumerate(both) if axis == 0 and own is not None])


class EnteredSignal(NamedTuple):
    """A signal that was entered and not yet exited.

    Attributes:
        placement: of its tensors and ops; None if the signal has none.
        backward: placement of the backward pass of its ops, or None.
        start: autograd's sequence number at entry.
        recorded: number of instructions recorded at entry.
    """

    name: str
    placement: Placement | None
    backward: Placement | None
    start: int
    recorded: int
    mode: CreationMode


_scopes: ContextVar[tuple[EnteredSignal, ...]] = ContextVar("wide_compiler_signal_scopes", default=())
_nothing_new: ContextVar[bool] = ContextVar("wide_compiler_signal_nothing_new", default=False)
# The signal that placed the lanes of a wide model, while its graph is called outside any context.
lanes_of: ContextVar[str] = ContextVar("wide_compiler_lanes_of", default="")
_warned: set[str] = set()

# Ranges of autograd sequence numbers by signal, oldest first. Graphs are rarely older than a few steps; a
# node whose range was dropped runs on the mesh of its largest operand.
_KEPT_RANGES = 4096
_starts: list[int] = []
_ranges: list[tuple[int, int, Placement]] = []


def placement_of(name: str) -> Placement | None:
    """Return a signal's placement, or None if it is unknown (warns once) or has no shard."""
    found = signal_config.find(name)
    if found is None:
        if name not in _warned:
            _warned.add(name)
            known = ", ".join(signal_config.known()) or "none"
            warn_user(f"unknown signal {name!r} is ignored; known signals: {known}")
        return None
    if found.shard is None:
        return None
    shard = found.shard
    mesh = runtime.mesh_of(shard.ids, shard.grid)
    return Placement(mesh, shard.axes, shard.parameter_axes, name, found.compile)


def entered() -> tuple[tuple[str, Placement | None], ...]:
    """Return the entered signals, outermost first."""
    return tuple([(s.name, s.placement) for s in _scopes.get()])


def current() -> Placement | None:
    """Return the placement of the innermost signal that has one."""
    for scope in reversed(_scopes.get()):
        if scope.placement is not None:
            return scope.placement
    return None


def creating() -> Placement | None:
    """Return the placement of new tensors, or None."""
    return None if _nothing_new.get() else current()


@contextlib.contextmanager
def setting(variable: ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def nothing_new() -> AbstractContextManager[None]:
    """Inside, torch's creation functions make plain tensors."""
    return setting(_nothing_new, True)


def suspended() -> AbstractContextManager[None]:
    """Inside, no signal is active."""
    return setting(_scopes, ())


def backward_placement(sequence: int) -> Placement | None:
    """Return the placement of the backward of the autograd node with this sequence number, or None."""
    found = None
    last = bisect.bisect_right(_starts, sequence) - 1
    # Ranges nest as contexts do; the innermost starts last.
    for i in range(last, max(last - 64, -1), -1):
        start, end, placement = _ranges[i]
        if start <= sequence < end:
            found = placement
            break
    if found is None:
        for scope in reversed(_scopes.get()):
            if scope.backward is not None and scope.start <= sequence:
                return scope.backward
    return found


def enter(name: str, backward: str | None = None) -> None:
    """Activate a signal until `exit(name)`; `backward` as in `context`."""
    from .creation import CreationMode

    if not isinstance(name, str):
        raise ArgumentError(f"a signal's name must be a string, got {name!r}")
    placement = placement_of(name)
    found = signal_config.find(name)
    back_name = backward or (found.backward_signal if found is not None else None)
    behind = placement_of(back_name) if back_name is not None else placement
    mode = CreationMode()
    mode.__enter__()
    running = runtime.running()
    recorded = 0 if running is None else running.recorded
    scope = EnteredSignal(name, placement, behind, torch.autograd._get_sequence_nr(), recorded, mode)  # type: ignore[attr-defined]
    _scopes.set((*_scopes.get(), scope))
    if placement is not None:
        regions = runtime.engine().regions
        if placement.compile:
            regions.open(name)
        else:
            regions.close("another context begins inside it")


def exit(name: str) -> None:
    """Deactivate the signal entered last; raises ArgumentError unless `name` is its name."""
    scopes = _scopes.get()
    if not scopes:
        raise ArgumentError(f"signal.exit({name!r}): no signal has been entered")
    scope = scopes[-1]
    if scope.name != name:
        raise ArgumentError(
            f"signal.exit({name!r}): the signal entered last is {scope.name!r}; exit that one first"
        )
    _scopes.set(scopes[:-1])
    running = runtime.running()
    if running is not None and running.regions.name == name:
        running.regions.close()
    scope.mode.__exit__(None, None, None)
    if scope.placement is not None and scope.mode.plain and running is not None:
        _warn_of_idle_workers(scope, running.recorded)
    if scope.backward is not None:
        _remember(scope.start, torch.autograd._get_sequence_nr(), scope.backward)  # type: ignore[attr-defined]


def _warn_of_idle_workers(scope: EnteredSignal, recorded: int) -> None:
    if recorded != scope.recorded or f"idle {scope.name}" in _warned:
        return
    _warned.add(f"idle {scope.name}")
    warn_user(
        f"signal {scope.name!r}: {scope.mode.plain} op(s) ran in this process and none on its workers, "
        "since their tensors are plain; with `import wide_compiler.signals as gt`, bring data by "
        "gt.tensor(x), and modules by gt.adopt(module)"
    )


def follow_backward(regions: Regions, placement: Placement | None) -> None:
    """Open, keep or close the region for the next op of a backward pass; the end of the pass closes it."""
    name = placement.name if placement is not None and placement.compile else None
    if regions.name == name:
        return
    regions.close()
    if name is not None:
        regions.open(name)
        regions.backward = True
        torch.autograd.Variable._execution_engine.queue_callback(regions.close)


def _remember(start: int, end: int, placement: Placement) -> None:
    if start == end:
        return
    if _ranges and _ranges[-1][1] == start and _ranges[-1][2] == placement:
        _ranges[-1] = (_ranges[-1][0], end, placement)
        return
    at = bisect.bisect_right(_starts, start)  # an outer range is added after its inner ones
    _starts.insert(at, start)
    _ranges.insert(at, (start, end, placement))
    if len(_ranges) > _KEPT_RANGES:
        del _ranges[: _KEPT_RANGES // 2], _starts[: _KEPT_RANGES // 2]


@contextlib.contextmanager
def context(name: str, backward: str | None = None) -> Iterator[None]:
    """Place tensors and ops inside by a signal, and their backward pass by `backward`.

    Args:
        name: the signal. An unknown one is ignored with a warning.
        backward: name of a signal; default: the signal's `backward` setting, else the signal itself.
    """
    enter(name, backward)
    try:
        yield
    finally:
        exit(name)


def tensor(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return a copy of `x` placed by the signal; differentiable."""
    from .tensor import respread

    placement = placement_of(name)
    beyond = [a for a in placement.axes if a is not None and a >= x.ndim] if placement is not None else []
    if beyond:
        raise ArgumentError(
            f"signal.tensor: {name}.shard.axis is {beyond[0]}, out of range for a tensor of shape "
            f"{tuple(x.shape)}"
        )
    return respread(x, placement)


def forget_ranges() -> None:
    """Drop all ranges after a restart: the meshes of the old run are invalid."""
    _ranges.clear()
    _starts.clear()


def range_count() -> int:
    return len(_ranges)


runtime.in_fork.append(lambda: _scopes.set(()) and None)
