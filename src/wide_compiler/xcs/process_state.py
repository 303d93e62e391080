"""What belongs to a process and decides about results: taken along to another one, or a reason to stay."""

import builtins
import contextlib
import dis
import itertools
import locale
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from .names import codes_of, names_of

SETS = (set, frozenset)
SEEDED = (*SETS, hash)  # each process hashes strings in its own way, and its sets are in another order


def current() -> dict[str, Any]:
    """How numbers are computed and written here."""
    return {
        "errors": watched_errors(),
        "print": np.get_printoptions(),
        "digits": sys.get_int_max_str_digits(),
        "locale": locale.setlocale(locale.LC_NUMERIC),
    }


def watched_errors() -> dict[str, Any]:
    """What NumPy warns of, or raises, in plain Python must be seen there. Where items are computed otherwise
    it is only noticed: an `except` of the body must not meet what it would not meet there."""
    return {kind: "ignore" if how == "ignore" else "call" for kind, how in np.geterr().items()}


@contextlib.contextmanager
def taken_over(state: dict[str, Any]) -> Iterator[list[Any]]:
    """Compute and write numbers as another process does; gives what it would have been warned of."""
    sys.set_int_max_str_digits(state["digits"])
    if locale.setlocale(locale.LC_NUMERIC) != state["locale"]:
        locale.setlocale(locale.LC_NUMERIC, state["locale"])
    with warnings.catch_warnings(record=True) as noticed, np.printoptions(**state["print"]):
        warnings.simplefilter("always")
        with np.errstate(call=lambda what, flag: noticed.append(what), **state["errors"]):
            yield noticed


def depends_on_hashes(function: types.FunctionType) -> bool:
    """Does it hash, or make a set other than to look whether something is in it?"""
    builtin = names_of(function.__code__) - function.__globals__.keys()
    if any(getattr(builtins, name, None) in SEEDED for name in builtin):
        return True
    return any(map(_makes_set, codes_of(function.__code__)))


def _makes_set(code: types.CodeType) -> bool:
    steps = list(dis.get_instructions(code))  # the last one returns or raises
    for step, following in itertools.pairwise(steps):
        made = step.opname in ("BUILD_SET", "SET_ADD", "SET_UPDATE") or type(step.argval) in SETS
        if made and following.opname != "CONTAINS_OP":
            return True
    return False
