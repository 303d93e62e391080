"""Functions that the user has marked: their calls overlap although they may write, within the rules."""

import asyncio
import errno
import functools
import threading
import time

import pytest

from wide_compiler.errors import WrongTypeError
from wide_compiler.xcs import Config, ParallelismAnalyzer, independent, jit

from .waiting_world import CONFIGS, comes_to_threads, no_thread_free, threaded

STARTED = []
ENDED = []
LOCK = threading.Lock()


@pytest.fixture(autouse=True)
def empty():
    STARTED.clear()
    ENDED.clear()


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def note(x):
    with LOCK:
        STARTED.append(x)
    time.sleep(0.004)
    with LOCK:
        ENDED.append(x)
    return x * 2


post = independent(lambda x: note(x))


@independent
def post_some(x, bad=(), error=ValueError):
    note(x)
    if x in bad:
        raise error(f"item {x}")
    return x


class Client:
    def __init__(self):
        self.sent = []

    @independent
    def put(self, x):
        self.sent.append(note(x))
        return x

    @staticmethod
    @independent
    def by_class(x):
        return note(x)

    @independent
    @staticmethod
    def by_class_too(x):
        return note(x)

    def unmarked(self, x):
        self.sent.append(note(x))
        return x


def by_list(xs):
    return [post(x) for x in xs]


def by_dict(xs):
    return {x: post(x) for x in xs}


def by_loop(xs):
    out = []
    for x in xs:
        answer = post(x)
        out.append(answer)
    return out


def by_helper(xs):
    return [twice(x) for x in xs if x >= 0]


def twice(x):
    first = post(x)
    return (first, post(x + 100))


def by_sum(xs):
    return sum(post(x) for x in xs)


def by_statements(xs):
    a = post(xs[0])
    b = post(xs[1])
    c = post(xs[2])
    return a, b, c


@pytest.mark.parametrize("plain", [by_list, by_dict, by_loop, by_helper, by_sum, by_statements])
def test_marked_calls_overlap_and_run_once(plain, config):
    fast, xs = jit(plain, config=config), list(range(6))
    wanted = plain(xs)
    expected = sorted(STARTED)
    for _ in range(3):
        STARTED.clear()
        assert fast(xs) == wanted
        assert sorted(STARTED) == expected  # each exactly once
    assert comes_to_threads(fast, xs), str(fast.explain())
    row = fast.explain().rows[0]
    assert row.effect == "IO" and "marked as independent by the user" in row.why


def test_methods_of_classes_and_objects(config):
    client = Client()

    def by_method(xs):
        return [client.put(x) for x in xs]

    def by_static(xs):
        return [Client.by_class(x) for x in xs] + [Client.by_class_too(x) for x in xs]

    def by_item(clients):
        return [one.put(7) for one in clients]

    bound = client.put

    def by_bound(xs):
        return [bound(x) for x in xs]

    for plain in (by_method, by_static, by_bound):
        assert comes_to_threads(jit(plain, config=config), [1, 2, 3, 4]), plain
        STARTED.clear()
        assert jit(plain, config=config)([1, 2, 3, 4])[:4] == plain([1, 2, 3, 4])[:4]
    clients = [Client() for _ in range(5)]
    fast = jit(by_item, config=CONFIGS["at once"])
    assert fast(clients) == [7] * 5 and threaded(fast) == 1
    assert [one.sent for one in clients] == [[14]] * 5


def test_what_is_no_function_is_called_by_one():
    client = Client()
    put, partial = independent(client.unmarked), independent(functools.partial(note))

    def run(xs):
        return [put(x) for x in xs], [partial(x) for x in xs]

    fast = jit(run, config=CONFIGS["at once"])
    assert fast([1, 2, 3]) == ([1, 2, 3], [2, 4, 6]) and threaded(fast) == 2
    assert sorted(client.sent) == [2, 4, 6] and put.__name__ == "unmarked"


def unmarked(x):
    STARTED.append(x)
    return note(x)


def test_unmarked_stays_in_order(config):
    client = Client()
    fast = jit(lambda xs: [unmarked(x) for x in xs], config=config)
    method = jit(lambda xs: [client.unmarked(x) for x in xs], config=config)
    for _ in range(3):
        fast(list(range(5)))
        client.sent.clear()
        method(list(range(5)))
        assert client.sent == [0, 2, 4, 6, 8]
    assert threaded(fast) == threaded(method) == 0


def test_a_wrapper_of_a_marked_function_is_not_marked():
    calls = []

    @functools.wraps(post_some)
    def counted(x):
        calls.append(x)
        return post_some(x)

    fast = jit(lambda xs: [counted(x) for x in xs], config=CONFIGS["at once"])
    assert fast([3, 2, 1]) == [3, 2, 1] == calls and threaded(fast) == 0


def test_another_function_in_its_place_is_seen(monkeypatch):
    fast = jit(by_list, config=CONFIGS["at once"])
    fast([1, 2, 3])
    monkeypatch.setitem(globals(), "post", lambda x: STARTED.append(x))
    STARTED.clear()
    assert fast([1, 2, 3]) == [None] * 3 and STARTED == [1, 2, 3]
    assert threaded(fast) == 1
    monkeypatch.undo()
    fast([1, 2, 3])
    assert threaded(fast) == 2


def test_jit_above_and_below_the_mark():
    @jit
    @independent
    def above(x):
        return [note(y) for y in [x]]

    @independent
    @jit
    def below(x):
        return [note(y) for y in [x]]

    for helper in (above, below):
        helper(0)
        fast = jit(lambda xs, helper=helper: [helper(x) for x in xs], config=CONFIGS["at once"])
        assert fast([1, 2, 3]) == [[2], [4], [6]] and threaded(fast) == 1, str(fast.explain())


@independent
def fails_at_once_or_late(x, at_once, late):
    if x == at_once:
        STARTED.append(x)
        raise ValueError(f"item {x}")
    note(x)
    if x == late:
        raise ValueError(f"item {x}")
    return x


@pytest.mark.parametrize("bad", [(0, 99), (3, 99), (11, 99), (3, 2), (5, 4), (99, 11)])
def test_the_lowest_failing_item_is_raised_and_none_starts_after_a_failure(bad, config):
    def run(xs):
        return [fails_at_once_or_late(x, *bad) for x in xs]

    fast, xs = jit(run, config=config), list(range(12))
    fast([x + 200 for x in xs])  # where none fails
    for _ in range(3):
        STARTED.clear()
        with pytest.raises(ValueError, match=f"item {min(bad)}$"):
            fast(xs)
        assert len(STARTED) == len(set(STARTED))
        assert set(range(min(bad) + 1)) <= set(STARTED)
        assert max(STARTED) < bad[0] + config.max_workers  # those that were running when it failed


def test_the_prefix_is_kept():
    def run(xs):
        out = []
        total = 0
        try:
            for x in xs:
                value = post_some(x, (3,))
                out.append(value)
        except ValueError as error:
            return out, total, str(error)
        return out, total, ""

    fast = jit(run, config=CONFIGS["at once"])
    assert fast(list(range(8))) == ([0, 1, 2], 0, "item 3") and threaded(fast) == 1, str(fast.explain())


def test_items_start_in_order(config):
    fast, xs = jit(by_list, config=config), list(range(24))
    for _ in range(3):
        STARTED.clear()
        fast(xs)
        for place, x in enumerate(STARTED):
            assert abs(place - x) < config.max_workers


@pytest.mark.parametrize("most", [1, 2, 4])
def test_no_more_at_a_time_than_allowed(most):
    running, highest = [], []

    @independent
    def send(x):
        with LOCK:
            running.append(x)
            highest.append(len(running))
        time.sleep(0.003)
        with LOCK:
            running.remove(x)

    fast = jit(lambda xs: [send(x) for x in xs], config=Config(measure=False, max_workers=most))
    for _ in range(3):
        fast(list(range(12)))
    assert max(highest) <= most and threaded(fast) == (3 if most > 1 else 0)
    assert most == 1 or max(highest) > 1


def test_what_may_write_is_not_repeated_when_files_are_short():
    def crowded(message):
        return OSError(errno.EMFILE, message)

    fast = jit(lambda xs: [post_some(x, (2,), crowded) for x in xs], config=CONFIGS["at once"])
    with pytest.raises(OSError, match="item 2"):
        fast(list(range(6)))
    assert STARTED.count(2) == 1 and threaded(fast) == 1

    def statements(xs):
        a = post_some(xs[0], (0,), crowded)
        b = post_some(xs[1])
        return a, b

    fast = jit(statements, config=CONFIGS["at once"])
    STARTED.clear()
    with pytest.raises(OSError, match="item 0"):
        fast([0, 1])
    assert STARTED.count(0) == 1 and threaded(fast) == 1


def test_checking_does_not_repeat_it():
    fast = jit(by_list, config=Config(measure=False, check=True))
    assert fast([1, 2, 3]) == [2, 4, 6] and sorted(STARTED) == [1, 2, 3]


def test_marked_functions_that_call_jitted_ones(config):
    inner = jit(by_list, config=config)
    outer = independent(lambda x: inner([x, x + 1]))
    fast = jit(lambda xs: [outer(x) for x in xs], config=config)
    for _ in range(3):
        assert fast([1, 2, 3, 4]) == [[2 * x, 2 * x + 2] for x in (1, 2, 3, 4)]
    with no_thread_free():
        assert fast([1, 2]) == [[2, 4], [4, 6]]


def test_it_stops_early_only_in_order():
    fast = jit(lambda xs: any(post(x) > 2 for x in xs), config=CONFIGS["at once"])
    assert fast([1, 2, 3, 4]) and STARTED == [1, 2] and threaded(fast) == 0


@independent
def fills(where, x):
    where.append(x)
    time.sleep(0.002)


class Tricky(list):
    """An object whose operators do something."""

    def __add__(self, other):
        STARTED.append("added")
        return 0


@independent
def replaces(where):
    where[0] = Tricky()


def given_a_list_of_its_own(x):
    own = [x]
    fills(own, x)
    return own


def computes_with_what_it_gave(x):
    own = [x]
    replaces(own)
    return own[0] + 1


def computes_with_what_came_back(x):
    return post(x) + 1


def writes_into_what_it_gave(x):
    own = [x]
    fills(own, x)
    own.append(5)
    return own


def computes_with_what_it_may_have_given(x):
    own = [x]
    replaces(own if x > 0 else LOCK)
    return own[0] + 1


def hands_a_function(x):
    return fills([], lambda: x)


@pytest.mark.parametrize(
    "body, overlaps",
    [
        (given_a_list_of_its_own, True),
        (computes_with_what_it_gave, False),
        (computes_with_what_it_may_have_given, False),
        (computes_with_what_came_back, False),
        (writes_into_what_it_gave, False),
        (hands_a_function, False),
    ],
)
def test_nothing_is_known_of_what_it_was_given_or_gave(body, overlaps):
    def run(xs):
        return [body(x) for x in xs]

    fast = jit(run, config=CONFIGS["at once"])
    wanted = run([1, 2, 3])
    noted = list(STARTED)
    STARTED.clear()
    assert fast([1, 2, 3]) == wanted and sorted(map(str, noted)) == sorted(map(str, STARTED))
    assert threaded(fast) == overlaps, str(fast.explain())


def test_an_interrupt_starts_no_more():
    stopped = []

    @independent
    def send(x):
        note(x)
        if x == 5:
            raise KeyboardInterrupt

    fast = jit(lambda xs: [send(x) for x in xs], config=CONFIGS["at once"])
    try:
        fast(list(range(40)))
    except KeyboardInterrupt:
        stopped.append(True)
    assert stopped and max(STARTED) <= 5 + CONFIGS["at once"].max_workers


def test_the_analysis_by_itself():
    info = ParallelismAnalyzer().analyze_operator(post_some)
    assert info.can_parallelize and not info.can_vmap and not info.can_pmap
    assert not ParallelismAnalyzer().analyze_operator(unmarked).can_parallelize


async def coroutine(x):
    return x


def generator(x):
    yield x


@pytest.mark.parametrize("wrong", [coroutine, generator, 3, "post", Client])
def test_what_cannot_be_marked(wrong):
    with pytest.raises(WrongTypeError, match="independent"):
        independent(wrong)


def test_coroutines_run_as_they_are():
    with pytest.warns(UserWarning, match="coroutine"):

        @jit
        async def run(xs):
            return [await coroutine(x) for x in xs]

    assert asyncio.run(run([1, 2])) == [1, 2]
