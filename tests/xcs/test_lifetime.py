"""What a call made goes when plain Python would let it go: nothing of it is kept by the run time."""

import gc
import time
import weakref

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit

LOG = []
NUMBERS = [1, 2, 3, 4, 5, 6, 7, 8] * 4


class Resource:
    def __init__(self, k):
        self.k = k

    def __del__(self):
        LOG.append(("gone", self.k))


def use(resource, x):
    return x * resource.k


def comprehension(xs):
    resource = Resource(3)
    out = [use(resource, x) for x in xs]
    LOG.append("end")
    return out


def set_to_none(xs):
    resource = Resource(3)
    out = [x * 2 for x in xs if resource.k]
    resource = None
    LOG.append("end")
    return out


def loop(xs):
    resource = Resource(3)
    total = 0
    for x in xs:
        total += use(resource, x)
    del resource
    LOG.append("end")
    return total


def raising(xs):
    try:
        resource = Resource(3)
        return [use(resource, x) / 0 for x in xs]
    except ZeroDivisionError:
        pass
    LOG.append("caught")


def parting(xs):
    resource = Resource(3)
    return [use(resource, x) if x > 4 else x - 1 for x in xs]


def bailing(xs):
    resource = Resource(3)
    return [str(use(resource, x)) for x in xs]


def waiting(xs):
    resource = Resource(1)
    return [time.sleep(0.001) or x * resource.k for x in xs]


def slowly(x):
    time.sleep(0.001)
    return x


def statements(xs):
    resource = Resource(1)
    a = slowly(resource.k)
    b = slowly(resource.k + 1)
    return a, b


FAST = {comprehension: "numpy lanes", loop: "numpy lanes", parting: "numpy lanes", waiting: "threads"}


@pytest.mark.parametrize("config", [Config(), Config(measure=False)], ids=["measured", "at once"])
@pytest.mark.parametrize(
    "function", [comprehension, set_to_none, loop, raising, parting, bailing, waiting, statements]
)
def test_objects_of_a_call_go_with_it(function, config):
    gc.collect()
    gc.disable()
    try:
        LOG.clear()
        function(NUMBERS)
        LOG.append("returned")
        plain = list(LOG)
        fast = jit(function, config=config)
        for _ in range(4):
            LOG.clear()
            fast(NUMBERS)
            LOG.append("returned")
            assert plain == LOG
    finally:
        gc.enable()
    if not config.measure and function in FAST:
        assert sum(counts.get(FAST[function], 0) for counts in fast.stats().values()) == 4


def test_a_file_is_closed_at_the_end_of_the_call(tmp_path):
    path = tmp_path / "text"

    def run(xs):
        file = open(path, "w")  # noqa: SIM115
        file.write("hello")
        return [x * 2 for x in xs if file is not None]

    fast = jit(run)
    for _ in range(3):
        with pytest.warns(ResourceWarning):
            fast(NUMBERS)
        assert path.read_text() == "hello"


def test_items_and_results(monkeypatch):
    fast = jit(lambda xs: [x * 2.0 for x in xs], config=Config(measure=False))
    for _ in range(3):
        items = [np.ones(4) for _ in range(300)]
        item, result = weakref.ref(items[7]), weakref.ref(fast(items)[7])
        del items
        assert item() is None and result() is None
    assert next(iter(fast.stats().values()))["numpy lanes"] == 3
