"""The text of a function: private names, warnings of the compiler, functions that are made again."""

import ast
import time
import warnings

import pytest

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.text.rewrite import Rewriter
from wide_compiler.xcs.text.source import private_names

NOW = Config(measure=False)


class _Box:
    def __init__(self):
        self.__wait = 0.001

    def __waited(self, x):
        time.sleep(self.__wait)
        return x

    @jit(config=NOW)
    def all(self, xs):
        return [self.__waited(x) for x in xs]

    def later(self):
        @jit(config=NOW)
        def inner(xs):
            return [self.__waited(x) for x in xs]

        return inner

    def counting(self, xs):
        __n = 1

        @jit(config=NOW)
        def inner():
            nonlocal __n
            __n += 1
            try:
                return [x * __n for x in xs] + [self.__waited(__k) for __k in xs]
            except ValueError as __error:
                raise __error

        return inner


def ran(fast):
    return [rung for counts in fast.stats().values() for rung in counts]


def test_private_names_are_those_of_the_class():
    box = _Box()
    assert box.all([1, 2, 3]) == [1, 2, 3] and ran(_Box.all) == ["threads"]
    inner = box.later()
    assert inner([1, 2, 3]) == [1, 2, 3] and ran(inner) == ["threads"]
    inner = box.counting([1, 2])
    assert inner() == [2, 4, 1, 2] and inner() == [3, 6, 1, 2]


@pytest.mark.parametrize(
    ("qualified", "name"),
    [
        ("C.f", "_C__x"), ("_C.f", "_C__x"), ("g.<locals>.C.f", "_C__x"), ("C.f.<locals>.g", "_C__x"),
        ("f", "__x"), ("g.<locals>.f", "__x"), ("__.f", "__x"), ("A.C.f", "_C__x"),
    ],
)  # fmt: skip
def test_which_class_is_around(qualified, name):
    node = ast.parse("def f(): return __x, __y__, _z").body[0]
    found = [part.id for part in ast.walk(private_names(node, qualified)) if isinstance(part, ast.Name)]
    assert found == [name, "__y__", "_z"]


def test_what_the_compiler_warned_of_at_import_is_not_said_again(tmp_path):
    path = tmp_path / "warned.py"
    path.write_text(
        'def run(xs):\n    assert (xs, "never")\n    text = "\\d"\n    return [x + 1 for x in xs]\n'
    )
    space = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(path.read_text(), str(path), "exec"), space)
    before = list(warnings.filters)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jit(space["run"])([1, 2]) == [2, 3]
    assert warnings.filters == before


def deprecated(xs):
    warnings.warn("old", DeprecationWarning, stacklevel=2)
    return [x + 1 for x in xs]


def test_who_calls_is_warned_on_the_first_call_too():
    fast = jit(deprecated)
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fast([1, 2])
        assert [w.filename for w in caught] == [__file__]


def made(k):
    @jit
    def run(xs):
        return [x + k for x in xs]

    return run


def test_functions_that_are_made_again_share_their_text(monkeypatch):
    assert made(1)([1, 2]) == [2, 3]
    asked = []
    monkeypatch.setattr(Rewriter, "rewritten", lambda self: asked.append(self))
    one, two = made(2), made(3)
    assert one([1, 2]) == [3, 4] and two([1, 2]) == [4, 5] and not asked
    assert list(one.stats().values()) == [{"plain": 1}] == list(two.stats().values())
