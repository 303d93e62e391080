"""Which line of the user's program is running?"""

import sys
from pathlib import Path
from types import CodeType

import torch

_OURS = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).resolve().parents[1]),
    "<frozen",
    str(Path(sys.modules["contextlib"].__file__ or "").resolve()),
)
_known: dict[CodeType, bool] = {}


def user_line() -> str:
    """`file:line` of the innermost frame outside torch and this package."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        users = _known.get(code)
        if users is None:
            users = _known[code] = not code.co_filename.startswith(_OURS)
        if users:
            return f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"
