"""A clock that a test holds: no decision depends on real time."""

from collections.abc import Callable

import pytest

from wide_compiler.measure import Clock
from wide_compiler.measure.clock import Times


class HeldClock(Clock):
    """Says how long each candidate takes, by name; `tried` are those that were timed, in order."""

    def __init__(self, seconds: Callable[[str], float], busy: str = ""):
        self.seconds, self.busy = seconds, busy
        self.tried: list[str] = []

    def once(self, call, cuda):
        call()
        return 1e-9  # every plan can be afforded

    def turns(self, candidates, seconds, cuda=False, **options):
        for call in candidates.values():
            call()
        self.tried += candidates
        return Times({name: self.seconds(name) for name in candidates}, self.busy)


def prefers(name: str, busy: str = "") -> HeldClock:
    """The named candidate takes half as long as the others."""
    return HeldClock(lambda label: 1.0 if label == name else 2.0, busy)


class NoClock(Clock):
    """Nothing may be timed."""

    def once(self, call, cuda):
        pytest.fail("timed")

    def turns(self, candidates, seconds, cuda=False, **options):
        pytest.fail("timed")
