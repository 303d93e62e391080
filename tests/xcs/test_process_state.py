"""What belongs to one process, and decides about results: other processes take it over, or are not asked."""

import inspect
import locale
import sys
import warnings

import numpy as np
import pytest
import torch

from wide_compiler.xcs import jit
from wide_compiler.xcs.parallel import processes, shipping

ITEMS = list(range(1, 25))
WORDS = {"one", "two", "three"}
made_of = set


pytestmark = pytest.mark.usefixtures("eager_processes")


def runs(function):
    return next(iter(function.stats().values())).get("processes", 0)


def longest(k):
    return max({"a" + str(k), "bb", "cc", "dd"}, key=len)


def listed(k):
    return [w + "!" for w in {"a" + str(k), "bb", "cc", "dd"}]


def constant(k):
    return [w + str(k) for w in {"aa", "bb", "cc"}]


def comprehended(k):
    return max({w + str(k) for w in "abcdefgh"}, key=len)


def called(k):
    return max(set(("a" + str(k) + " bb cc dd").split()), key=len)


def named_otherwise(k):
    return max(made_of(["a" + str(k), "bb", "cc", "dd"]), key=len)


def hashed(k):
    return hash("text" + str(k))


def read(k):
    return [w + str(k) for w in WORDS]


def within(k):
    return sum(1 for w in ("bb", "dd") if max({w, "cc" + str(k), "aa"}, key=len) == w)


@pytest.mark.parametrize(
    "body", [longest, listed, constant, comprehended, called, named_otherwise, hashed, read, within]
)
def test_hashes_of_strings_and_orders_of_sets_are_those_of_this_process(body):
    def run(items):
        return [body(k) for k in items]

    fast = jit(run)
    for _ in range(3):
        assert fast(ITEMS) == run(ITEMS)
    assert runs(fast) == 0


def test_a_set_in_what_is_handed_over_stays_here():
    def run(items):
        return ["".join(sorted(word)) + str(len(words)) for word, words in items]

    items = [(f"word {i}", {f"a{i}", "b"}) for i in range(12)]
    fast = jit(run)
    assert fast(items) == run(items)
    assert runs(fast) == 0


def test_asking_whether_something_is_in_a_set_may_be_done_anywhere():
    def run(items):
        return [str(k) + "!" if str(k) in {"3", "5"} else str(k) for k in items]

    fast = jit(run)
    for _ in range(2):
        assert fast(ITEMS) == run(ITEMS)
    assert runs(fast) == 2


def divided(items):
    return [str(np.float64(k) / np.float64(k % 2)) for k in items]


def test_what_would_warn_warns_here():
    fast = jit(divided)
    for function in (divided, fast, fast):
        with pytest.warns(RuntimeWarning, match="divide by zero") as caught:
            function(ITEMS)
        assert len(caught) == sum(k % 2 == 0 for k in ITEMS)
    assert runs(fast) == 0


def test_a_body_does_not_catch_what_would_only_warn():
    def careful(k):
        try:
            return str(np.float64(k) / np.float64(k % 2))
        except Exception:
            return "caught"

    def run(items):
        return [careful(k) for k in items]

    fast = jit(run)
    with pytest.warns(RuntimeWarning):
        assert fast(ITEMS) == run(ITEMS)
    assert runs(fast) == 0
    with np.errstate(all="ignore"):
        assert fast(ITEMS) == run(ITEMS)


@pytest.mark.filterwarnings("error")
def test_errors_of_numbers_are_ignored_where_they_are_here():
    fast = jit(divided)
    with np.errstate(all="ignore"):
        assert fast(ITEMS) == divided(ITEMS)
    assert runs(fast) == 1
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        fast(ITEMS)


def test_numbers_are_written_as_they_are_here(monkeypatch):
    def arrays(items):
        return [str(np.arange(k) / 3) for k in items]

    def long_numbers(items):
        return [len(str(10 ** (5000 + k))) for k in items]

    fast = jit(arrays)
    with np.printoptions(precision=2, threshold=5):
        assert fast(ITEMS) == arrays(ITEMS)
        short = arrays(ITEMS)
    assert fast(ITEMS) == arrays(ITEMS) != short
    assert runs(fast) == 2

    limit = sys.get_int_max_str_digits()
    fast = jit(long_numbers)
    try:
        sys.set_int_max_str_digits(0)
        assert fast(ITEMS) == long_numbers(ITEMS)
        assert runs(fast) == 1
        sys.set_int_max_str_digits(4300)
        with pytest.raises(ValueError, match="4300"):
            fast(ITEMS)
    finally:
        sys.set_int_max_str_digits(limit)


def test_small_numbers_that_are_zero_here():
    def run(items):
        return [str(k * 1e-300 * 1e-10) for k in items]

    fast, usual = jit(run), run(ITEMS)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps them")
    try:
        assert fast(ITEMS) == run(ITEMS) != usual
    finally:
        torch.set_flush_denormal(False)
    assert runs(fast) == 0
    fast = jit(run)
    assert fast(ITEMS) == usual
    assert runs(fast) == 1


def down(n):
    return 0 if n == 0 else 1 + down(n - 1)


def down_if_possible(n):
    try:
        return down(n)
    except RecursionError:
        return -1


def open_calls():
    return len(inspect.stack(0))


def test_calls_go_no_deeper_than_here():
    def run(items):
        return [str(down(k)) for k in items]

    def trying(items):
        return [str(down_if_possible(k)) for k in items]

    limit, deep = sys.getrecursionlimit(), [200] * 24
    fast = jit(run)
    assert fast(deep) == run(deep)
    assert runs(fast) == 1
    try:
        sys.setrecursionlimit(open_calls() * 2 + 150)
        for function in (run, fast, jit(run)):
            with pytest.raises(RecursionError):
                function(deep)
        wanted = trying(deep)
        fast = jit(trying)
        assert fast(deep) == wanted == ["-1"] * 24
        assert runs(fast) == 0
        fast = jit(run)
        assert fast(ITEMS) == run(ITEMS)
        assert runs(fast) == 1
        sys.setrecursionlimit(open_calls() * 2 + 2500)
        fast, deep = jit(run), [1500] * 8  # deeper than a new process goes
        assert fast(deep) == run(deep)
        assert runs(fast) == 1
    finally:
        sys.setrecursionlimit(limit)


def test_a_locale_that_others_do_not_have(monkeypatch):
    def run(items):
        return [format(1000.5 + k, "n") for k in items]

    fast = jit(run)
    assert fast(ITEMS) == run(ITEMS)
    before = runs(fast)
    monkeypatch.setattr(locale, "setlocale", lambda *args: "xx_XX.UTF-8")
    assert fast(ITEMS) == run(ITEMS)
    assert (before, runs(fast)) == (1, 1)


def test_pytorch_has_modes_that_stay_here():
    with pytest.raises(shipping.NotSendable, match="PyTorch"):
        shipping.packed(torch)
    with pytest.raises(shipping.NotSendable, match="PyTorch"):
        shipping.packed([torch.zeros(2)])
    with pytest.raises(shipping.NotSendable, match="PyTorch"):
        shipping.packed(lambda x: torch.relu(x))


def test_workers_that_ended_leave_nothing_open():
    def run(items):
        return [str(k) + "!" for k in items]

    fast = jit(run)
    fast(ITEMS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for worker in processes._workers:
            worker.process.kill()
            worker.process.wait()
        assert fast(ITEMS) == run(ITEMS)
    assert runs(fast) == 2
    assert all(worker.process.poll() is None for worker in processes._workers)
