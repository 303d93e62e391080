"""Comprehensions of two and three loops, jitted beside plain Python: results, types, errors and order."""

import itertools

import numpy as np
import pytest
import torch

from wide_compiler.measure import clock
from wide_compiler.xcs import Config, jit, site
from wide_compiler.xcs.costs import Schedule
from xcs import oracle

TABLE = {"a": [1.0, 2.0, 3.0], "b": [4.0], "c": [], "d": [5.0, 6.0]}
NESTED = {"x": {"p": 1.5, "q": 2.5}, "y": {"p": 3.5}, "z": {}}
ROWS = [[1.0, 2.0], [3.0], [], [4.0, 5.0, 6.0]]
TEXTS = ["alpha", "", "be ta", "c"]
MATRIX = np.arange(12.0).reshape(3, 4)
CUBE = np.arange(24.0).reshape(2, 3, 4)
IMAGE = np.arange(64.0).reshape(8, 8)


class Sheet:
    def __init__(self, cells):
        self.cells = cells


class Loud(list):
    """Iterating over it is the user's code."""

    count = 0

    def __iter__(self):
        type(self).count += 1
        return super().__iter__()


SHEETS = [Sheet([1.0, 2.0]), Sheet([]), Sheet([3.0])]


def values_of_a_dict():
    return [x for row in TABLE.values() for x in row]


def values_computed():
    return [x * 2.0 + 1.0 for row in TABLE.values() for x in row]


def items_of_a_dict():
    return [(k, x) for k, row in TABLE.items() for x in row]


def keys_of_a_dict():
    return [c + d for c in TABLE for d in TABLE]


def keys_view():
    return [c.upper() for key in TABLE.keys() for c in key]  # noqa: SIM118


def views_of_views():
    return [v + 1.0 for inner in NESTED.values() for v in inner.values()]


def items_of_items():
    return {(a, b): v for a, inner in NESTED.items() for b, v in inner.items()}


def lookups_by_key():
    return [NESTED[a][b] for a in NESTED for b in NESTED[a]]


def a_set_of_texts():
    return sorted(c for word in set(TEXTS) for c in word)


def a_set_inside():
    return [x + 1.0 for row in ROWS for x in set(row)]


def frozen_sets():
    return {x for row in frozenset([(1.0, 2.0), (3.0,)]) for x in row}


def letters():
    return [c for word in TEXTS for c in word]


def letters_of_a_text():
    return [a + b for a in "abc" for b in "xyz"]


def words():
    return [w.title() for text in TEXTS for w in text.split()]


def ranges():
    return [i * j for i in range(4) for j in range(5)]


def a_range_of_the_outer():
    return [i * 10 + j for i in range(5) for j in range(i)]


def empty_outer():
    return [x for row in [] for x in row]


def empty_range():
    return [j for i in range(0) for j in range(3)]


def empty_inner():
    return [x for row in [[], [], []] for x in row]


def zipped_outer():
    return [a * x for a, row in zip([1.0, 2.0, 3.0, 4.0], ROWS) for x in row]  # noqa: B905


def zipped_inner():
    return [a * b for row in ROWS for a, b in zip(row, row, strict=True)]


def zipped_as_one_name():
    return [x for pair in zip([1.0, 2.0], [3.0, 4.0], strict=True) for x in pair]


def enumerated():
    return [(i, j, x) for i, row in enumerate(ROWS) for j, x in enumerate(row)]


def enumerated_views():
    return [i + x for i, row in enumerate(TABLE.values()) for x in row]


def a_generator_outside():
    return [x + 1.0 for row in (r for r in ROWS) for x in row]


def a_generator_inside():
    return [x + 1.0 for row in ROWS for x in (y * 2.0 for y in row)]


def a_map_inside():
    return [x + 1.0 for row in ROWS for x in map(abs, row)]


def rows_of_an_array():
    return [x + 1.0 for row in MATRIX for x in row]


def arrays_in_a_list():
    return [float(x) for row in list(MATRIX) for x in row]


def arrays_of_a_cube():
    return [row.sum() for plane in CUBE for row in plane]


def patches():
    return [IMAGE[i : i + 4, j : j + 4].mean() for i in range(0, 8, 4) for j in range(0, 8, 4)]


def tensors_of_a_tensor():
    return [x * 2.0 for row in torch.arange(6.0).reshape(2, 3) for x in row]


def conditions():
    return [x for row in ROWS if row for x in row if x > 2.0]


def conditions_on_both():
    return [a + b for a in (1.0, 2.0, 3.0) if a > 1.0 for b in (4.0, 5.0) if a + b > 6.5]


def three_loops():
    return [x + y + z for x in (1.0, 2.0) for y in (3.0, 4.0) for z in (5.0, 6.0)]


def three_ranges():
    return [(i, j, k) for i in range(3) for j in range(i + 1) for k in range(j)]


def three_deep():
    return [x * 2.0 for plane in CUBE.tolist() for row in plane for x in row]


def three_views():
    deep = {"a": {"b": {"c": 1.0, "d": 2.0}}, "e": {}}
    return [v for one in deep.values() for two in one.values() for v in two.values()]


def a_set_comprehension():
    return {x % 2.0 for row in TABLE.values() for x in row}


def a_dict_comprehension():
    return {x: k for k, row in TABLE.items() for x in row}


def a_sum():
    return sum(x for row in TABLE.values() for x in row)


def a_maximum():
    return max(x * y for x in (1.0, 2.0) for y in (3.0, -4.0))


def any_of_all():
    return any(x > 4.0 for row in TABLE.values() for x in row), all(x for row in ROWS for x in row)


def joined():
    return "-".join(w for text in TEXTS for w in text.split())


def reversed_and_sorted():
    return [x for row in reversed(ROWS) for x in sorted(row, reverse=True)]


def fields_of_objects():
    return [c * 2.0 for sheet in SHEETS for c in sheet.cells]


def mixed_types():
    return [x for row in [(1, 2.0), ["a"], {"k": 1}] for x in row]


def a_list_of_tuples():
    return [a + x for a, row in [(1.0, [2.0, 3.0]), (4.0, ())] for x in row]


def nested_targets():
    return [i + a + b for i, (a, row) in enumerate([(1.0, [2.0]), (3.0, [4.0, 5.0])]) for b in row]


def not_iterable():
    return [x for row in [[1.0], 2.0] for x in row]


def not_iterable_in_a_view():
    return [x for row in {"a": [1.0], "b": None}.values() for x in row]


def too_many_to_unpack():
    return [a for row in [[(1.0, 2.0)], [(1.0, 2.0, 3.0)]] for a, b in row]


def the_third_divides_by_zero():
    return [1.0 / x for row in [[2.0, 1.0], [0.0]] for x in row]


def caught():
    try:
        return [x for row in TABLE.values() for x in row]
    except TypeError:
        return "another way"


def user_code_iterates():
    Loud.count = 0
    out = [x for row in [Loud([1.0]), Loud([2.0])] for x in row]
    return out, Loud.count


def user_code_outside():
    Loud.count = 0
    out = [x for row in Loud([[1.0], [2.0]]) for x in row]
    return out, Loud.count


def one_name_twice():
    return [x for x in ROWS for x in x]


def shadowed_inside():
    return [[x for x in (x, y)] for x in (1.0, 2.0) for y in (3.0, 4.0)]  # noqa: C416


def nothing_of_it_read():
    return [1.0 for row in ROWS for x in row]


def inside_a_function_of_its_arguments():
    def flat(rows, scale):
        return [x * scale for row in rows for x in row]

    fast = jit(flat, config=Config(measure=False))
    return [f(given, 2.0) for given in (ROWS, TABLE.values(), (), ROWS, MATRIX) for f in (flat, fast)]


PROGRAMS = [
    f for name, f in list(globals().items()) if callable(f) and getattr(f, "__module__", "") == __name__
]
PROGRAMS = [f for f in PROGRAMS if not isinstance(f, type)]


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_several_loops_give_what_plain_python_gives(program, measure):
    fast = jit(program, config=Config(measure=measure))
    for _ in range(4):
        oracle.compare(oracle.observe(program, ()), oracle.observe(fast, ()), rtol=1e-9)


@pytest.mark.parametrize(
    "program", [values_computed, views_of_views, rows_of_an_array, fields_of_objects, conditions_on_both]
)
def test_several_loops_are_vectorised_where_that_is_proven(program):
    fast = jit(program, config=Config(measure=False))
    for _ in range(3):
        fast()
    assert any("numpy lanes" in counts for counts in fast.stats().values()), str(fast.explain())


def test_more_rounds_than_are_listed_run_as_written(monkeypatch):
    monkeypatch.setattr(site, "MOST_ROUNDS", 10)
    fast = jit(lambda n: sum(i * j for i in range(n) for j in range(n)), config=Config(measure=False))
    assert [fast(n) for n in (3, 4, 50, 3)] == [9, 36, 1225**2, 9]


def windows(image):
    return [image[i : i + 8, j : j + 8].mean() for i in range(24) for j in range(24)]


def test_a_look_at_several_loops_is_timed_like_any_other(monkeypatch):
    """It says how long it took, and not when it began: the pause after it is counted from that."""
    ticks, looks = itertools.count(), []
    monkeypatch.setattr(clock, "now", lambda: 1e6 + 1e-6 * next(ticks))
    monkeypatch.setattr(Schedule, "rest", lambda self, looked, *_: looks.append(looked))
    fast, image = jit(windows), np.random.default_rng(0).normal(size=(32, 32))
    for _ in range(2):
        assert fast(image) == windows(image)
    assert len(looks) == 2 and max(looks) < 1e5
