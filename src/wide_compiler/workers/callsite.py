"""Finds the line of the user's program that is running."""

import sys
from pathlib import Path
from types import CodeType
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
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        users = _known.get(code)
        if users is None:
            users = _known[code] = not code.co_filename.startswith(OURS)
        if users:
            return CallSite(code, frame.f_lasti)
        frame = frame.f_back  # type: ignore[assignment]
    return None
