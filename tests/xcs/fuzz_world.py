"""What the fuzzer's programs may call: pure, waiting, stateful and surprising things."""

import collections  # noqa: F401  for the programs
import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LOG: list = []
SCALE = 1.5
WEIGHTS = np.linspace(-1.0, 1.0, 4)
MATRIX = np.linspace(-1.0, 2.0, 12).reshape(3, 4) ** 3
GRID = np.cos(np.arange(70.0)).reshape(10, 7)
TABLE = {"a": 1.0, "b": 2.0}
NAMES = ["a", "b"]


def reset():
    LOG.clear()
    global SCALE
    SCALE = 1.5


def pure(x):
    return x * 2 + 1


def pure_two(x, y=3):
    z = x + y
    return z * x


def branchy(x):
    if x > 1:
        return x - 1
    elif x < -1:
        return x + 1
    return x * 0.5


def looping(x):
    total = 0
    for k in range(3):
        total += x * k
    return total


def guarded(x):
    try:
        return 1.0 / x
    except ZeroDivisionError:
        return 0.0


def bare_except(x):
    try:
        if x > 0:
            raise KeyError("positive")
        return x
    except:  # noqa: E722
        return -1


def picky(x):
    if x > 2:
        raise ValueError(f"too large: {x}")
    return x


def wait(x):
    time.sleep(0.0001)
    return x


def wait_and_fail(x):
    time.sleep(0.0001)
    if x > 2:
        raise KeyError(f"no {x}")
    return x


def log(x):
    LOG.append(x)
    return x


def say(x):
    print("say", x)
    return x


def rescale(x):
    global SCALE
    SCALE += 0.5
    return x * SCALE


def scaled(x):
    return x * SCALE


def remember(x, seen=[]):  # noqa: B006
    return [*seen, x]


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def centred(x):
    y = x - x.mean()
    y /= 2.0
    return y


def spoil(x):
    x[0] = 7.0
    return x.sum()


def first_two(x):
    return x[:2]


@dataclass
class Record:
    value: float
    row: np.ndarray


class Named(NamedTuple):
    value: float
    row: np.ndarray


class Box:
    factor = 3

    def __init__(self, shift):
        self.shift = shift
        self.calls = 0

    @property
    def twice(self):
        return self.shift * 2

    def move(self, x):
        return x * self.factor + self.twice

    def count(self, x):
        self.calls += 1
        return x + self.calls

    def __call__(self, x):
        return self.move(x) - 1


class Odd(float):
    """A number that keeps a diary."""

    def __add__(self, other):
        LOG.append("added")
        return float(self) + other


__all__ = [name for name in dir() if not name.startswith("__")] + ["math"]
