"""Fields of objects that a proof has read: what the class gets later may come before them.

Each class is changed after its fast path was taken, and once more in a way that leaves the field what it was.
"""

import dataclasses
import functools
import gc
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from wide_compiler.xcs import Config, jit
from xcs import oracle

NOW = Config(measure=False)
NUMBERS = [0.5 * i + 1.0 for i in range(9)]
READS = []


class Settings:
    other = 1.0

    def __init__(self):
        self.w = 2.0

    @staticmethod
    def halved(x):
        return x * 0.5


@dataclasses.dataclass
class Pair:
    a: float
    b: float


def taken(fast, rung="numpy lanes"):
    return sum(counts.get(rung, 0) for counts in fast.stats().values())


def noted(value):
    def read(self, name=None):
        READS.append(name)
        return value

    return read


def reading(self, name):
    if name == "halved":
        READS.append(name)
    return object.__getattribute__(self, name)


class ForDeletion:
    """A descriptor that only takes deletions, which comes before a field as well."""

    def __get__(self, owner, kind):
        READS.append("got")
        return 7.0

    def __delete__(self, owner):
        raise AttributeError


def proven_pure(fast):
    return any(row.effect == "PURE" and row.strategy for row in fast.explain().rows)


def compared(plain, fast, *arguments):
    seen = []
    for called in (plain, fast):
        READS.clear()
        observed = oracle.observe(called, arguments)
        observed.world = len(READS)
        seen.append(observed)
    oracle.compare(*seen, rtol=1e-9)


CHANGES = {
    "a property": {"w": property(noted(3.0))},
    "a mocked property": {"w": mock.PropertyMock(return_value=3.0)},
    "a descriptor that takes deletions": {"w": ForDeletion()},
    "reading in a way of its own": {"__getattribute__": noted(5.0)},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("inherited", [False, True])
def test_what_a_class_gets_later_comes_before_a_field(change, inherited):
    base = type("Base", (), {})
    settings = type("Kind", (base,), {})()
    settings.w = 2.0

    def run(xs):
        return [x * settings.w for x in xs]

    fast = jit(run, config=NOW)
    for _ in range(3):
        compared(run, fast, NUMBERS)
    assert taken(fast) == 3
    for name, value in CHANGES[change].items():
        setattr(base if inherited else type(settings), name, value)
    compared(run, fast, NUMBERS)
    compared(run, fast, NUMBERS)
    assert taken(fast) == 3
    for name in CHANGES[change]:
        delattr(base if inherited else type(settings), name)
    compared(run, fast, NUMBERS)
    assert taken(fast) == 4


def test_a_field_stays_what_it_is_beside_other_changes_of_its_class():
    settings = Settings()

    def run(xs):
        return [x * settings.w for x in xs]

    fast = jit(run, config=NOW)
    for Settings.other in (2.0, 3.0):
        compared(run, fast, NUMBERS)
        Settings.w = Settings.other  # the object's own comes first
        compared(run, fast, NUMBERS)
    del Settings.w
    compared(run, fast, NUMBERS)
    assert taken(fast) == 5


def test_a_property_over_the_fields_of_items(monkeypatch):
    def run(pairs):
        return [np.exp(pair.a) * pair.b for pair in pairs]

    pairs, fast = [Pair(x, 2.0) for x in NUMBERS], jit(run, config=NOW)
    compared(run, fast, pairs)
    assert proven_pure(fast)
    monkeypatch.setattr(Pair, "a", property(noted(3.0)), raising=False)
    compared(run, fast, pairs)
    assert not proven_pure(fast) and "READS.append" in str(fast.explain())


def test_a_method_of_a_class_that_reads_in_a_way_of_its_own_by_now(monkeypatch):
    settings = Settings()

    def run(xs):
        return [settings.halved(x) for x in xs]

    fast = jit(run, config=NOW)
    for _ in range(3):
        compared(run, fast, NUMBERS)
    assert taken(fast) == 3
    with monkeypatch.context() as patched:
        patched.setattr(Settings, "__getattribute__", reading)
        compared(run, fast, NUMBERS)
    monkeypatch.setattr(Settings, "halved", classmethod(Settings.halved))
    compared(run, fast, NUMBERS)
    assert taken(fast) == 3


def test_a_parameter_that_its_class_hides(monkeypatch):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.full((4,), 2.0))

    layer, rows = Scaled(), list(torch.arange(36.0).reshape(9, 4))

    def run(xs):
        with torch.no_grad():
            return [x * layer.w for x in xs]

    fast = jit(run, config=NOW)
    compared(run, fast, rows)
    assert taken(fast, "torch vmap") == 1
    vars(layer)["w"] = torch.full((4,), 3.0)
    compared(run, fast, rows)
    assert taken(fast, "torch vmap") == 2
    del vars(layer)["w"]
    Scaled.w = property(noted(torch.full((4,), 5.0)))
    compared(run, fast, rows)
    assert taken(fast, "torch vmap") == 2


class Point:
    scale = 2.0

    def __init__(self, x):
        self.x, self.y = x, 0.5

    def size(self):
        return self.x * self.y * self.scale


def sizes(points):
    return [p.size() + p.x for p in points]


def dictionaries(points):
    """How many of them have one: Python makes it when somebody asks an object for its `__dict__`, and keeps
    it, after which reading the object's fields takes longer."""
    return sum(type(held) is dict for point in points for held in gc.get_referents(point))


def test_objects_are_left_as_they_are():
    points = [Point(float(i)) for i in range(200)]
    before = dictionaries(points)
    fast, wanted = jit(sizes, config=NOW), sizes(points)
    for _ in range(3):
        assert fast(points) == wanted
    assert fast.__xcs__.sites[0].plans[0].guards.hold({"body": lambda p: None}, [points]) is not None
    assert dictionaries(points) <= before + 3  # those that were analysed, and compared


class Getter:
    """A descriptor that does not take writes: an object's own field comes before it."""

    def __get__(self, held, kind):
        READS.append(held)
        return 7.0


def test_what_a_class_has_under_a_field_is_asked_by_nobody_else(monkeypatch):
    monkeypatch.setattr(Point, "x", Getter(), raising=False)
    points = [Point(float(i)) for i in range(9)]
    fast = jit(sizes, config=NOW)
    for change in (lambda: None, lambda: vars(points[4]).pop("x"), lambda: vars(points[4]).update(x=1.0)):
        change()
        READS.clear()
        wanted = sizes(points)
        asked = list(READS)
        READS.clear()
        assert fast(points) == wanted and asked == READS


@pytest.mark.parametrize("name, value", [("size", lambda: 3.0), ("scale", 5.0), ("x", 9.0), ("other", 1.0)])
def test_a_field_of_one_item_that_the_class_has_too(name, value):
    points = [Point(float(i)) for i in range(9)]
    fast = jit(sizes, config=NOW)
    for _ in range(2):
        assert fast(points) == sizes(points)
    setattr(points[5], name, value)
    for _ in range(2):
        assert fast(points) == sizes(points)


class Document:
    def __init__(self, number):
        self.number = number

    @functools.cached_property
    def parsed(self):
        READS.append(self.number)
        return self.number * 10


def parsed_of_the_first(documents):
    return [d.parsed for d in documents if d.number == 0]


@pytest.mark.parametrize("config", [NOW, Config()])
def test_no_guard_runs_what_a_class_computes_when_asked(config):
    fast, documents = jit(parsed_of_the_first, config=config), [Document(i) for i in range(9)]
    for _ in range(300):
        READS.clear()
        assert fast(documents) == [0] and READS in ([], [0])


def test_a_method_of_another_object_is_no_method_of_this_one():
    points = [Point(float(i)) for i in range(9)]
    fast = jit(sizes, config=NOW)
    assert fast(points) == sizes(points)
    points[4].size = points[7].size
    for _ in range(2):
        assert fast(points) == sizes(points)
