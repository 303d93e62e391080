"""Debuggers, profilers and coverage see every line; tracebacks show the user's lines and no others."""

import sys
import time
import traceback

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit

ROWS = [np.linspace(i, i + 1.0, 4) for i in range(20)]


def helper(x):
    return x.sum()


def comprehension(xs):
    return [helper(x) for x in xs]


def consumed(xs):
    return sum(helper(x) for x in xs)


def loop(xs):
    out = []
    for x in xs:
        out.append(helper(x))
    return out


def statements(xs):
    a = helper(xs[0])
    b = helper(xs[1])
    return a, b


PLAINS = [comprehension, consumed, loop, statements]


def calls_of_helper(function, install, remove):
    seen = []
    install(seen)
    try:
        function(ROWS)
    finally:
        remove()
    return len(seen)


def tracing(seen):
    def trace(frame, event, arg):
        if frame.f_code is helper.__code__ and event == "call":
            seen.append(frame.f_lineno)
        return trace

    sys.settrace(trace)


def profiling(seen):
    sys.setprofile(
        lambda frame, event, arg: event == "call" and frame.f_code is helper.__code__ and seen.append(1)
    )


TOOLS = {
    "settrace": (tracing, lambda: sys.settrace(None)),
    "setprofile": (profiling, lambda: sys.setprofile(None)),
}
if hasattr(sys, "monitoring"):

    def monitoring(seen):
        sys.monitoring.use_tool_id(3, "a tool")
        sys.monitoring.register_callback(
            3, sys.monitoring.events.PY_START, lambda code, at: code is helper.__code__ and seen.append(1)
        )
        sys.monitoring.set_events(3, sys.monitoring.events.PY_START)

    def unmonitored():
        sys.monitoring.set_events(3, 0)
        sys.monitoring.free_tool_id(3)

    TOOLS["monitoring"] = (monitoring, unmonitored)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("plain", PLAINS)
def test_a_tool_sees_every_call(plain, tool):
    before = sys.gettrace(), sys.getprofile()
    fast = jit(plain, config=Config(measure=False))
    fast(ROWS)
    try:
        wanted = calls_of_helper(plain, *TOOLS[tool])
        assert calls_of_helper(fast, *TOOLS[tool]) == wanted > 1
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    if plain is not statements:
        assert "a debugger, profiler or coverage tool" in str(fast.explain())


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("plain", PLAINS)
def test_a_debugger_steps_through_no_frame_of_the_library(plain, warm):
    before, files = sys.gettrace(), []
    fast = jit(plain, config=Config(measure=False))
    for _ in range(warm):
        fast(ROWS)
    sys.settrace(lambda frame, event, arg: files.append(frame.f_code.co_filename))
    try:
        fast(ROWS)
    finally:
        sys.settrace(before)
    assert __file__ in files and not [file for file in files if "wide_compiler" in file and file != __file__]


def fails(x):
    return 1.0 / x


def waits_and_fails(x):
    time.sleep(0.001)
    return 1.0 / x


def a_list(xs):
    return [fails(x) for x in xs]


def a_dict(xs):
    return {x: fails(x) for x in xs}


def a_sum(xs):
    return sum(fails(x) for x in xs)


def a_loop(xs):
    total = 0.0
    for x in xs:
        total += fails(x)
    return total


def two_lists(xs):
    return [fails(x * y) for x in xs for y in (1.0, 2.0)]


def a_map(xs):
    return list(map(fails, xs))


def lines(function, xs):
    try:
        function(xs)
    except ZeroDivisionError as error:
        return [(f.name, f.lineno, f.filename) for f in traceback.extract_tb(error.__traceback__)][1:]
    raise AssertionError("it did not raise")


@pytest.mark.parametrize("config", [Config(), Config(measure=False)], ids=["measured", "at once"])
@pytest.mark.parametrize("plain", [a_list, a_dict, a_sum, a_loop, two_lists, a_map])
def test_a_traceback_shows_the_lines_of_the_text(plain, config):
    fast, xs = jit(plain, config=config), [2.0, 1.0, 0.0, 3.0]
    wanted = lines(plain, xs)
    for _ in range(3):
        assert lines(fast, xs) == wanted


def test_a_traceback_of_an_item_that_waited_ends_in_its_lines():
    def waiting(xs):
        return [waits_and_fails(x) for x in xs]

    fast = jit(waiting, config=Config(measure=False))
    found = lines(fast, [2.0, 1.0, 0.0, 3.0])
    assert fast.stats().popitem()[1] == {"threads": 1}
    assert found[0][0] == "waiting" and found[-1][0] == "waits_and_fails"
