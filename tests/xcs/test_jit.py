"""`jit`: what may be decorated, what it looks like afterwards, what is left as it is."""

import asyncio
import inspect
import math
import sys
import warnings

import numpy as np
import pytest

from wide_compiler.xcs import Config, Mismatch, XcsWarning, jit
from wide_compiler.xcs.site import Site

NOW = Config(measure=False)


def rungs(function):
    return {rung for counts in function.stats().values() for rung in counts if rung != "plain"}


def rows(n=12):
    return list(np.random.default_rng(0).normal(size=(n, 4)))


def test_with_and_without_arguments():
    @jit
    def one(xs):
        return [2.0 * x for x in xs]

    @jit()
    def two(xs):
        return [2.0 * x for x in xs]

    @jit(config=NOW)
    def three(xs):
        return [2.0 * x for x in xs]

    for function in (one, two, three):
        assert function([1.0, 2.0]) == [2.0, 4.0]
    assert rungs(three) == {"numpy lanes"}


def test_it_stays_a_function_with_its_signature_name_and_text():
    def plain(xs, scale: float = 2.0, *, shift=1.0):
        """Scale and shift."""
        return [x * scale + shift for x in xs]

    fast = jit(plain, config=NOW)
    assert inspect.isfunction(fast)
    assert fast.__name__ == "plain" and fast.__doc__ == "Scale and shift." and fast.__wrapped__ is plain
    assert inspect.signature(fast) == inspect.signature(plain)
    assert fast([1.0, 2.0], shift=0.0) == plain([1.0, 2.0], shift=0.0)
    assert fast([1.0, 2.0], 3.0) == [4.0, 7.0]


def test_methods_classmethods_staticmethods_and_bound_methods():
    class Model:
        scale = 2.0

        @jit(config=NOW)
        def many(self, xs):
            return [x * self.scale for x in xs]

        @jit(config=NOW)
        @staticmethod
        def still(xs):
            return [x + 1.0 for x in xs]

        @jit(config=NOW)
        @classmethod
        def made(cls, xs):
            return [x * cls.scale for x in xs]

        def plain(self, xs):
            return [x - self.scale for x in xs]

    model = Model()
    assert model.many([1.0, 2.0]) == [2.0, 4.0] and rungs(model.many) == {"numpy lanes"}
    assert model.still([1.0, 2.0]) == [2.0, 3.0]
    assert Model.made([1.0, 2.0]) == [2.0, 4.0]
    assert jit(model.plain, config=NOW)([1.0, 2.0]) == [-1.0, 0.0]


def test_super_and_closures():
    class Base:
        def shift(self):
            return 1.0

    class Child(Base):
        @jit(config=NOW)
        def many(self, xs):
            shift = super().shift()
            return [x + shift for x in xs]

    assert Child().many([1.0, 2.0]) == [2.0, 3.0]

    def outer(scale):
        @jit(config=NOW)
        def inner(xs):
            return [x * scale for x in xs]

        return inner

    assert outer(2.0)([1.0, 2.0]) == [2.0, 4.0] and outer(3.0)([1.0, 2.0]) == [3.0, 6.0]


def test_lambdas_with_a_source():
    double = jit(lambda xs: [2.0 * x for x in xs], config=NOW)
    assert double([1.0, 2.0]) == [2.0, 4.0]
    assert rungs(double) == {"numpy lanes"}


def test_recursion_is_not_one_frame_deeper():
    def depth(n):
        return [] if n == 0 else [depth(m) for m in (n - 1,)]

    def frames(n):
        return len(inspect.stack()) if n == 0 else frames(n - 1)

    fast = jit(frames)
    assert fast(0) == frames(0)
    assert fast(3) == frames(3)
    assert jit(depth)(20) == depth(20)


def test_a_recursion_error_is_the_same():
    def endless(xs):
        return [endless([x]) for x in xs]

    for function in (endless, jit(endless)):
        with pytest.raises(RecursionError):
            function([1])


@pytest.mark.parametrize(
    "make", [lambda: len, lambda: np.add, lambda: math.sqrt], ids=["len", "ufunc", "sqrt"]
)
def test_c_functions_run_as_they_are(make):
    with pytest.warns(XcsWarning, match="no Python source code"):
        function = jit(make())
    assert "loop, because" in str(function.explain()) and function.stats() == {}
    assert make() is not len or function([1, 2]) == 2


def test_no_source_runs_as_it_is():
    space = {}
    exec("def made(xs):\n    return [x + 1 for x in xs]", space)
    with pytest.warns(XcsWarning, match="not available"):
        fast = jit(space["made"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # warned once
        assert fast([1, 2]) == [2, 3]
    assert "not available" in str(fast.explain())


def test_a_changed_source_is_not_trusted(tmp_path):
    path = tmp_path / "edited.py"
    path.write_text("def made(xs):\n    return [x + 1 for x in xs]\n")
    space = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    path.write_text("def made(xs):\n    return [x - 1 for x in xs]\n")
    with pytest.warns(XcsWarning, match="not what it was compiled from"):
        fast = jit(space["made"])
    assert fast([1, 2]) == [2, 3]


def test_generators_and_coroutines_run_as_they_are():
    def numbers(n):
        yield from range(n)

    async def later(x):
        return x

    with pytest.warns(XcsWarning, match="generator"):
        assert list(jit(numbers)(3)) == [0, 1, 2]
    with pytest.warns(XcsWarning, match="coroutine"):
        fast = jit(later)
    assert inspect.iscoroutinefunction(fast) and asyncio.run(fast(3)) == 3


def test_bad_input():
    with pytest.raises(TypeError, match="jit takes a function, got int"):
        jit(3)
    with pytest.raises(TypeError, match="config must be a Config"):
        jit(lambda x: x, config={"exact": True})
    with pytest.raises(ValueError, match="max_workers must be a positive integer"):
        Config(max_workers=0)


def test_the_off_switch():
    @jit(config=Config(enabled=False, measure=False))
    def off(xs):
        return [x * 2.0 for x in xs]

    assert off([1.0, 2.0]) == [2.0, 4.0] and off.stats() == {}
    assert "switched off" in str(off.explain())


def test_exact_takes_nothing_that_rounds_otherwise():
    matrix = np.linspace(-1.0, 2.0, 6).reshape(2, 3)

    def floats(xs):
        return [x * 2.0 + 1.0 for x in xs]

    def products(xs):
        return [matrix @ x for x in xs]

    def ints(xs):
        return [x * 2 + 1 for x in xs]

    exact = Config(exact=True, measure=False)
    assert rungs_after(jit(floats, config=exact), [1.0, 2.0, 3.0]) == {"numpy lanes"}
    assert rungs_after(jit(products, config=exact), list(np.ones((4, 3)))) == {"numpy lanes"}
    assert rungs_after(jit(ints, config=exact), [1, 2, 3]) == {"numpy lanes"}


def rungs_after(function, *arguments):
    function(*arguments)
    return rungs(function)


def test_check_mode_finds_a_wrong_result(monkeypatch):
    @jit(config=Config(measure=False))
    def doubled(xs):
        return [x * 2.0 for x in xs]

    monkeypatch.setenv("XCS_CHECK", "1")
    assert doubled([1.0, 2.0, 3.0]) == [2.0, 4.0, 6.0]
    site = doubled.__xcs__.sites[0]
    plan = site.plans[0]
    monkeypatch.setattr(plan.strategy, "run", lambda work: [0.0] * work.items.n)
    with pytest.raises(Mismatch, match="plain Python gives"):
        doubled([1.0, 2.0, 3.0])
    assert isinstance(site, Site)


def test_explain_line_by_line():
    @jit(config=NOW)
    def several(xs):
        a = [x * 2.0 for x in xs]
        b = [print(x) for x in xs]
        for x in xs:
            if x > 1.0:
                break
        return a, b

    assert "not run" in str(several.explain())
    several([1.0, 2.0])
    rows = several.explain().rows
    assert [r.line - rows[0].line for r in rows] == [0, 1, 2]
    assert rows[0].wide and rows[0].effect == "PURE" and rows[0].strategy in ("vectorized", "adaptive")
    assert "print has side effects" in rows[1].why and not rows[1].wide
    assert rows[2].how == "loop" and not rows[2].site
    assert next(iter(several.stats().values())) == {"numpy lanes": 1}


def test_a_jitted_function_inside_another():
    @jit(config=NOW)
    def inner(x):
        return x * 2.0 + 1.0

    @jit(config=NOW)
    def outer(xs):
        return [inner(x) for x in xs]

    for _ in range(3):
        assert outer([1.0, 2.0, 3.0]) == [3.0, 5.0, 7.0]
    assert rungs(outer) == {"numpy lanes"}


def test_python_version_is_known_to_work():
    assert sys.version_info >= (3, 11)
