"""Timing in turns."""

import time

from wide_compiler.tuning import interleaved


def waiting(seconds, log):
    def call():
        log.append(seconds)
        time.sleep(seconds)

    return call


def test_candidates_take_turns():
    log = []
    times = interleaved({"a": waiting(0.001, log), "b": waiting(0.002, log)}, seconds=0.02)
    assert times["a"] < times["b"]
    assert log[:4] == [0.001, 0.002, 0.002, 0.001]  # each round the other way round


def test_three_rounds_even_without_time():
    log = []
    interleaved({"a": waiting(0.001, log)}, seconds=0)
    assert len(log) == 3


def test_the_hopeless_are_left_out():
    slow, rounds = [], []
    interleaved(
        {"fast": lambda: time.sleep(0.0005), "slow": waiting(0.02, slow)},
        seconds=0.06,
        hopeless=1.5,
        on_round=rounds.append,
    )
    assert len(slow) < len(rounds)


def test_short_calls_are_repeated_within_a_sample():
    calls = []
    interleaved({"a": lambda: calls.append(1)}, seconds=0.003)
    assert len(calls) > 100
