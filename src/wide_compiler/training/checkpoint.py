"""Checkpoints as safetensors files, written atomically.

A file is written to a temporary folder, flushed to disk, then renamed into place. A crash or a full disk
leaves earlier checkpoints intact.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..errors import ArgumentError, CheckpointError, SaveError
from .packing import pack_state, unpack_state

# Increase whenever the meaning of the stored data changes.
FORMAT = 1
_NAME = re.compile(r"step-(\d+)\.safetensors")
_ASIDE = ".writing-"


class Checkpoints:
    """Checkpoints in one folder; only the last `keep` are kept.

    A checkpoint is any nesting of dicts, lists and tuples with tensors, arrays and plain values in it.

    >>> import tempfile
    >>> checkpoints = Checkpoints(tempfile.mkdtemp(), keep=2)
    >>> for step in (10, 20, 30): path = checkpoints.save(step, {"step": step})
    >>> checkpoints.steps(), checkpoints.load(checkpoints.latest())
    ([20, 30], {'step': 30})
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2):
        if not isinstance(keep, int) or keep < 1:
            raise ArgumentError(f"keep must be a positive integer, got {keep!r}")
        self.folder, self.keep = Path(folder), keep

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, ascending."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def latest(self) -> Path | None:
        """Return the path of the newest checkpoint, or None."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def save(self, step: int, state: Any) -> Path:
        """Write a checkpoint, then delete all but the last `keep`. Raise `SaveError` if writing fails."""
        tensors, text = pack_state(state)
        path = self.path(step)
        aside = self.folder / f"{_ASIDE}{os.getpid()}"
        try:
            for old in self.folder.glob(f"{_ASIDE}*"):  # of killed processes
                shutil.rmtree(old, ignore_errors=True)
            aside.mkdir(parents=True)
            save_file(tensors, aside / path.name, metadata={"wide_compiler": str(FORMAT), "state": text})
            flush(aside / path.name)
            os.replace(aside / path.name, path)
            flush(self.folder)
        except (OSError, SafetensorError) as error:
            latest = self.latest()
            left = f"the last good one is {latest}" if latest else "there is none before it"
            raise SaveError(
                f"the checkpoint {path} could not be written ({error}); {left}; free some space or name "
                f"another folder"
            ) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        for past in self.steps()[: -self.keep]:
            self.path(past).unlink(missing_ok=True)
        return path

    def load(self, path: str | os.PathLike[str]) -> Any:
        """Return the saved state, tensors on the CPU. Raise `CheckpointError` if the file cannot be read."""
        if not Path(path).is_file():
            raise CheckpointError(f"there is no checkpoint {path}")
        try:
            with safe_open(str(path), framework="pt") as file:
                facts = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}") from error
        if facts.get("wide_compiler") != str(FORMAT) or "state" not in facts:
            raise CheckpointError(
                f"{path} is not a checkpoint of this format ({FORMAT}): its metadata is {sorted(facts)}; "
                f"weights alone are read by wide.load"
            )
        return unpack_state(tensors, facts["state"])


def flush(path: Path) -> None:
    """Flush a file or folder to disk. Without it a rename may survive a crash while the data does not."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
