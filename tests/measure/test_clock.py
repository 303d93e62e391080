"""Timing in turns, by a clock that the test holds."""

import pytest

from wide_compiler.measure import clock, interleaved


class Machine:
    """Time passes only while a call runs."""

    def __init__(self):
        self.time, self.log = 0.0, []

    def taking(self, name, *seconds):
        """A call that takes these seconds in turn, the last ones for good."""
        left = list(seconds)

        def call():
            self.time += left.pop(0) if len(left) > 1 else left[0]
            self.log.append(name)

        return call


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(clock, "now", lambda: machine.time)
    return machine


def test_candidates_take_turns(machine):
    times = interleaved({"a": machine.taking("a", 1.0), "b": machine.taking("b", 2.0)}, seconds=20.0)
    assert times == {"a": 1.0, "b": 2.0}
    assert machine.log[:4] == ["a", "b", "b", "a"]  # each round the other way round
    assert machine.time == 21.0


def test_three_rounds_even_without_time(machine):
    interleaved({"a": machine.taking("a", 1.0)}, seconds=0)
    assert len(machine.log) == 3


def test_the_hopeless_are_left_out(machine):
    calls = {"fast": machine.taking("fast", 1.0), "slow": machine.taking("slow", 2.0)}
    times = interleaved(calls, seconds=20.0, hopeless=1.5)
    assert machine.log.count("slow") == 2 and machine.log.count("fast") > 5
    assert times == {"fast": 1.0, "slow": 2.0}


def test_short_calls_are_repeated_within_a_sample(machine):
    times = interleaved({"a": machine.taking("a", 2.0**-14)}, seconds=0)
    assert len(machine.log) == 1 + 2 * int(clock.SAMPLE_SECONDS * 2**14)
    assert times == {"a": 2.0**-14}


def test_one_slow_sample_does_not_count(machine):
    assert interleaved({"a": machine.taking("a", 1.0, 1.0, 50.0, 1.0)}, 0, rounds_at_least=5) == {"a": 1.0}


def test_signs_of_load(monkeypatch):
    monkeypatch.setattr(clock.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(clock.os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    even, uneven = [1.0, 1.01, 0.99, 1.0, 1.02], [1.0, 2.0, 1.1, 2.2, 1.0]
    assert clock.busy({"a": even, "b": even}, cuda=False) == ""
    assert "spread" in clock.busy({"a": uneven, "b": uneven}, cuda=False)
    assert clock.busy({"a": [1.0, 9.0]}, cuda=False) == ""  # too few samples to tell
    monkeypatch.setattr(clock.os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    assert clock.busy({"a": even}, cuda=False) == "load average 9.0 on 4 cores"
