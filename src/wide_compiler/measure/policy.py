"""Thresholds of a contest, with the reasons."""

from collections.abc import Mapping, Sequence

# A candidate replaces a simpler one if it takes less than this share of its time. Medians of nine interleaved
# rounds reproduce to about 3% on an idle machine.
MARGIN = 0.95
# For calls shorter than this, call overhead and clock resolution dominate.
SHORT_SECONDS, SHORT_MARGIN = 5e-7, 0.6

# Measuring may take as long as this many calls, and at most `config.tune_seconds`.
CALLS = 40
# Rounds of the final comparison between the best few.
FINAL_ROUNDS = 9
# Candidates slower than this multiple of the best are dropped early.
HOPELESS = 1.5
# Losers within this multiple of the winner may be faster on an idle machine. A decision made under load keeps
# up to MOST_CLOSE of them, to be timed again.
CLOSE, MOST_CLOSE = 1.6, 3


def beats(seconds: float, plain_seconds: float) -> bool:
    """Return whether a candidate is enough faster than a simpler one to replace it.

    >>> beats(0.97, 1.0), beats(0.9, 1.0)
    (False, True)
    """
    return seconds < margin(plain_seconds) * plain_seconds


def margin(plain_seconds: float) -> float:
    """Return the share of the simpler candidate's time that another must stay below."""
    return MARGIN if plain_seconds > SHORT_SECONDS else SHORT_MARGIN


def winner(seconds: Mapping[str, float], plain: Sequence[str]) -> str:
    """Return the fastest candidate, unless a simpler one takes about as long.

    Args:
        seconds: by name.
        plain: names of simple candidates, the simplest first. Each is preferred to the best of the less
            simple ones unless that beats it.

    >>> winner({"loop": 1.0, "wide": 0.97, "chunks": 0.5}, plain=["loop", "wide"])
    'chunks'
    >>> winner({"loop": 1.0, "wide": 0.97}, plain=["loop", "wide"])
    'loop'
    """
    others = [name for name in seconds if name not in plain]
    best = min(others, key=seconds.__getitem__, default=None)
    for name in reversed(plain):
        if name in seconds and (best is None or not beats(seconds[best], seconds[name])):
            best = name
    assert best is not None, "a contest without candidates"
    return best


def close_losers(seconds: Mapping[str, float], best: str) -> list[str]:
    """Return the names of close losers, the fastest first."""
    close = [name for name in seconds if name != best and seconds[name] < CLOSE * seconds[best]]
    return sorted(close, key=seconds.__getitem__)[:MOST_CLOSE]


def budget(call_seconds: float, most: float) -> float:
    """Return the seconds to spend on measuring a call of that length."""
    return min(most, max(0.004, CALLS * call_seconds))
