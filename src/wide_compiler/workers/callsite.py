"""Finds the line of the user's program that is running."""

import sys
import warnings
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

OURS = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).resolve().parents[1]),
    "<frozen",
    str(Path(sys.modules["contextlib"].__file__ or "").resolve()),
)
_known: dict[CodeType, bool] = {}


class CallSite(NamedTuple):
    """A position in a program, stored as two references; `str()` looks up the file and line."""

    code: CodeType
    instruction: int

    def __str__(self) -> str:
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end:
                return f"{self.code.co_filename}:{line}"
        return self.code.co_filename


def user_place() -> CallSite | None:
    """Return the position of the innermost frame outside torch and this package, or None."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if _is_users(frame.f_code):
            return CallSite(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


def warn_user(message: str) -> None:
    """Warn at the innermost line outside torch and this package, however deep the call is."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and not _is_users(frame.f_code):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_users(code: CodeType) -> bool:
    users = _known.get(code)
    if users is None:
        users = _known[code] = not code.co_filename.startswith(OURS)
    return users
