"""The largest or smallest of rounded numbers: whatever comes near it is computed as written.

Then `max` and `min` give the very number that plain Python gives, and choose the same of several: unless
large numbers cancel, so that rounding moves them far.
"""

import itertools
import operator
from typing import Any

import numpy as np

from ..noticing import noticing
from ..work import Bail, Work

EXTREMES = ("max", "min")
NEAR = 1e-4  # of the largest number there is, far more than rounding moves any
FLOATS = (float, np.floating)
CONTAINERS = (tuple, list, dict, np.ndarray)
MANY = 16  # and one in a hundred: more that come near are not worth it


def settle(work: Work, values: list[Any]) -> None:
    """Put the plain values of those items in their place. Raises `Bail` if there are too many."""
    kinds = set(map(type, values))
    flat = kinds == {tuple}
    if flat:
        kinds = set(map(type, itertools.chain.from_iterable(values)))
    if any(issubclass(kind, CONTAINERS) for kind in kinds):
        raise Bail("the largest of things that hold others")
    if not any(issubclass(kind, FLOATS) for kind in kinds):
        return
    firsts: list[Any] = list(map(operator.itemgetter(0), values)) if flat else values
    if work.cond is not None or len(values) != work.items.n:
        raise Bail("the largest of rounded numbers, of which some were left out")
    try:
        high, low = max(firsts), min(firsts)
        room = NEAR * max(abs(high), abs(low))
    except TypeError:  # neither is a number
        raise Bail("the largest of things that begin with other than numbers") from None
    if work.site.text.eater == "max":
        near = [i for i, value in enumerate(firsts) if value >= high - room]
    else:
        near = [i for i, value in enumerate(firsts) if value <= low + room]
    if not near or len(near) > MANY + len(values) // 100:
        raise Bail("many items come near the largest, or one is nan")
    with noticing([]):  # NumPy has warned of them, or nothing was to be warned of
        for i in near:
            (values[i],) = work.compared(i)
