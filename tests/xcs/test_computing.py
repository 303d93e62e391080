"""Items that compute, in threads: the results of the plain loop, or the plain loop."""

import decimal
import hashlib
import sys
import threading
import time
import warnings
import zlib

import numpy as np
import pytest
import torch

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.parallel import computing, threads
from wide_compiler.xcs.site import Site
from xcs import oracle

ITEMS = list(range(1, 25))
WORDS = {"one", "two", "three"}
SHARED = [1, 2, 3]

pytestmark = pytest.mark.usefixtures("eager_threads")


def runs(function):
    return next(iter(function.stats().values())).get("threads", 0)


def compared(fast, plain, items=ITEMS, calls=1):
    for _ in range(calls):
        assert oracle.same(fast(items), plain(items))


def digest(k):
    return hashlib.sha256(str(k).encode() * 1000).hexdigest()


def as_list(items):
    return [digest(k) for k in items]


def with_a_test(items):
    return [digest(k) for k in items if k % 3]


def as_dict(items):
    return {k: digest(k) for k in items}


def in_two_loops(items):
    return [digest(k + i) for k in items for i in (0, 100)]


def filling(items):
    out = []
    total = 0
    for k in items:
        text = digest(k)
        out.append(text)
        total += len(text)
    return out, total


def eaten(items):
    return sum(len(digest(k)) for k in items)


@pytest.mark.parametrize("plain", [as_list, with_a_test, as_dict, in_two_loops, filling, eaten])
def test_results_are_those_of_the_loop(plain):
    fast = jit(plain)
    compared(fast, plain, calls=4)
    assert runs(fast) >= 2, str(fast.explain())  # then the clock decides


def ordered_by_hash(k):
    return ["".join({"a" + str(k), "bb", "cc"}), hash("text" + str(k)), [w + str(k) for w in WORDS]]


def the_same_object(k):
    return (SHARED, k, str(k) is str(k))


def deep_in_decimals(k):
    return str(k / 7)


@pytest.mark.parametrize("body", [ordered_by_hash, the_same_object, deep_in_decimals])
def test_everything_is_where_it_was(body):
    """Hashes, identities and shared objects are those of the process."""

    def run(items):
        return [body(k) for k in items]

    fast = jit(run)
    for _ in range(3):
        assert fast(ITEMS) == run(ITEMS)
    assert runs(fast) >= 2 and (body is not the_same_object or fast(ITEMS)[5][0] is SHARED)


def picky(k):
    if k == 17:
        raise ValueError(f"no {k}")
    return digest(k)


def picky_ones(items):
    return [picky(k) for k in items]


def test_an_error_is_raised_by_the_plain_loop():
    fast = jit(picky_ones)
    fast(ITEMS[:10])
    for _ in range(3):
        with pytest.raises(ValueError, match="no 17") as raised:
            fast(ITEMS)
        assert raised.value.__context__ is None and raised.value.__cause__ is None
    names = [entry.name for entry in raised.traceback]
    assert names[-1] == "picky" and "_run" not in names


def test_a_failure_that_the_body_handles():
    def careful(k):
        try:
            return picky(k)
        except ValueError:
            return "none"

    def run(items):
        return [careful(k) for k in items]

    fast = jit(run)
    compared(fast, run, calls=2)
    assert runs(fast) == 2


def divided(items):
    return [str(np.float64(k) / np.float64(k % 2)) for k in items]


def test_what_numpy_warns_of_is_warned_of_once_and_in_order():
    fast = jit(divided)
    for function in (divided, fast, fast):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(ITEMS)
        assert len(caught) == sum(k % 2 == 0 for k in ITEMS)
    assert runs(fast) == 0


def test_errors_of_numbers_are_treated_as_in_this_thread():
    fast = jit(divided)
    with np.errstate(all="ignore"):
        assert fast(ITEMS) == divided(ITEMS)
    assert runs(fast) == 1
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        fast(ITEMS)


def test_contexts_go_along():
    def run(items):
        return [str(np.arange(k) / 3) for k in items]

    fast = jit(run)
    with np.printoptions(precision=2, threshold=5), decimal.localcontext(prec=3):
        assert fast(ITEMS) == run(ITEMS)
        short = run(ITEMS)
    assert fast(ITEMS) == run(ITEMS) != short
    assert runs(fast) == 2


def test_small_numbers_that_are_zero_in_this_thread():
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


def test_tensors_only_where_another_thread_computes_alike(monkeypatch):
    def run(tensors):
        return [str(float(torch.sum(x))) for x in tensors]

    def made(items):
        return [str(float(torch.sum(W) * k)) for k in items]

    for plain, items in ((run, [torch.ones(4) * k for k in ITEMS]), (made, ITEMS)):
        fast = jit(plain)
        compared(fast, plain, items, calls=2)
        assert runs(fast) == 0  # with gradients, results remember the order in which one thread made them
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            with torch.no_grad():
                compared(jit(plain), plain, items)
                monkeypatch.setattr(
                    threads, "_pools", {}
                )  # threads that were not started under another number
                fast = jit(plain)
                compared(fast, plain, items)
            assert runs(fast) == 1
            torch.set_num_threads(2)
            fast = jit(plain)
            with torch.no_grad():
                compared(fast, plain, items)
            assert runs(fast) == 0
        finally:
            torch.set_num_threads(before)


W = torch.arange(3.0)


def test_a_thread_that_was_started_under_another_number_of_threads(monkeypatch):
    monkeypatch.setattr(threads, "_pools", {})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    pool, ready = threads.pool_of(2), threading.Barrier(2)
    found = [pool.submit(lambda: (ready.wait(60), torch.get_num_threads())) for _ in range(2)]
    assert [number.result()[1] for number in found] == [2, 2]

    def run(tensors):
        return [str(float(torch.sum(x))) + digest(0) for x in tensors]

    try:
        torch.set_num_threads(1)
        fast, items = jit(run), [torch.ones(4) * k for k in ITEMS]
        with torch.no_grad():
            compared(fast, run, items, calls=3)
    finally:
        torch.set_num_threads(before)


def test_a_trial_that_gains_nothing_goes_on_in_this_thread(monkeypatch):
    monkeypatch.setattr(computing, "beats", lambda seconds, plain: False)
    ran, one = [], computing.Work.one

    def noted(work, i):
        ran.append((i, threading.current_thread() is threading.main_thread()))
        return one(work, i)

    for plain in (as_list, with_a_test, filling, as_dict):
        fast = jit(plain)
        compared(fast, plain)
        with monkeypatch.context() as patched:
            patched.setattr(computing.Work, "one", noted)
            ran.clear()
            compared(fast, plain)
        assert [here for i, here in sorted(ran) if i >= 4] == [True] * (len(ITEMS) - 4)


def test_it_is_tried_when_it_may_pay(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(computing, "cores", lambda: 2)
    monkeypatch.setattr(Site, "may_analyse", lambda self: True)
    fast = jit(as_list)
    fast(ITEMS)
    (site,) = fast.__xcs__.sites
    plan = site.plans[0]
    work = computing.Work(site, plan, site.items_in(ITEMS, None, None), {})
    plan.costs.spent = 10.0
    plan.costs.recent = [1e-4]
    assert not computing.pays(work)  # items too short
    plan.costs.recent = [1e-3]
    assert computing.pays(work)
    plan.costs.spent = 0.0
    assert not computing.pays(work)  # no plain call was timed yet that could pay for it
    assert computing.able(work) and "uses torch" in plan.memory
    monkeypatch.setattr(computing, "cores", lambda: 1)
    assert not computing.able(work)


def test_one_worker_computes_alone():
    fast = jit(as_list, config=Config(max_workers=1))
    compared(fast, as_list, calls=3)
    assert runs(fast) == 0


def test_a_program_without_another_core_to_use(monkeypatch):
    monkeypatch.setattr(computing, "cores", lambda: 1)
    fast = jit(as_list)
    compared(fast, as_list, calls=3)
    assert runs(fast) == 0


def test_a_call_within_a_thread_of_its_own_stays_there():
    inner = jit(as_list)
    inner(ITEMS)

    def outer(rows):
        return [inner(row) for row in rows]

    fast = jit(outer)
    rows = [ITEMS, ITEMS[:5], ITEMS[3:]] * 4
    for _ in range(3):
        assert fast(rows) == [as_list(row) for row in rows]


def test_deep_in_a_stack_of_calls():
    """Near the limit of recursion another thread could go on where this one cannot."""

    def at(depth):
        return jit_deep(depth) if depth == 0 else at(depth - 1)

    def jit_deep(depth):
        return fast(ITEMS)

    fast = jit(as_list)
    fast(ITEMS)
    limit, here = sys.getrecursionlimit(), len(list(_frames()))
    with pytest.raises(RecursionError):
        for depth in range(limit - here - 30, limit):
            assert at(depth) == as_list(ITEMS)


def _frames():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_real_gain_or_none():
    """With the real clock: never meaningfully slower, whatever the machine is doing."""
    blobs = [bytes([k]) * 300_000 for k in range(24)]

    def run(items):
        return [zlib.crc32(zlib.compress(b)) for b in items]

    fast, clock = jit(run), time.perf_counter
    wanted, spent = run(blobs), {fast: 0.0, run: 0.0}
    for k in range(10):
        for function in (fast, run) if k % 2 else (run, fast):
            began = clock()
            assert function(blobs) == wanted
            spent[function] += clock() - began
    assert spent[fast] < 2 * spent[run]
