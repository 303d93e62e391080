"""Side effects of every kind: they happen as written, or the loop does not move."""

import random
import sys

import numpy as np

from ._table import pattern
from .numbers import floats

THIS = sys.modules[__name__]
LOG: list = []
STATE = {"n": 0}
COUNT = 0


class Noisy:
    def __init__(self):
        self.seen = []

    def __call__(self, x):
        self.seen.append(x)
        return x


class Account:
    total = 0.0

    def add(self, x):
        self.total += x
        return self.total


@pattern("plain", floats)
def prints(xs):
    """print in the loop."""
    out = []
    for x in xs:
        print("at", x)
        out.append(x)
    return out


def shout(x):
    print(x)
    return x * 2.0


@pattern("plain", floats)
def prints_deep_inside(xs):
    """print in a function that is called."""
    return [shout(x) for x in xs]


def log(x):
    LOG.append(x)
    return x + 1.0


@pattern("plain", floats, world=lambda: list(LOG), reset=LOG.clear)
def appends_to_a_global(xs):
    """A global list that grows."""
    return [log(x) for x in xs]


def count(x):
    global COUNT
    COUNT += 1
    return COUNT


@pattern("plain", floats, world=lambda: COUNT, reset=lambda: setattr(THIS, "COUNT", 0))
def counts_globally(xs):
    """A global counter."""
    return [count(x) for x in xs]


def stateful(x):
    STATE["n"] += 1
    return x * STATE["n"]


@pattern("plain", floats, world=lambda: dict(STATE), reset=lambda: STATE.update(n=0))
def writes_a_dict(xs):
    """A global dict that is written."""
    return [stateful(x) for x in xs]


@pattern("plain", lambda n=24: (Noisy(), *floats(n)))
def object_that_remembers(noisy, xs):
    """An object that remembers its calls."""
    return [noisy(x) for x in xs]


@pattern("plain", lambda n=24: (Account(), *floats(n)))
def object_attribute(account, xs):
    """An attribute that is added to."""
    return [account.add(x) for x in xs]


@pattern("plain", floats, reset=lambda: random.seed(0))
def draws(xs):
    """Random numbers of Python."""
    return [x + random.random() for x in xs]


@pattern("plain", floats, reset=lambda: np.random.seed(0))
def draws_from_numpy(xs):
    """Random numbers of NumPy."""
    return [x + np.random.normal() for x in xs]


@pattern("plain", lambda n=24: (iter(range(n)), *floats(n)))
def eats_an_iterator(it, xs):
    """An iterator that is eaten on the way."""
    return [x + next(it) for x in xs]


@pattern("plain", lambda n=24: ({}, *floats(n)))
def fills_an_argument(cache, xs):
    """A dict argument that is filled."""
    out = []
    for x in xs:
        cache[x] = x * 2.0
        out.append(cache[x])
    return out


@pattern("plain", lambda n=24: ([0.0], *floats(n)))
def appends_to_an_argument(out, xs):
    """A list argument that grows."""
    for x in xs:
        out.append(x + out[-1])
    return len(out)


def swallow(x):
    try:
        if x > 1.0:
            raise ValueError(x)
        return x
    except:  # noqa: E722
        return -1.0


@pattern("plain", floats)
def swallows_everything(xs):
    """except: in the function that is called."""
    return [swallow(x) for x in xs]


@pattern("plain", floats)
def raises_with_message(xs):
    """An exception with a message, raised by an item."""
    return [x if x < 1.0 else [][int(x)] for x in xs]


@pattern("plain", lambda n=24: (list(range(n)), {i: i * 2 for i in range(n - 2)}))
def missing_key(xs, table):
    """A key that is missing."""
    return [table[x] for x in xs]
