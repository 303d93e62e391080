"""Signals by name: which workers, which axis, which signal for the backward pass."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, MissingFileError


@dataclass(frozen=True)
class ShardConfig:
    """Cut along `axis` over `workers`.

    >>> ShardConfig(axis=0, workers=[0, 1])
    ShardConfig(axis=0, workers=(0, 1))
    """

    axis: int = 0
    workers: tuple[int, ...] = field(default=(0,))

    def __post_init__(self) -> None:
        if not _is_int(self.axis) or self.axis < 0:
            raise ArgumentError(f"shard.axis must be an int, 0 or more, got {self.axis!r}")
        if isinstance(self.workers, str) or not hasattr(self.workers, "__iter__"):
            raise ArgumentError(f"shard.workers must be a list of worker ids, got {self.workers!r}")
        workers = tuple(self.workers)
        object.__setattr__(self, "workers", workers)
        if not workers:
            raise ArgumentError("shard.workers is empty; name at least one worker")
        for i, worker in enumerate(workers):
            if not _is_int(worker) or worker < 0:
                raise ArgumentError(f"shard.workers[{i}] must be an int, 0 or more, got {worker!r}")
        if len(set(workers)) < len(workers):
            raise ArgumentError(f"shard.workers names a worker twice: {list(workers)}")


@dataclass(frozen=True)
class SignalConfig:
    """What a signal means.

    shard: where tensors and ops go; None leaves both where they are.
    backward_signal: the signal whose workers run the backward pass; None: the same as forward.
    compile: what repeats in its contexts is compiled on the workers.
    """

    shard: ShardConfig | None = None
    backward_signal: str | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        if self.shard is not None and not isinstance(self.shard, ShardConfig):
            raise ArgumentError(f"shard must be a ShardConfig, got {self.shard!r}")
        if self.backward_signal is not None and not isinstance(self.backward_signal, str):
            raise ArgumentError(f"backward_signal must be the name of a signal, got {self.backward_signal!r}")
        if not isinstance(self.compile, bool):
            raise ArgumentError(f"compile must be True or False, got {self.compile!r}")


_signals: dict[str, SignalConfig] = {}
_environment_read: str | None = None


def register_config(name: str, config: SignalConfig) -> None:
    """Give a signal a meaning; an earlier one of that name is replaced."""
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"a signal's name must be a non-empty string, got {name!r}")
    if not isinstance(config, SignalConfig):
        raise ArgumentError(f"{name}: expected a SignalConfig, got {type(config).__name__}")
    _read_environment()
    _signals[name] = config


def load_config(path: str | os.PathLike) -> dict[str, SignalConfig]:
    """Read signals from a YAML file and register them. Returns what it read."""
    from .schema import parse_signals

    file = Path(path)
    if not file.is_file():
        raise MissingFileError(f"no signal config at {file.absolute()}")
    signals = parse_signals(file.read_text(), str(file))
    _signals.update(signals)
    return signals


def _read_environment() -> None:
    """`GT_CONFIG` names a file that is read before the first signal is looked up."""
    global _environment_read
    path = os.environ.get("GT_CONFIG")
    if path and path != _environment_read:
        _environment_read = path
        load_config(path)


def find(name: str) -> SignalConfig | None:
    """The signal of this name, or None."""
    _read_environment()
    return _signals.get(name)


def known() -> list[str]:
    _read_environment()
    return sorted(_signals)


def clear_configs() -> None:
    """Forget every signal."""
    global _environment_read
    _signals.clear()
    _environment_read = None


def highest_worker() -> int:
    """The highest worker id that any signal names; 0 if none does."""
    _read_environment()
    return max((w for s in _signals.values() if s.shard is not None for w in s.shard.workers), default=0)


def as_dict(config: SignalConfig) -> dict[str, Any]:
    return dataclasses.asdict(config)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
