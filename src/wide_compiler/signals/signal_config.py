"""Configuration of signals by name: workers, sharded axis, and signal of the backward pass."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..config import variable
from ..errors import ArgumentError, MissingFileError


@dataclass(frozen=True)
class ShardConfig:
    """Placement of tensors on `workers`.

    Args:
        workers: a list of worker ids, or a grid of several dimensions as `DeviceMesh` takes it.
        axis: the axis of data that is sharded, for a grid one for each of its dimensions. None replicates
            along that dimension.
        parameters: the axis of parameters that is sharded, in the same form. Default: `axis`, with 0 replaced
            by None. A mesh dimension that shards both rows of data (axis 0) and parameters gathers the
            parameters for the ops that use them, as FSDP does.

    >>> ShardConfig(axis=0, workers=[0, 1])
    ShardConfig(axis=0, workers=(0, 1), parameters=None)
    >>> ShardConfig(axis=[0, None], workers=[[0, 1], [2, 3]], parameters=[None, 1]).grid
    (2, 2)
    """

    axis: Any = 0
    workers: Any = field(default=(0,))
    parameters: Any = None

    def __post_init__(self) -> None:
        workers = _nested(self.workers, "shard.workers")
        object.__setattr__(self, "workers", workers)
        if len(set(self.ids)) < len(self.ids):
            raise ArgumentError(f"shard.workers names a worker twice: {list(workers)}")
        for name in ("axis", "parameters"):
            given = getattr(self, name)
            listed = isinstance(given, list | tuple)
            if listed:
                object.__setattr__(self, name, tuple(given))
            for i, axis in enumerate(given if listed else [given]):
                where = f"shard.{name}[{i}]" if listed else f"shard.{name}"
                if not (_is_int(axis) and axis >= 0) and not (axis is None and (listed or name != "axis")):
                    raise ArgumentError(f"{where} must be an int, 0 or more, got {axis!r}")
            if (len(given) if listed else 1) != len(self.grid) and given is not None:
                raise ArgumentError(
                    f"shard.{name} must be one axis for each dimension of shard.workers, which has "
                    f"{len(self.grid)}, got {given!r}"
                )

    @property
    def ids(self) -> tuple[int, ...]:
        """The workers in row-major order."""
        return tuple(_flat(self.workers))

    @property
    def grid(self) -> tuple[int, ...]:
        """The shape of their mesh."""
        shape, level = [], self.workers
        while isinstance(level, tuple):
            shape.append(len(level))
            level = level[0]
        return tuple(shape)

    @property
    def axes(self) -> tuple[int | None, ...]:
        return self.axis if isinstance(self.axis, tuple) else (self.axis,)

    @property
    def parameter_axes(self) -> tuple[int | None, ...]:
        if self.parameters is None:
            return tuple([axis or None for axis in self.axes])
        return self.parameters if isinstance(self.parameters, tuple) else (self.parameters,)


def mesh_of_dimensions(dimensions: Sequence[Mapping[str, Any]]) -> ShardConfig:
    """Return the config of a list such as `[{axis: 0, workers: 2}, {axis: 1, workers: 2}]`.

    `workers` is the number of workers along each mesh dimension.
    """
    sizes = []
    for i, dimension in enumerate(dimensions):
        count = dimension["workers"]
        if not _is_int(count) or count < 1:
            raise ArgumentError(
                f"shard[{i}].workers must be how many workers lie along this dimension, got {count!r}; "
                "to name them, write one shard with axis: [0, 1] and workers: [[0, 1], [2, 3]]"
            )
        sizes.append(count)
    workers = np.arange(math.prod(sizes)).reshape(sizes).tolist()
    axes = [dimension.get("axis", 0) for dimension in dimensions]
    parameters = [d.get("parameters", axis or None) for d, axis in zip(dimensions, axes, strict=True)]
    return ShardConfig(axes, workers, parameters)


def _nested(workers: Any, where: str) -> tuple:
    """Return a grid as nested tuples; raises ArgumentError unless all rows have one length."""
    if isinstance(workers, str) or not hasattr(workers, "__iter__"):
        raise ArgumentError(f"{where} must be a list of worker ids, got {workers!r}")
    listed = tuple(workers)
    if not listed:
        raise ArgumentError(f"{where} is empty; name at least one worker")
    if all(isinstance(row, list | tuple) for row in listed):
        rows = tuple(_nested(row, f"{where}[{i}]") for i, row in enumerate(listed))
        for i, row in enumerate(rows):
            if len(row) != len(rows[0]):
                raise ArgumentError(f"{where}[{i}] has {len(row)} workers, {where}[0] has {len(rows[0])}")
        return rows
    for i, worker in enumerate(listed):
        if not _is_int(worker) or worker < 0:
            raise ArgumentError(f"{where}[{i}] must be an int, 0 or more, got {worker!r}")
    return listed


def _flat(workers: Any) -> Iterator[int]:
    for w in workers:
        yield from _flat(w) if isinstance(w, tuple) else (w,)


@dataclass(frozen=True)
class SignalConfig:
    """Configuration of a signal.

    Args:
        shard: placement of tensors and ops; None leaves both where they are.
        backward_signal: name of the signal whose workers run the backward pass; None: this signal.
        compile: compile ops that repeat in its contexts, on the workers.
    """

    shard: ShardConfig | None = None
    backward_signal: str | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.shard, list | tuple) and all(isinstance(s, ShardConfig) for s in self.shard):
            raise ArgumentError(
                "shard is a list of ShardConfigs; a mesh of several dimensions is one, such as "
                "ShardConfig(axis=[0, 1], workers=[[0, 1], [2, 3]])"
            )
        if self.shard is not None and not isinstance(self.shard, ShardConfig):
            raise ArgumentError(f"shard must be a ShardConfig, got {self.shard!r}")
        if self.backward_signal is not None and not isinstance(self.backward_signal, str):
            raise ArgumentError(f"backward_signal must be the name of a signal, got {self.backward_signal!r}")
        if not isinstance(self.compile, bool):
            raise ArgumentError(f"compile must be True or False, got {self.compile!r}")


_signals: dict[str, SignalConfig] = {}
_environment_read: str | None = None


def register_config(name: str, config: SignalConfig) -> None:
    """Register a signal; replaces an earlier one of that name."""
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"a signal's name must be a non-empty string, got {name!r}")
    if not isinstance(config, SignalConfig):
        raise ArgumentError(f"{name}: expected a SignalConfig, got {type(config).__name__}")
    _read_environment()
    _signals[name] = config


def load_config(path: str | os.PathLike) -> dict[str, SignalConfig]:
    """Read signals from a YAML file and register them; returns them by name."""
    from .schema import parse_signals

    file = Path(path)
    if not file.is_file():
        raise MissingFileError(f"no signal config at {file.absolute()}")
    signals = parse_signals(file.read_text(), str(file))
    _signals.update(signals)
    return signals


def _read_environment() -> None:
    """Load the file named by `WIDE_COMPILER_CONFIG`, once, before the first lookup."""
    global _environment_read
    path = os.environ.get(variable("CONFIG"))
    if path and path != _environment_read:
        _environment_read = path
        load_config(path)


def find(name: str) -> SignalConfig | None:
    """Return the signal of this name, or None."""
    return signals().get(name)


def signals() -> dict[str, SignalConfig]:
    """Return all signals by name."""
    _read_environment()
    return _signals


def known() -> list[str]:
    return sorted(signals())


def clear_configs() -> None:
    """Remove every signal."""
    global _environment_read
    _signals.clear()
    _environment_read = None


def highest_worker() -> int:
    """Return the highest worker id that any signal names; 0 if none does."""
    return max((w for s in signals().values() if s.shard is not None for w in s.shard.ids), default=0)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
