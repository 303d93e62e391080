"""How often a site is looked at: functions that are asked before each call, and cost next to nothing."""

import itertools
from collections.abc import Callable

yes = itertools.repeat(True).__next__
no = itertools.repeat(False).__next__


def after(calls: int) -> Callable[[], bool]:
    """False for so many calls, then True."""
    return itertools.chain(itertools.repeat(False, calls), itertools.repeat(True)).__next__
