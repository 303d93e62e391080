"""What belongs to a process and decides about results: taken along to another one, or a reason to stay."""

import contextlib
import dis
import functools
import itertools
import locale
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..noticing import noticing, watched_errors
from ..text.names import codes_of

SETS = (set, frozenset)
SEEDED = (*SETS, hash)  # each process hashes strings in its own way, and its sets are in another order

SINGLE = (None, True, False, ...)


def current() -> dict[str, Any]:
    """How numbers are computed and written here."""
    return {
        "errors": watched_errors(),
        "print": np.get_printoptions(),
        "digits": sys.get_int_max_str_digits(),
        # Each call may have come by way of C, which counts as well: rather less than there are.
        "calls": sys.getrecursionlimit() - 2 * _depth(),
        "locale": locale.setlocale(locale.LC_NUMERIC),
    }


@contextlib.contextmanager
def taken_over(state: dict[str, Any]) -> Iterator[list[Any]]:
    """Compute and write numbers as another process does; gives what it would have been warned of."""
    sys.set_int_max_str_digits(state["digits"])
    if locale.setlocale(locale.LC_NUMERIC) != state["locale"]:
        locale.setlocale(locale.LC_NUMERIC, state["locale"])
    before = sys.getrecursionlimit()
    with warnings.catch_warnings(record=True) as noticed, np.printoptions(**state["print"]):
        warnings.simplefilter("always")
        with noticing(noticed, state["errors"]):
            sys.setrecursionlimit(_depth() + state["calls"])
            try:
                yield noticed
            finally:
                sys.setrecursionlimit(before)


def _depth() -> int:
    """How many calls are open."""
    count, frame = 0, sys._getframe()
    while frame.f_back is not None:
        count, frame = count + 1, frame.f_back
    return count


def makes_set(code: types.CodeType) -> bool:
    """Does it make a set other than to look whether something is in it?"""
    for step, following in _steps(code):
        made = step.opname in ("BUILD_SET", "SET_ADD", "SET_UPDATE") or type(step.argval) in SETS
        if made and following.opname != "CONTAINS_OP":
            return True
    return False


def compares_identity(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Does it ask with `is` for anything but None, True, False and classes, which are the same anywhere?"""
    for step, following in _steps(code):
        if following.opname == "IS_OP":
            single = step.opname == "LOAD_CONST" and any(step.argval is only for only in SINGLE)
            if not single and not (step.opname == "LOAD_GLOBAL" and isinstance(space.get(step.argval), type)):
                return True
    return False


def global_names(code: types.CodeType) -> set[str]:
    """Names that it reads as globals; all other names are those of attributes."""
    steps = (step for step, _ in _steps(code))
    return {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


@functools.lru_cache(maxsize=256)
def _steps(code: types.CodeType) -> list[tuple[dis.Instruction, dis.Instruction]]:
    """The instructions of a function and of those inside it, each with the one after it; the last one returns
    or raises."""
    return [pair for inner in codes_of(code) for pair in itertools.pairwise(dis.get_instructions(inner))]
