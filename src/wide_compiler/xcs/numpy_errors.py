"""What NumPy warns of, or raises, where items are computed otherwise than one by one: it is only noticed, and
the plain loop decides. An `except` of the body must not meet there what it would not meet in plain Python."""

import functools
from typing import Any

import numpy as np


def watched_errors() -> dict[str, Any]:
    """How NumPy treats errors here, with all that is not ignored to be noticed."""
    return _watched(*np.geterr().items())


@functools.lru_cache(maxsize=64)
def _watched(*errors: tuple[str, str]) -> dict[str, Any]:
    return {kind: "ignore" if how == "ignore" else "call" for kind, how in errors}


def recorded_errors(noticed: list[Any], errors: dict[str, Any] | None = None) -> Any:
    """A context in which errors are added to a list: those that are not ignored here."""
    return np.errstate(call=lambda what, flag: noticed.append(what), **(errors or watched_errors()))
