"""How a function's text becomes sites. Beside each text that must run as written stands one that need not."""

import contextlib
import faulthandler

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit
from xcs import oracle

NOW = Config(measure=False)
LOG = []
LANES, THREADS = "numpy lanes", "threads"
FLOATS = [1.0, 2.0, 3.0, 4.0]
WORD = "old"
STATE = [1.0]


@pytest.fixture(autouse=True)
def no_test_hangs():
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def paths(tmp_path):
    for letter in "abc":
        (tmp_path / letter).write_text(letter)
    return [str(tmp_path / letter) for letter in "abc"]


def check(function, *args, rung=None, config=NOW):
    """Three calls in a row show what plain Python shows; `rung` took them, or none did."""
    fast = jit(function, config=config)
    for _ in range(3):
        LOG.clear()
        plain = oracle.observe(function, args)
        plain.world = list(LOG)
        LOG.clear()
        got = oracle.observe(fast, args)
        got.world = list(LOG)
        oracle.compare(plain, got, rtol=1e-9)
    ran = {r for c in fast.stats().values() for r in c if r != "plain"}
    assert ran == ({rung} if rung else set()), str(fast.explain())


def read(path):
    with open(path) as file:
        return file.read()


# A loop's variable that is still needed.


def test_a_break_passes_by_the_store_after_it():
    def broken(xs, flag):
        x = None
        while True:
            out = []
            for x in xs:
                out.append(x * 2.0)
            if flag:
                break
            x = 5
        return x

    def stored(xs, flag):
        x = None
        while True:
            out = []
            for x in xs:
                out.append(x * 2.0)
            x = 5
            if flag:
                break
        return x, out

    check(broken, FLOATS, True)
    check(stored, FLOATS, True, rung=LANES)


def test_a_continue_goes_to_the_test():
    def tested(xs):
        x = 0.0
        rounds = 0
        while x < 3.0 and rounds < 3:
            rounds += 1
            out = []
            for x in xs:
                out.append(x * 2.0)
            if rounds < 2:
                continue
            x = 0.0
        return rounds

    def untested(xs):
        rounds = 0
        while rounds < 3:
            rounds += 1
            out = []
            for x in xs:
                out.append(x * 2.0)
            if rounds < 2:
                continue
            x = 0.0
        return rounds, out

    check(tested, FLOATS)
    check(untested, FLOATS, rung=LANES)


def test_a_context_may_swallow_what_skips_a_store():
    def swallowed(xs):
        out = []
        x = -1.0
        for x in xs:
            out.append(x * 2.0)
        with contextlib.suppress(ValueError):
            int("no")
            x = 5
        return x

    def after(xs):
        out = []
        x = -1.0
        for x in xs:
            out.append(x * 2.0)
        with contextlib.suppress(ValueError):
            int("no")
        x = 5
        return x

    def within(xs):
        x = -1.0
        with contextlib.suppress(ZeroDivisionError):
            out = []
            for x in xs:
                out.append(1.0 / x)
            x = 5
        return x

    def fresh_within(xs):
        with contextlib.suppress(ZeroDivisionError):
            out = []
            for x in xs:
                out.append(1.0 / x)
        return out

    check(swallowed, FLOATS)
    check(after, FLOATS, rung=LANES)
    check(within, [1.0, 2.0, 0.0, 4.0])
    check(fresh_within, FLOATS, rung=LANES)


def test_a_bare_annotation_stores_nothing():
    def bare(xs):
        out = []
        x = -1.0
        for x in xs:
            out.append(x * 2.0)
        x: float
        return x

    def full(xs):
        out = []
        x = -1.0
        for x in xs:
            out.append(x * 2.0)
        x: float = 5.0
        return x, out

    check(bare, FLOATS)
    check(full, FLOATS, rung=LANES)


def test_a_store_that_may_not_happen():
    def walrus(xs, flag):
        out = []
        for x in xs:
            out.append(x * 2.0)
        noting(flag and (x := 5))
        return x

    def matched(xs, flag):
        out = []
        for x in xs:
            out.append(x * 2.0)
        match flag:
            case True:
                x = 5
        return x

    def both(xs, flag):
        out = []
        for x in xs:
            out.append(x * 2.0)
        if flag:
            x = 5
        else:
            x = 6
        return x, out

    check(walrus, FLOATS, False)
    check(matched, FLOATS, False)
    check(both, FLOATS, False, rung=LANES)


def test_an_else_of_a_loop_that_goes_on_elsewhere():
    def skipped(xs, flags):
        seen, x = [], None
        for flag in flags:
            seen.append(x)
            out = []
            for x in xs:
                out.append(x * 2.0)
            for _ in range(2):
                if flag:
                    break
            else:
                continue
            x = 5.0
        return seen, out

    check(skipped, FLOATS, [True, False, True])


def test_the_loop_s_own_else_reads_its_variable():
    def read_there(xs):
        out = []
        y = None
        for x in xs:
            out.append(x * 2.0)
        else:
            y = x
        return out, y

    def stored_there(xs):
        out = []
        for x in xs:
            out.append(x * 2.0)
        else:
            x = 7.0
        return out, x

    check(read_there, FLOATS)
    check(stored_there, FLOATS, rung=LANES)


def test_a_finally_on_the_way_out():
    def returned(xs):
        out = []
        try:
            for x in xs:
                out.append(x * 2.0)
            return out
        finally:
            LOG.append(x)

    def stored(xs):
        out = []
        try:
            for x in xs:
                out.append(x * 2.0)
            return out
        finally:
            x = 1.0
            LOG.append(x)

    check(returned, FLOATS)
    check(stored, FLOATS, rung=LANES)


def test_a_generator_reads_the_variable_later():
    def kept(xs):
        x = 0
        out = []
        later = (x for _ in range(2))
        for x in xs:
            out.append(x * 2.0)
        return list(later)

    def eaten(xs):
        x = 0
        out = []
        now = list(x for _ in range(2))  # noqa: C400
        for x in xs:
            out.append(x * 2.0)
        return now, out

    def each_keeps_one(xs):
        out = []
        for x in xs:
            out.append(x * y for y in (1, 2))
        return [list(one) for one in out]

    def each_eats_one(xs):
        out = []
        for x in xs:
            out.append(sum(x * y for y in (1, 2)) + x * 2.0)
        return out

    check(kept, FLOATS)
    check(eaten, FLOATS, rung=LANES)
    check(each_keeps_one, FLOATS)
    check(each_eats_one, FLOATS, rung=LANES)


def test_a_total_that_is_unset_is_missed_only_by_who_adds():
    def unset(xs):
        total = 0.0
        del total
        for x in xs:
            total += x  # noqa: F821, F841
        return "nothing to add"

    check(unset, [])
    check(unset, FLOATS)


# Filling within a try.


def test_a_handler_meets_the_error_of_filling():
    def divided(xs):
        total = 1.0
        bad = 0
        for x in xs:
            try:
                total /= x
            except ZeroDivisionError:
                bad += 1
        return total, bad

    def added(xs):
        total = ""
        bad = 0
        for x in xs:
            try:
                total += x
            except TypeError:
                bad += 1
        return total, bad

    def keyed(xs):
        table = {}
        bad = 0
        for x in xs:
            try:
                table[[x, 1]] = x
            except TypeError:
                bad += 1
        return table, bad

    def finished(xs):
        total = 1.0
        count = 0
        try:
            for x in xs:
                try:
                    total /= x
                finally:
                    count += 1
        except ZeroDivisionError:
            LOG.append("caught")
        return total, count

    with_zero = [1.0, 2.0, 0.0, 4.0]
    for text in (divided, finished):
        fast = jit(text, config=NOW)
        for xs in (with_zero, FLOATS, with_zero):
            assert fast(xs) == text(xs)
        check(text, FLOATS)
    assert divided(with_zero) == (0.125, 1)
    for text in (added, keyed):
        fast = jit(text, config=NOW)
        for _ in range(3):
            assert fast(FLOATS) == text(FLOATS)


def test_what_waits_is_read_once_whoever_catches(paths):
    def caught(ps):
        table = {}
        bad = 0
        for p in ps:
            try:
                table[[read(p)]] = 1
            except TypeError:
                bad += 1
        return table, bad

    def not_caught(ps):
        table = {}
        bad = 0
        for p in ps:
            try:
                table[p] = read(p)
            except OSError:
                bad += 1
        return table, bad

    def nothing_catches(ps):
        table = {}
        bad = 0
        try:
            for p in ps:
                try:
                    table[[p]] = read(p)
                except OSError:
                    bad += 1
        except TypeError as error:
            return table, bad, str(error)

    def listed(ps):
        out = []
        bad = 0
        for p in ps:
            try:
                out.append(read(p))
            except Exception:
                bad += 1
        return out, bad

    missing = [paths[0], "/nope", paths[1]]
    check(caught, paths)
    check(not_caught, missing, rung=THREADS)
    check(nothing_catches, missing, rung=THREADS)
    check(listed, missing, rung=THREADS)


def read_or_refuse(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        raise KeyError(path) from error


def read_those_there_are(paths):
    out = []
    for path in paths:
        try:
            with open(path) as file:
                text = file.read()
        except OSError:
            continue
        out.append(text)
    return out


def read_those_with_long_names(paths):
    out = []
    for path in paths:
        if len(path) > 5:
            text = read(path)
        else:
            continue
        out.append(text)
    return out


def test_a_name_is_stored_wherever_the_path_goes_on(paths):
    check(lambda ps: [read_or_refuse(p) for p in ps], paths, rung=THREADS)
    check(
        lambda groups: [read_those_there_are(g) for g in groups], [[p, "/nope"] for p in paths], rung=THREADS
    )
    check(read_those_there_are, [*paths, "/nope"], rung=THREADS)
    check(read_those_with_long_names, [*paths, "/nope"], rung=THREADS)


# Statements that are not independent.


def test_a_function_reads_what_a_statement_stores(paths):
    def linked(p, q):
        a = "old"

        def both(q):
            return read(q) + a

        a = read(p)
        b = both(q)
        return b

    def apart(p, q):
        def twice(q):
            return read(q) * 2

        a = read(p)
        b = twice(q)
        return a, b

    check(linked, *paths[:2])
    check(apart, *paths[:2], rung=THREADS)


def with_word(q):
    return read(q) + WORD


def test_a_function_reads_a_global_that_a_statement_stores(paths):
    def linked(p, q):
        global WORD
        WORD = "old"
        WORD = read(p)
        b = with_word(q)
        return b

    def apart(p, q):
        word = read(p)
        b = with_word(q)
        return word, b

    check(linked, *paths[:2])
    check(apart, *paths[:2], rung=THREADS)


# Eaters have errors and effects of their own.


def test_an_eater_s_own_error_comes_first(paths):
    missing = [paths[0], "/nope"]
    check(lambda ps: sum(read(p) for p in ps), missing, rung=THREADS)
    check(lambda ps: dict(read(p) for p in ps), missing, rung=THREADS)
    check(lambda ps: {[read(p)]: 1 for p in ps}, missing, rung=THREADS)
    check(lambda ps: {(read(p), []) for p in ps}, missing, rung=THREADS)
    check(lambda ps: set([read(p)] for p in ps), missing, rung=THREADS)  # noqa: C401
    check(lambda ps: max(read(p) if p[-1] == "a" else 1 for p in ps), [*paths, "/nope"], rung=THREADS)
    check(lambda ps: ",".join(read(p) for p in ps), missing, rung=THREADS)
    check(lambda ps: sum(len(read(p)) for p in ps), missing, rung=THREADS)
    check(lambda ps: sum(len(read(p)) for p in ps), paths, rung=THREADS)
    check(lambda ps: sum((len(read(p)) for p in ps), 10), paths, rung=THREADS)
    check(lambda ps: max((read(p) for p in ps), key=len), paths, rung=THREADS)


def noting(value):
    LOG.append(value)
    return value


def test_what_a_key_does_comes_between_the_items(paths):
    missing = [*paths[:2], "/nope"]
    check(lambda ps: max((read(p) for p in ps), key=noting), missing)
    check(lambda ps: sorted((read(p) for p in ps), key=noting), missing, rung=THREADS)
    check(lambda ps: sorted((read(p) for p in ps), key=noting), paths, rung=THREADS)


def scaled(x):
    return x * STATE[0]


def scaling(value):
    STATE[0] += 1.0
    return value


class Scaling:
    def __add__(self, other):
        STATE[0] += 1.0
        return other


def test_what_a_key_or_a_start_changes_is_seen_by_the_next_item():
    def keyed(xs):
        STATE[0] = 1.0
        return max((scaled(x) for x in xs), key=scaling)

    def started(xs):
        STATE[0] = 1.0
        start = Scaling()
        return sum((scaled(x) for x in xs), start)

    def plainly(xs):
        STATE[0] = 1.0
        start = 10.0
        return max((scaled(x) for x in xs), key=abs), sum((scaled(x) for x in xs), start)

    check(keyed, FLOATS)
    check(started, FLOATS)
    check(plainly, FLOATS, rung=LANES)


def test_a_second_argument_is_compared_with_the_generator():
    check(lambda xs, ys: max((x * 2.0 for x in xs), ys), FLOATS, [1.0])
    check(lambda xs, ys: list((x * 2.0 for x in xs), ys), FLOATS, [1.0])
    check(lambda xs, ys: max((x * 2.0 for x in xs), default=ys), FLOATS, [1.0], rung=LANES)


# What might never end.


def down(x):
    while x != 1.0:
        x = x - 1.0
    return True


def recursive(x):
    return True if x == 1.0 else recursive(x - 1.0)


def counted(x):
    total = 0
    for i in range(int(x)):
        total += i
    return total >= 0


@pytest.mark.parametrize("config", [NOW, None])
def test_items_after_the_one_that_decides(config):
    never_ends, far = [1.0, 0.5, 3.0, *[2.0] * 20], [1.0, 1e15, 3.0, *[2.0] * 20]
    check(lambda xs: any(down(x) for x in xs), never_ends, config=config)
    check(lambda xs: not all(not down(x) for x in xs), never_ends, config=config)
    check(lambda xs: any(recursive(x) for x in xs), never_ends, config=config)
    check(lambda xs: any(counted(x) for x in xs), far, config=config)
    check(lambda xs: any([i >= 0 for i in range(int(x))] for x in xs), far, config=config)


def test_items_after_the_one_that_decides_may_raise():
    zero_late = [3.0, 2.0, 0.0, 1.0]
    check(lambda xs: any(1.0 / x > 0.1 for x in xs), zero_late)
    check(lambda xs: any(x > 2.0 for x in xs), FLOATS)
    check(lambda xs: [down(x) for x in xs], FLOATS, rung=LANES)


def down_if_positive(x):
    if x >= 0.0:
        while x != 1.0:
            x = x - 1.0
        return x
    raise ValueError("negative")


def test_items_after_the_one_that_raises():
    check(lambda xs: [down_if_positive(x) for x in xs], [*FLOATS, -1.0, 0.5])
    check(lambda xs: [down_if_positive(x) for x in xs], FLOATS, rung=LANES)
    check(lambda xs: [down(x) for x in xs], [30_000.0, 2.0])
    check(lambda xs: [down(x) for x in xs], [1500.0, 2.0], rung=LANES)


def retried(x):
    while True:
        try:
            return f"{x:.2f}"
        except:  # noqa: E722
            pass


def retried_by_name(x):
    for _ in range(10**12):
        try:
            return f"{x:.2f}"
        except (ValueError, BaseException):
            pass


def retried_at_last(x):
    done = False
    while True:
        try:
            text = f"{x:.2f}"
            done = True
        finally:
            if not done:
                continue  # noqa: B012
        return text


def once(x):
    try:
        return f"{x:.2f}"
    except BaseException:
        return None


def retried_elsewhere(x):
    text = once(x)
    while text is None:
        text = once(x)
    return text


def retried_a_little(x):
    while x > 1.0:
        try:
            x = x - 1.0
        except ValueError:
            x = x - 2.0
    return x


def caught_once(x):
    try:
        return x * 2.0
    except:  # noqa: E722
        return -1.0


@pytest.mark.parametrize(
    "text", [retried, retried_by_name, retried_at_last, retried_elsewhere, retried_a_little]
)
def test_a_body_that_catches_everything_again_and_again(text):
    check(lambda xs: [text(x) for x in xs], FLOATS)


@pytest.mark.parametrize("text", [retried_a_little, caught_once])
def test_a_body_that_catches_and_ends(text):
    check(lambda xs: [text(x) for x in xs], FLOATS)


def test_a_loop_variable_after_break_where_the_clock_decides():
    def last(xs, flag):
        x = None
        while True:
            out = []
            for x in xs:
                out.append((x * 2.0 + 1.0).sum())
            if flag:
                break
            x = 5
        return x

    check(last, list(np.ones((5000, 8))), True, config=None)
