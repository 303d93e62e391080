"""Cases made to break the promise. Each shows what plain Python shows, on three calls in a row."""

import contextvars
import functools
import math
import sys
import threading
import time
import types
import warnings

import numpy as np
import pytest
import torch

from wide_compiler.xcs import Config, jit
from xcs import oracle

NOW = Config(measure=False)
THIS = sys.modules[__name__]
SHARED = [1.0]
LOG = []
USER = contextvars.ContextVar("user", default="nobody")
NAN = float("nan")


def check(function, make=lambda: (), rung=None):
    fast = jit(function, config=NOW)
    for _ in range(3):
        LOG.clear()
        plain = oracle.observe(function, make())
        plain.world = list(LOG)
        LOG.clear()
        got = oracle.observe(fast, make())
        got.world = list(LOG)
        oracle.compare(plain, got, rtol=1e-9)
    ran = {r for c in fast.stats().values() for r in c if r != "plain"}
    assert ran == ({rung} if rung else set()), str(fast.explain())


def floats(n=9):
    return ([0.5 * i - 1.0 for i in range(n)],)


def arrays(n=9):
    return (list(np.random.default_rng(0).normal(size=(n, 3, 4))),)


def test_identity_of_numbers_is_not_asked_of_lanes():
    check(lambda xs: [x + 0 is x for x in xs], lambda: ([1, 2, 3, 4],))
    check(lambda xs: [(x > 1) is True for x in xs], floats)
    check(lambda xs: [x is not None and x > 1 for x in xs], floats, "numpy lanes")


def test_nan_as_a_member_is_told_by_identity():
    check(lambda xs: len({x for x in xs}), lambda: ([NAN, NAN, 1.0],))  # noqa: C416
    check(lambda xs: {x: 1 for x in xs}, lambda: ([NAN, NAN, 1.0],))  # noqa: C420


def with_nan(n=9):
    return ([NAN if i % 3 == 1 else 0.5 * i + 1.0 for i in range(n)],)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x,
        lambda x: x if x > 1.0 or x != x else x * 2.0,
        lambda x: (x * 2.0, [x]),
        lambda x: float(x),
        lambda x: max(x, 1.0),
    ],
)
def test_nan_that_is_handed_through_is_the_same_object(body):
    def run(xs):
        return [body(x) for x in xs]

    def found(called, xs):
        return [x in values for x in xs for values in [called(xs), [v for v in called(xs) if v == v]]]

    fast = jit(run, config=NOW)
    assert found(fast, *with_nan()) == found(run, *with_nan())
    assert "numpy lanes" not in next(iter(fast.stats().values()))
    check(run, floats, "numpy lanes")


def test_nan_in_and_none_out():
    check(lambda xs: [x > 2.0 for x in xs], with_nan, "numpy lanes")
    check(lambda xs: [math.floor(x) if x == x else 0 for x in xs], with_nan, "numpy lanes")
    check(lambda xs: [x * 2.0 for x in xs], lambda: (np.array(with_nan()[0]),), "numpy lanes")


@pytest.mark.parametrize(
    "run",
    [
        lambda xs: {float(np.log(x).sum()) for x in xs},
        lambda xs: {i: np.log(x).sum() for i, x in enumerate(xs)},
        lambda xs: [np.log(x * y).sum() for x in xs for y in (1.0, 2.0)],
    ],
)
def test_items_that_are_timed_first_do_not_warn_twice(run):
    fast, rows = jit(run), [np.array([0.0, 1.0 + i]) for i in range(30)]
    for _ in range(3):
        counts = []
        for called in (run, fast):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                called(rows)
            counts.append(len(seen))
        assert counts[0] == counts[1] > 0
    assert fast.__xcs__.sites[0].first.recent  # they were timed


def test_a_logarithm_with_a_base_is_no_output_argument():
    check(lambda xs: [math.log(x + 3.0, 2.0) for x in xs], floats, "numpy lanes")


def test_memory_order_of_results():
    check(lambda xs: [x.T * 2.0 for x in xs], arrays)
    check(lambda xs: [(x * 2.0)[:, ::2] for x in xs], arrays)
    check(lambda xs: [x * 2.0 for x in xs], lambda: ([np.asfortranarray(a) for a in arrays()[0]],))
    check(lambda xs: [x * 2.0 for x in xs], arrays, "numpy lanes")


def test_a_shadowed_eater_gets_a_generator():
    def sum(values):
        return [type(values).__name__, *values]

    def eat(xs):
        return sum(x * 2.0 for x in xs)

    check(eat, floats)


def test_a_shadowed_maker_gives_a_shared_list():
    def list():
        return SHARED

    def fill(xs):
        out = list()
        for x in xs:
            out.append(x + len(SHARED))
        del SHARED[1:]
        return [*out]

    check(fill, floats)


def test_a_set_that_is_filled():
    def fill(xs):
        seen = set()
        for x in xs:
            seen.add(x * 2.0)
        return seen

    check(fill, floats, "numpy lanes")


def test_operators_of_a_float_subclass_and_numbers_in_disguise():
    class Loud(float):
        def __mul__(self, other):
            LOG.append("mul")
            return 1.0

    check(lambda xs: [x * 2.0 for x in xs], lambda: ([Loud(1.0), Loud(2.0)],))
    check(lambda xs: [x * 2.0 for x in xs], lambda: ([1.0, 2.0, Loud(3.0)],))
    check(lambda xs: [x * 2 for x in xs], lambda: ([1, True, 2],))


def test_a_list_subclass_is_not_looked_into():
    class Rows(list):
        def __iter__(self):
            LOG.append("iterated")
            return super().__iter__()

    check(lambda xs: [x * 2.0 for x in xs], lambda: (Rows([1.0, 2.0]),))


def test_zero_division_overflow_and_domain_errors_are_pythons_own():
    for text in (
        "1.0 / x",
        "x // 0.0",
        "x % 0.0",
        "1 // int(x)",
        "math.sqrt(x)",
        "math.log(x)",
        "x ** -1",
        "x ** 0.5",
    ):
        space = {"math": math}
        name = f"<adversary {text}>"
        source = f"def f(xs):\n    return [{text} for x in xs]\n"
        import linecache

        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), space)
        check(space["f"], lambda: ([2.0, 1.0, 0.0, -1.0],))
    check(lambda xs: [x * 1e308 for x in xs], lambda: ([1.0, 100.0],))
    check(lambda xs: [math.exp(x) for x in xs], lambda: ([1.0, 1000.0],))


def test_integers_beyond_64_bits_midway():
    check(lambda xs: [x * x * x * x for x in xs], lambda: ([10**4, 10**5, 10**6],))
    check(lambda xs: [x + 2**62 for x in xs], lambda: ([1, 2**62],))
    check(lambda xs: [x**8 for x in xs], lambda: ([3, 300],))


def test_truth_of_products_that_cancel():
    weights = np.array([1.0, -1.0])

    def close(xs):
        return [bool(x @ weights > 0.0) for x in xs]

    check(close, lambda: ([np.array([0.1 * 3, 0.3]), np.array([1.0, 2.0])],), "numpy lanes")


def test_negative_zero_and_signs():
    check(
        lambda xs: [(x % 7, x // 2, -x, abs(x)) for x in xs], lambda: ([-0.0, 0.0, -7.0, 6.5],), "numpy lanes"
    )
    check(lambda xs: [(x % 7, x // 2, -x, x % -3) for x in xs], lambda: ([-7, 0, 6, -1],), "numpy lanes")


def test_bools_are_integers_too():
    check(lambda xs: [(x + x, -x, x * 2, abs(x)) for x in xs], lambda: ([True, False, True],), "numpy lanes")


def test_a_swallowed_bail_out_is_seen():
    def swallow(x):
        try:
            return f"{x}"
        except BaseException:
            return "swallowed"

    check(lambda xs: [swallow(x) for x in xs], floats)


def test_a_class_patched_between_calls():
    class Model:
        def one(self, x):
            return x + 1.0

    def run(model, xs):
        return [model.one(x) for x in xs]

    fast, model, xs = jit(run, config=NOW), Model(), floats()[0]
    assert fast(model, xs) == run(model, xs)
    Model.one = lambda self, x: LOG.append(x) or x - 1.0
    LOG.clear()
    assert fast(model, xs) == [x - 1.0 for x in xs] and xs == LOG
    model.one = lambda x: 7.0
    assert fast(model, xs) == [7.0] * len(xs)


def test_code_swapped_between_calls():
    def helper(x):
        return x + 1.0

    def run(xs):
        return [helper(x) for x in xs]

    fast, xs = jit(run, config=NOW), floats()[0]
    assert fast(xs) == run(xs)
    helper.__code__ = (lambda x: x * 100.0).__code__
    assert fast(xs) == [x * 100.0 for x in xs]
    helper.__defaults__ = (1.0,)
    assert fast(xs) == [x * 100.0 for x in xs]


def test_a_list_changed_between_the_sites_it_joins():
    def run(xs):
        doubled = [x * 2.0 for x in xs]
        doubled[0] = xs[0]
        first = [d.sum() for d in doubled]
        again = [x + 1.0 for x in xs]
        again[0][:] = 5.0
        return first, [a.sum() for a in again]

    check(run, arrays, "numpy lanes")


def test_rows_may_be_written_into_afterwards():
    def run(xs):
        doubled = [x * 2.0 for x in xs]
        for d in doubled:
            d += 1.0
        return doubled, xs

    check(run, arrays, "numpy lanes")


def test_results_that_are_one_object_twice():
    def twice(x):
        y = x * 2.0
        return y, y

    check(lambda xs: [twice(x) for x in xs], arrays)
    check(lambda xs: [[0.0] for x in xs], floats)
    check(lambda xs: [SHARED for x in xs], floats)


def test_threads_carry_context_and_modes():
    def wait(x):
        time.sleep(0.001)
        return x, SHARED[0], torch.ones(1, requires_grad=True) * 2.0

    def run(xs):
        with torch.no_grad():
            return [wait(x) for x in xs]

    fast = jit(run, config=NOW)
    assert all(not tensor.requires_grad for _, _, tensor in fast([1.0, 2.0, 3.0]))


def test_the_lowest_failing_item_is_raised_and_none_starts_after_a_known_failure():
    started = []

    def slow(i):
        time.sleep(0.03 if i == 1 else 0.002)
        if i in (1, 2):
            raise ValueError(f"item {i}")
        return i

    from wide_compiler.xcs.parallel.threads import Overlap

    run = Overlap(lambda i: started.append(i) or slow(i), 40, 4)
    run.start(4)
    run.finish()
    assert min(run.errors) == 1 and isinstance(run.errors[1], ValueError)
    assert sorted(started) == started[: len(started)] or sorted(started) == list(range(len(started)))
    assert len(started) < 40 and len(started) == len(set(started))

    def all_of(xs):
        return [slow(x) for x in xs]

    fast = jit(all_of, config=NOW)
    with pytest.raises(ValueError, match="item 1"):
        fast(list(range(16)))


def test_a_cause_of_an_error_is_kept():
    def fail(x):
        time.sleep(0.001)
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    def run(xs):
        return [fail(x) for x in xs]

    with pytest.raises(ValueError, match="outer") as raised:
        jit(run, config=NOW)([1, 2, 3])
    assert isinstance(raised.value.__cause__, KeyError)


def test_stop_iteration_inside_a_generator_that_waits():
    def stop(x):
        time.sleep(0.001)
        if x == 2:
            raise StopIteration("enough")
        return x

    check(lambda xs: sum(stop(x) for x in xs), lambda: ([1, 2, 3],), "threads")
    check(lambda xs: [stop(x) for x in xs], lambda: ([1, 2, 3],), "threads")


def test_unbound_names_raise_what_python_raises():
    def late(xs):
        out = [x + shift for x in xs]  # noqa: F821
        shift = 1.0
        return out, shift

    def total(xs):
        for x in xs:
            amount += x  # noqa: F821
        return amount

    check(late, floats)
    check(total, floats)
    check(total, lambda: ([],))


def test_from_many_threads_at_once():
    @jit(config=NOW)
    def run(xs):
        doubled = [x * 2.0 for x in xs]
        return [d.sum() for d in doubled]

    wrong = []

    def work(seed):
        xs = list(np.random.default_rng(seed).normal(size=(20, 4)))
        for _ in range(20):
            if not np.allclose(run(xs), [(x * 2.0).sum() for x in xs]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_wrapped_cached_and_partial_functions_are_left_alone():
    @functools.lru_cache
    def cached(x):
        LOG.append(x)
        return x

    def noisy(scale, x):
        LOG.append(x)
        return scale * x

    check(lambda xs: [functools.partial(noisy, 2.0)(x) for x in xs], floats)
    fast = jit(lambda xs: [cached(x) for x in xs], config=NOW)
    assert fast([1.0, 2.0]) == [1.0, 2.0]
    assert isinstance(cached, functools._lru_cache_wrapper) and not isinstance(cached, types.FunctionType)


def halved_or_not(x):
    return x * 0.5 if x[0] > 0 else x * 3.0


def total(x):
    return float(x.sum())


def test_rows_of_a_site_before_keep_their_order_where_branches_part():
    def two_sites(rows):
        scaled = [halved_or_not(row) for row in rows]
        return [total(row) for row in scaled]

    fast = jit(two_sites, config=NOW)
    same_way = [np.arange(1.0, 5.0) + i for i in range(40)]
    both_ways = [row * (-1.0) ** (i % 3) for i, row in enumerate(same_way)]
    for rows in (same_way, both_ways, same_way, both_ways):
        np.testing.assert_allclose(fast(rows), two_sites(rows), rtol=1e-12)
    assert all(set(counts) == {"numpy lanes"} for counts in fast.stats().values())


def sometimes_reversed(rows):
    if rows[0][0] > 1.5:
        rows.reverse()
    return len(rows)


def test_rows_changed_within_the_next_statement():
    def mention(rows):
        doubled = [row * 2.0 for row in rows]
        return sometimes_reversed(doubled), [total(row) for row in doubled]

    def repeat(rows):
        doubled = [row * 2.0 for row in rows]
        while sum(total(row) * i for i, row in enumerate(doubled)) > 0 and sometimes_reversed(doubled) < 0:
            pass
        return [total(row) for row in doubled]

    for function in (mention, repeat):
        fast = jit(function, config=NOW)
        for scale in (0.5, 1.0, 0.5, 1.0):
            rows = [scale * (np.arange(1.0, 5.0) + i) for i in range(20)]
            assert fast(rows) == function(rows)
        assert any("numpy lanes" in counts for counts in fast.stats().values())


def parts(x):
    y = x * 2.0
    return (y, y[1:]) if y[0] > 5.0 else (y, y[1:] + 0.0)


def test_two_parts_of_a_result_that_share_memory():
    def views(xs):
        return [parts(x) for x in xs]

    fast = jit(views, config=NOW)
    for scale in (1.0, 9.0, 1.0, 9.0):
        args = ([scale * np.arange(1.0, 5.0) for _ in range(9)],)
        oracle.compare(oracle.observe(views, args), oracle.observe(fast, args), rtol=1e-9)
    assert next(iter(fast.stats().values()))["numpy lanes"] >= 1


def test_vectors_of_other_types_and_shapes_are_not_mixed():
    def sums(xs):
        return [total(x) for x in xs]

    vectors = [np.arange(4.0) + i for i in range(12)]
    odd = [
        np.arange(4), np.arange(4.0, dtype=np.float32), np.arange(5.0), np.arange(4.0)[:, None],
        np.arange(3.0), np.arange(4.0).astype(">f8"), np.arange(8.0)[::2], np.arange(4.0)[::-1],
    ]  # fmt: skip
    fast = jit(sums, config=NOW)
    for other in odd:
        for place in (0, 5, 11):
            rows = [*vectors[:place], other, *vectors[place + 1 :]]
            assert fast(rows) == sums(rows)
    assert fast(vectors) == sums(vectors)
    assert fast.stats()[next(iter(fast.stats()))]["numpy lanes"] == 1


def test_a_long_result_lies_in_blocks_and_every_row_has_its_own_place():
    def doubled(xs):
        return [x * 2.0 for x in xs]

    def chained(xs):
        twice = [x * 2.0 for x in xs]
        return [x + 1.0 for x in twice]

    xs = [np.full(700, float(i)) for i in range(4000)]  # 22 MB: several blocks of several parts
    for function, expected in ((doubled, lambda i: 2.0 * i), (chained, lambda i: 2.0 * i + 1.0)):
        fast = jit(function, config=NOW)
        rows = fast(xs)
        assert [row[0] for row in rows] == [expected(i) for i in range(4000)]
        rows[17][:] = -1.0
        assert rows[16][-1] == expected(16) and rows[18][0] == expected(18)
        assert max(row.base.nbytes for row in rows) <= 2**23
        assert all(set(counts) == {"numpy lanes"} for counts in fast.stats().values())


LAYER = torch.nn.Linear(3, 3)


def quiet_layer(x):
    with torch.no_grad():
        return LAYER(x)


def named_context(x):
    with torch.no_grad() as nothing:
        return x.sum() if nothing is None else x


def raising_quietly(x):
    with torch.no_grad():
        if x.shape[0] != 3:
            raise ValueError("three")
        return LAYER(x)


def tensors(n=9):
    return ([torch.full((3,), 0.5 * i) for i in range(n)],)


def test_gradients_are_off_within_no_grad_and_on_again_after_it():
    fast = jit(lambda xs: [quiet_layer(x) for x in xs], config=NOW)
    for on in (True, False, True):
        with torch.set_grad_enabled(on):
            assert not any(y.requires_grad for y in fast(*tensors()))
            assert torch.is_grad_enabled() is on
    assert next(iter(fast.stats().values())) == {"torch vmap": 3}
    leaf = torch.ones(3, requires_grad=True)
    assert not any(y.requires_grad for y in fast([leaf * 2.0, leaf * 3.0, leaf]))


def test_a_context_that_raises_or_gives_something(monkeypatch):
    check(lambda xs: [named_context(x) for x in xs], tensors)
    check(lambda xs: [raising_quietly(x) for x in xs], tensors, "torch vmap")
    check(lambda xs: [raising_quietly(x) for x in xs], lambda: ([*tensors()[0], torch.ones(4)],))
    assert torch.is_grad_enabled()


def test_another_no_grad_is_seen(monkeypatch):
    def run(xs):
        return [quiet_layer(x) for x in xs]

    fast = jit(run, config=NOW)
    assert not any(y.requires_grad for y in fast(*tensors()))
    with monkeypatch.context() as patch:  # its own: the fixtures' patches stay
        patch.setattr(torch, "no_grad", torch.enable_grad)
        assert all(y.requires_grad for y in fast(*tensors()))
    assert not any(y.requires_grad for y in fast(*tensors()))
    assert next(iter(fast.stats().values())) == {"torch vmap": 2, "plain": 1}


def test_threads_that_make_the_first_call_together():
    def doubled(xs):
        return [2 * x for x in xs]

    fast = jit(doubled)
    barrier, found = threading.Barrier(4), []

    def call():
        barrier.wait()
        found.append(fast([1, 2, 3]))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[2, 4, 6]] * 4


def rooted(x):
    try:
        return np.sqrt(x)
    except FloatingPointError:
        return x * 1.0


def rooted_or_anything(x):
    try:
        return np.sqrt(x) + 1.0
    except:  # noqa: E722
        return x * 1.0


@pytest.mark.parametrize("body", [rooted, rooted_or_anything])
@pytest.mark.parametrize("errors", ["warn", "raise", "ignore"])
def test_an_error_of_one_item_is_not_caught_for_all(body, errors):
    def run(rows):
        return [body(row) for row in rows]

    rows = [np.full(4, i + 1.0) for i in range(100)]
    fast = jit(run, config=Config(measure=False))
    with np.errstate(all=errors):
        assert oracle.same(fast(rows), run(rows))
        rows[20] = -rows[20]
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert oracle.same(fast(rows), run(rows), rtol=1e-12)
            assert len(caught) == (2 if errors == "warn" else 0)
