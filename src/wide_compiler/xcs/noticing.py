"""What NumPy warns of, or raises, where items are computed otherwise than one by one: it is only noticed, and
the plain loop decides. An `except` of the body must not meet there what it would not meet in plain Python."""

from typing import Any

import numpy as np


def watched_errors() -> dict[str, Any]:
    """How NumPy treats errors here, with all that is not ignored to be noticed."""
    return {kind: "ignore" if how == "ignore" else "call" for kind, how in np.geterr().items()}


def noticing(noticed: list[Any], errors: dict[str, Any]) -> Any:
    """A context in which errors are added to a list."""
    return np.errstate(call=lambda what, flag: noticed.append(what), **errors)
