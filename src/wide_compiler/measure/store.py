"""Answers of contests on disk: one small JSON file per question.

The file's name is a digest of everything the answer depends on: the lane graph's code, shapes, lanes, dtypes,
device, mode, versions. Whatever cannot be read, or was written by another version, counts as not there.
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

from ..guards.modes import autocast_state, precision
from ..version import __version__

# Raised whenever the meaning of what is stored changes, or what was measured; older answers are then measured
# anew.
FORMAT = 3


class Store:
    """Answers by key. A store that cannot be written to forgets, and nothing else."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder or default_folder()

    def read(self, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """The answer kept for `key`, or None."""
        try:
            entry = json.loads(self._path(key).read_text())
            fresh = entry["format"] == FORMAT and entry["key"] == _digest(key)
            return entry["answer"] if fresh and isinstance(entry["answer"], dict) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, key: tuple[Any, ...], answer: dict[str, Any]) -> None:
        """Keep `answer`. Written beside and moved into place, so that no reader sees half a file."""
        entry = {"format": FORMAT, "key": _digest(key), "answer": answer}
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(handle, "w") as file:
                    json.dump(entry, file)
                os.replace(temporary, self._path(key))
            except OSError:
                os.unlink(temporary)
                raise

    def _path(self, key: tuple[Any, ...]) -> Path:
        return self.folder / f"{_digest(key)[:32]}.json"


def default_folder() -> Path:
    """`WIDE_COMPILER_CACHE`, else `wide_compiler/tuning` in the user's cache folder."""
    if own := os.environ.get("WIDE_COMPILER_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "wide_compiler" / "tuning"


def circumstances(cuda: bool) -> tuple[Any, ...]:
    """What every answer was measured under: versions, device, and modes that kernels depend on."""
    if cuda:
        device: tuple[Any, ...] = (torch.cuda.get_device_name(), torch.version.cuda)
    else:
        device = (torch.backends.cpu.get_cpu_capability(), os.cpu_count(), torch.get_num_threads())
    return __version__, torch.__version__, device, precision(), autocast_state()


@contextlib.contextmanager
def nothing_remembered() -> Iterator[None]:
    """Whoever asks for the default folder gets an empty one, which goes with this context: a benchmark shall
    measure what the code does now.
    """
    before = os.environ.get("WIDE_COMPILER_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WIDE_COMPILER_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("WIDE_COMPILER_CACHE")
            if before is not None:
                os.environ["WIDE_COMPILER_CACHE"] = before


def _digest(key: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()
