"""Decisions of contests on disk, one small JSON file per key.

The file name is a hash of everything the decision depends on: the lane graph's code, shapes, lanes, dtypes,
device, mode, versions. Unreadable files and other formats count as missing.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..config import variable
from ..guards.modes import autocast_state, precision
from ..version import __version__

# Increase whenever the meaning of the stored data, or the measurement, changes; old decisions are ignored.
FORMAT = 3

# By hash: decisions used by this process, and decisions fixed by `hold_answers`.
_used: dict[str, dict[str, Any]] = {}
_held: dict[str, dict[str, Any]] = {}


class Store:
    """Stored decisions by key. If the folder is not writable, nothing is stored and no error is raised."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or default_folder()

    def read(self, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """Return the decision stored for `key`, or None."""
        digest = _digest(key)
        answer = _held.get(digest) or self._stored(digest)
        if answer is not None:
            _used[digest] = answer
        return answer

    def write(self, key: tuple[Any, ...], answer: dict[str, Any]) -> None:
        """Store `answer` atomically."""
        digest = _digest(key)
        _used[digest] = answer
        entry = {"format": FORMAT, "key": digest, "answer": answer}
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(handle, "w") as file:
                    json.dump(entry, file)
                os.replace(temporary, self._path(digest))
            except OSError:
                os.unlink(temporary)
                raise

    def _stored(self, digest: str) -> dict[str, Any] | None:
        try:
            entry = json.loads(self._path(digest).read_text())
            fresh = entry["format"] == FORMAT and entry["key"] == digest
            return entry["answer"] if fresh and isinstance(entry["answer"], dict) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest[:32]}.json"


def used_answers() -> dict[str, dict[str, Any]]:
    """Return the decisions used by this process so far, for `hold_answers` in a later one."""
    return dict(_used)


def hold_answers(answers: dict[str, dict[str, Any]]) -> None:
    """Fix decisions, overriding stored and measured ones.

    Other plans round differently; a resumed training must be bit for bit equal to an uninterrupted one.
    """
    _held.update({digest: answer | {"provisional": False} for digest, answer in answers.items()})


def default_folder() -> Path:
    """Return `WIDE_COMPILER_CACHE`, else `wide_compiler/tuning` in the user's cache folder."""
    if own := os.environ.get(variable("CACHE")):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "wide_compiler" / "tuning"


def circumstances(cuda: bool) -> tuple[Any, ...]:
    """Return what every decision depends on: versions, device, and modes that affect kernels."""
    if cuda:
        device: tuple[Any, ...] = (torch.cuda.get_device_name(), torch.version.cuda)
    else:
        device = (torch.backends.cpu.get_cpu_capability(), os.cpu_count(), torch.get_num_threads())
    return __version__, torch.__version__, device, precision(), autocast_state()


@contextlib.contextmanager
def nothing_remembered() -> Iterator[None]:
    """Context manager with an empty default folder, so that benchmarks measure the current code."""
    name = variable("CACHE")
    before = os.environ.get(name)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


def _digest(key: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()
