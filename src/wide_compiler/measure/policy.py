"""The margins by which a contest is decided, and what it may cost. One place, with the reasons."""

from collections.abc import Mapping, Sequence

# A candidate must take less than this share of a plainer one's time to replace it. Medians of nine rounds
# taken in turns reproduce to about 3% on a quiet machine; the plainer way has fewer surprises.
MARGIN = 0.95
# Calls shorter than this are timed by few ticks of the clock, and call overhead is much of what is seen.
SHORT_SECONDS, SHORT_MARGIN = 5e-7, 0.6

# Measuring may cost as much as this many calls, and no more than `config.tune_seconds`.
CALLS = 40
# Rounds of the last comparison, between the best few.
FINAL_ROUNDS = 9
# Candidates slower than this multiple of the best are not timed to the end.
HOPELESS = 1.5
# Losers within this multiple of the winner may be faster on an idle machine: an answer taken under load keeps
# so many of them, to be timed once more.
CLOSE, MOST_CLOSE = 1.6, 3


def beats(seconds: float, plain_seconds: float) -> bool:
    """Is a candidate so much faster than a plainer one that it replaces it?

    >>> beats(0.97, 1.0), beats(0.9, 1.0)
    (False, True)
    """
    return seconds < margin(plain_seconds) * plain_seconds


def margin(plain_seconds: float) -> float:
    """The share of the plain way's time that a candidate must stay below."""
    return MARGIN if plain_seconds > SHORT_SECONDS else SHORT_MARGIN


def winner(seconds: Mapping[str, float], plain: Sequence[str]) -> str:
    """The fastest candidate, unless a plainer one takes about as long.

    Args:
        seconds: by name.
        plain: names that need no margin, the plainest first. Each replaces the best of the less plain ones
            unless that beats it.

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
    """Names of those that lost by little, the fastest first."""
    close = [name for name in seconds if name != best and seconds[name] < CLOSE * seconds[best]]
    return sorted(close, key=seconds.__getitem__)[:MOST_CLOSE]


def budget(call_seconds: float, most: float) -> float:
    """Seconds to spend on a call of that length."""
    return min(most, max(0.004, CALLS * call_seconds))
