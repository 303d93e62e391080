"""Atomic replacement of folders."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ..errors import SaveError
from ..training.checkpoint import flush


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a new folder next to the old one, then swap them: a killed process leaves the old or the new.

    Files that only the old folder has are kept. If only one file changed, that file alone is replaced.
    Otherwise the folders are swapped, and `recover` restores the old one after a kill between the two
    renames.
    """
    folder = Path(os.path.abspath(folder))
    if folder.exists() and not folder.is_dir():
        raise SaveError(f"{folder} is a file, expected a folder to save an adapter to")
    recover(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(new, ignore_errors=True)
    try:
        write(new)
        for file in new.rglob("*"):
            if file.is_file():
                flush(file)
        _put_in_place(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def recover(folder: Path) -> None:
    """Restore a folder that was moved away for a replacement that is missing."""
    old = _aside(folder)
    if old.exists() and not folder.exists():
        with contextlib.suppress(FileNotFoundError):  # another process restored it first
            os.rename(old, folder)


def _put_in_place(new: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(new, folder)
        return
    names = [file.relative_to(new) for file in new.rglob("*") if file.is_file()]
    changed = [name for name in names if not _same(new / name, folder / name)]
    if len(changed) > 1:
        for file in folder.rglob("*"):  # keep files that are not the adapter's
            target = new / file.relative_to(folder)
            if file.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)
        old = _aside(folder)
        shutil.rmtree(old, ignore_errors=True)
        os.rename(folder, old)
        os.rename(new, folder)
        shutil.rmtree(old, ignore_errors=True)
    for name in changed if len(changed) == 1 else ():
        os.replace(new / name, folder / name)


def _same(a: Path, b: Path) -> bool:
    return b.is_file() and a.read_bytes() == b.read_bytes()


def _aside(folder: Path) -> Path:
    folder = Path(os.path.abspath(folder))
    return folder.with_name(f".{folder.name}.old")
