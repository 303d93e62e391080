"""What waits runs in threads where some are free, and goes on where none is."""

import contextlib
import contextvars
import itertools
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest
import torch

from wide_compiler.measure import clock
from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.parallel import overlap
from wide_compiler.xcs.parallel.threads import Overlap

from .waiting_world import CONFIGS, HANG, WORKERS, comes_to_threads, no_thread_free, within_limits

NAME = contextvars.ContextVar("NAME", default="nobody")
STARTED = []


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def waits(x):
    time.sleep(0.003)
    return x * 2


def comprehension(xs):
    return [waits(x) for x in xs]


def loop(xs):
    out = []
    for x in xs:
        out.append(waits(x))
    return out


def statements(xs):
    a = waits(xs[0])
    b = waits(xs[1])
    c = waits(xs[2])
    return [a, b, c]


@pytest.mark.parametrize("plain", [comprehension, loop, statements])
def test_a_call_goes_on_where_no_thread_is_free(plain, config):
    fast, xs = jit(plain, config=config), list(range(3))
    with no_thread_free():
        for _ in range(3):
            assert within_limits(fast, xs) == plain(xs)
    assert within_limits(fast, xs) == plain(xs)
    assert comes_to_threads(fast, xs)


def test_one_call_waits_for_another_one_in_other_threads(config):
    """As clients of a server in the same process, which answers them one by one, and waits as well."""
    inner, server = jit(comprehension, config=config), threading.Lock()
    assert comes_to_threads(inner, range(3))

    def asks(i):
        with server:
            return within_limits(inner, [i, i + 1])

    run = Overlap(asks, 3 * WORKERS, WORKERS)
    run.start(WORKERS)
    run.finish()
    assert not run.errors
    assert [run.results[i] for i in range(3 * WORKERS)] == [[2 * i, 2 * i + 2] for i in range(3 * WORKERS)]


def fails(x):
    time.sleep(0.003)
    if x >= 2:
        raise ValueError(f"item {x}")
    return x


def failing(xs):
    return [fails(x) for x in xs]


def gradients(xs):
    return [waits(x).requires_grad for x in xs]


def test_an_item_in_the_calling_thread_is_like_any_other(config):
    fast = jit(failing, config=config)
    weights = [torch.ones(2, requires_grad=True) for _ in range(4)]
    with no_thread_free():
        assert repr(within_limits(fast, [1, 2, 3, 4])) == "ValueError('item 2')"

        def without():
            with torch.no_grad():
                return jit(gradients, config=config)(weights), torch.is_grad_enabled()

        assert within_limits(without) == ([False] * 4, False)
        assert within_limits(jit(gradients, config=config), weights) == [True] * 4
    assert repr(within_limits(fast, [1, 2, 3, 4])) == "ValueError('item 2')"
    assert comes_to_threads(fast, [0, 1])


def test_what_items_set_stays_with_them():
    def named(i):
        before = NAME.get()
        NAME.set(f"item {i}")
        return before

    NAME.set("caller")
    run = Overlap(named, 4, WORKERS)
    with no_thread_free():
        run.finish()
    assert run.results == dict.fromkeys(range(4), "caller") and NAME.get() == "caller"


class TimeIsUp(Exception):
    pass


def by_function(number, frame):
    raise TimeIsUp


@pytest.mark.parametrize(
    "handler, raised", [(by_function, TimeIsUp), (signal.default_int_handler, KeyboardInterrupt)]
)
def test_a_signal_while_the_calling_thread_runs_an_item(handler, raised):
    def item(i):
        STARTED.append(i)
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    STARTED.clear()
    try:
        run = Overlap(item, 9, WORKERS)
        with no_thread_free(), pytest.raises(raised):
            run.finish()
    finally:
        signal.signal(signal.SIGUSR1, before)
    run.start(WORKERS)
    run.finish()
    assert STARTED == [0] and run.stopped


AT_EXIT = """
import atexit, time
from wide_compiler.xcs import Config, jit

def waits(x):
    time.sleep(0.003)
    return x * 2

def comprehension(xs):
    return [waits(x) for x in xs]

def statements(xs):
    a = waits(xs[0])
    b = waits(xs[1])
    return [a, b]

FAST = [jit(plain, config=Config(measure=False)) for plain in (comprehension, statements)]

def run():
    for fast in FAST:
        try:
            print(fast([1, 2]), *fast.stats().values())
        except BaseException as error:
            print(repr(error))

for _ in range({calls}):
    run()
atexit.register(run)
"""


@pytest.mark.parametrize("calls", [0, 2])
def test_a_call_when_the_program_ends_runs_as_written(tmp_path, calls):
    program = tmp_path / "at_exit.py"
    program.write_text(AT_EXIT.replace("{calls}", str(calls)))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=HANG * 2)
    assert not done.stderr
    last = ", 'plain': 1}" if calls else "{'plain': 1}"
    *before, one, two = done.stdout.splitlines()
    assert all(line.startswith("[2, 4] ") for line in (*before, one, two))
    assert one.endswith(last) and two.endswith(last)
    if calls:
        assert before[2].endswith("{'threads': 2}") and before[3].endswith("{'threads': 2}")


def test_a_system_that_gives_no_more_threads(config, monkeypatch):
    config = Config(measure=config.measure, max_workers=WORKERS + 1)  # none of which was started yet

    def none_left(self):
        raise RuntimeError("can't start new thread")

    fast = jit(comprehension, config=config)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        assert fast([1, 2, 3]) == [2, 4, 6]
    assert fast([1, 2, 3]) == [2, 4, 6]
    assert comes_to_threads(fast, [1, 2, 3])


def timed(xs):
    began = time.perf_counter()
    values = [waits(x) for x in xs]
    return time.perf_counter() - began, values


def test_clocks_that_a_test_replaces_are_not_asked(config):
    fast = jit(timed, config=config)
    for _ in range(3):
        with contextlib.ExitStack() as patched:
            for name in ("thread_time", "clock_gettime", "pthread_getcpuclockid"):
                patched.enter_context(mock.patch(f"time.{name}", side_effect=AssertionError))
            patched.enter_context(mock.patch("time.perf_counter", side_effect=[10.0, 11.5]))
            assert fast([1, 2, 3]) == (1.5, [2, 4, 6])
    assert comes_to_threads(fast, [1, 2, 3])


def some_wait(x):
    if x % 7 > 2:
        time.sleep(0.004)
    return x


def late_ones_wait(x):
    if x > 20:
        time.sleep(0.004)
    return x


def with_a_test(xs):
    return [waits(x) for x in xs if x % 2]


def some(xs):
    return [some_wait(x) for x in xs]


def late(xs):
    return [late_ones_wait(x) for x in xs]


def late_in_a_loop(xs):
    out = []
    for x in xs:
        out.append(late_ones_wait(x))
    return out


def late_eaten(xs):
    return sum(late_ones_wait(x) for x in xs)


@pytest.mark.parametrize("plain", [with_a_test, some])
def test_any_of_the_first_items_shows_that_they_wait(plain):
    fast, xs = jit(plain), list(range(40))
    for _ in range(2):
        assert fast(xs) == plain(xs)
    assert list(fast.stats().values()) == [{"plain": 1, "threads": 1}]


@pytest.mark.parametrize("plain", [late, late_in_a_loop, late_eaten])
def test_the_whole_loop_shows_that_later_items_wait(plain):
    fast, xs = jit(plain), list(range(60))
    for _ in range(4):
        assert fast(xs) == plain(xs)
    (counts,) = fast.stats().values()
    assert counts["threads"] >= 2 and sum(counts.values()) == 4


@pytest.mark.parametrize("plain", [comprehension, loop, statements])
def test_one_worker_waits_alone(plain):
    fast = jit(plain, config=Config(max_workers=1))
    for _ in range(3):
        assert fast(list(range(4))) == plain(list(range(4)))
    (counts,) = fast.stats().values()
    assert counts == {"plain": 3} and "max_workers=1" in str(fast.explain())


def waits_below_zero(x):
    if x < 0:
        time.sleep(0.003)
    return x


def by_sign(xs):
    return [waits_below_zero(x) for x in xs]


def test_quick_calls_between_those_that_wait_leave_the_threads():
    fast, slow, quick = jit(by_sign), [-1] * 20, list(range(5000))
    with mock.patch.object(Overlap, "_run", autospec=True, side_effect=Overlap._run) as ran:
        for _ in range(3):
            assert fast(slow) == slow
            before = ran.call_count
            assert fast(quick) == quick
            assert ran.call_count - before <= overlap.PART
    (counts,) = fast.stats().values()
    assert counts["threads"] >= 2


def in_a_dict(xs):
    return {x: waits_below_zero(x) for x in xs}


def in_a_set(xs):
    return {waits_below_zero(x) for x in xs}


def in_two_loops(xs):
    return [waits_below_zero(x + y) for x in xs for y in (0, 1)]


@pytest.mark.parametrize("plain", [in_a_dict, in_a_set, in_two_loops])
def test_what_may_wait_but_does_not_is_looked_at_rarely(plain, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(clock, "now", lambda: 1e-6 * next(ticks))  # no other process takes time away
    fast, xs = jit(plain), list(range(20))
    for _ in range(200):
        assert fast(xs) == plain(xs)
    assert list(fast.stats().values()) == [{"plain": 200}]
    assert fast.__xcs__.sites[0].schedule.skipped > 100
