"""Errors of what waits: those that plain Python would raise, and as it would raise them."""

import contextlib
import os
import pathlib
import resource
import time

import pytest

from wide_compiler.xcs import Config, jit

from .waiting_world import CONFIGS, no_thread_free, threaded


def slow_read(path):
    with open(path) as file:
        time.sleep(0.005)
        return file.read()


def read_list(paths):
    return [slow_read(path) for path in paths]


def read_loop(paths):
    out = []
    for path in paths:
        out.append(path)
        out.append(slow_read(path))
    return out


def read_dict(paths):
    return {path: slow_read(path) for path in paths}


def read_statements(paths):
    a = slow_read(paths[0])
    b = slow_read(paths[1])
    c = slow_read(paths[2])
    d = slow_read(paths[3])
    return a, b, c, d


@contextlib.contextmanager
def files_left(count):
    """No more than so many files can be opened at a time."""
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("plain", [read_list, read_loop, read_dict, read_statements])
def test_files_that_only_threads_have_too_many_of(plain, tmp_path):
    paths = [str(tmp_path / str(i)) for i in range(20)]
    for i, path in enumerate(paths):
        pathlib.Path(path).write_text("x" * i)
    fast = jit(plain, config=Config(measure=False))
    assert fast(paths) == plain(paths)
    for _ in range(3):
        with files_left(2):
            given = fast(paths)
        assert given == plain(paths)
    assert threaded(fast) == 4
    if plain is read_statements:
        return
    for missing in (0, 7, 19):
        os.rename(paths[missing], paths[missing] + " gone")
        with files_left(2), pytest.raises(FileNotFoundError, match=f"/{missing}'"):
            fast(paths)
        os.rename(paths[missing] + " gone", paths[missing])


def test_a_file_that_cannot_be_opened_at_all(tmp_path):
    path = tmp_path / "0"
    path.write_text("x")
    fast = jit(read_list, config=Config(measure=False))
    with files_left(0), pytest.raises(OSError, match="Too many open files"):
        fast([str(path)] * 4)
    assert threaded(fast) == 1


def raises_at_once(x):
    time.sleep(0.003)
    return 1 // x


def raises_in_a_handler(x):
    try:
        return raises_at_once(x)
    except ZeroDivisionError:
        raise ValueError("bad")  # noqa: B904


def raises_from_nothing(x):
    try:
        return raises_at_once(x)
    except ZeroDivisionError:
        raise ValueError("bad") from None


def raises_from_itself(x):
    time.sleep(0.003)
    error = ValueError(x)
    raise error from error


def by_list(item, xs):
    return [item(x) for x in xs]


def by_sum(item, xs):
    return sum(item(x) for x in xs)


def by_loop(item, xs):
    out = []
    for x in xs:
        out.append(item(x))
    return out


def by_statements(item, xs):
    a = item(xs[0])
    b = item(xs[1])
    c = item(xs[2])
    return a, b, c


def chain(function, item, outer):
    """What it raises, while something else is handled or not: each with whether that hides its context."""
    found = []
    try:
        if outer is None:
            function(item, [1, 0, 2])
        try:
            raise KeyError("inner") from KeyError("cause")
        except KeyError:
            try:
                raise outer
            except TypeError:
                function(item, [1, 0, 2])
    except (ValueError, ZeroDivisionError) as error:
        while error is not None:
            found.append((repr(error), error.__suppress_context__, repr(error.__cause__)))
            error = error.__context__
    return found


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("item", [raises_at_once, raises_in_a_handler, raises_from_nothing])
@pytest.mark.parametrize("plain", [by_list, by_sum, by_loop, by_statements])
def test_the_context_of_an_error_is_what_it_would_be(plain, item, free):
    fast = jit(plain, config=CONFIGS["at once"])
    with contextlib.nullcontext() if free else no_thread_free():
        for outer in (None, TypeError("outer")):
            assert chain(fast, item, outer) == chain(plain, item, outer) != []
    assert threaded(fast) == 2


def test_an_error_that_is_its_own_cause():
    fast = jit(by_list, config=CONFIGS["at once"])
    with pytest.raises(ValueError) as raised:
        fast(raises_from_itself, [1, 2, 3])
    assert raised.value.__cause__ is raised.value and threaded(fast) == 1
