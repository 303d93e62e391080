"""Whatever goes wrong in the machinery, the text runs as written: a fault is put into every function."""

import importlib
import inspect
import pkgutil
import sys
import time
import types

import numpy as np
import pytest
import torch
from torch import nn

import wide_compiler.xcs as xcs
from wide_compiler.xcs import Config, jit, site
from wide_compiler.xcs.work import Bail

NET = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
NETS = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval() for _ in range(3)]
ROWS = [np.linspace(i, i + 1.0, 4) for i in range(40)]
TENSORS = list(torch.linspace(0.0, 1.0, 80).view(20, 4))


def wait(x):
    time.sleep(0.002)
    return x


def rows(xs):
    return [float((x - x.mean()).sum()) for x in xs]


def filtered(xs):
    return [x * 2.0 for x in xs if x[0] > 3.0]


def table(xs):
    return {i: float(x.max()) for i, x in enumerate(xs)}


def two_loops(xs):
    return [x * k for x in xs for k in (1.0, 2.0)]


def filled(xs):
    out = []
    total = 0.0
    for x in xs:
        out.append(x * 2.0)
        total += float(x.max())
    return out, total


def mapped(xs):
    return [NET(x) for x in xs]


def members(xs):
    return [net(xs[0]) for net in NETS]


def waiting(xs):
    return [wait(i) for i in range(len(xs))]


def statements(xs):
    a = wait(xs[0])
    b = wait(xs[1])
    return a, b


PROGRAMS = {
    **{f.__name__: (f, ROWS) for f in (rows, filtered, table, two_loops, filled)},
    **{f.__name__: (f, TENSORS) for f in (mapped, members)},
    **{f.__name__: (f, TENSORS[:6]) for f in (waiting, statements)},
}
# What the rewritten text itself stands on; what runs an item, so that its errors are the item's; threads,
# that know which items have begun.
KERNEL = (
    *("call", "exceptions", "jit", "text", "mapping", "site_rows", "comparison", "module", "ir"),
    "parallelism",
)
KERNEL_CLASSES = ("Site", "Overlap", "ZipOrEnumerate")
KERNEL_FUNCTIONS = {"Schedule.skipped", "made", "Work.one", "Items.row"}


def functions():
    """Every function and method of the machinery, by name."""
    found = {}
    for info in pkgutil.walk_packages(xcs.__path__, "wide_compiler.xcs."):
        if info.name.split(".")[2] in KERNEL:
            continue
        module = importlib.import_module(info.name)
        for owner in (module, *(c for c in vars(module).values() if isinstance(c, type))):
            for held in vars(owner).values():
                held = getattr(held, "__func__", held.fget if isinstance(held, property) else held)
                mine = isinstance(held, types.FunctionType) and held.__module__ == info.name
                if not mine or held.__closure__ or held.__qualname__ in KERNEL_FUNCTIONS:
                    continue
                if held.__qualname__.split(".")[0] not in KERNEL_CLASSES:
                    found[f"{info.name.removeprefix('wide_compiler.xcs.')}.{held.__qualname__}"] = held
    return found


FUNCTIONS = {n: f for n, f in functions().items() if not inspect.isgeneratorfunction(f)}


def called_by(program, xs, config):
    """Names of the functions that come into play in three calls of a program."""
    seen, before = set(), {name: f.__code__ for name, f in FUNCTIONS.items()}
    names = {code: name for name, code in before.items()}
    fast = jit(program, config=config)

    def note(frame, event, arg):
        if event == "call" and frame.f_code in names:
            seen.add(names[frame.f_code])

    kept, site.in_the_way = site.in_the_way, lambda: ""  # else nothing runs under a profiler
    sys.setprofile(note)
    try:
        for _ in range(3):
            fast(xs)
    finally:
        sys.setprofile(None)
        site.in_the_way = kept
    return sorted(seen)


def broken(*args, **kwargs):
    raise RuntimeError("a fault was put here")


def bailing(*args, **kwargs):
    import wide_compiler.xcs.work as work

    raise work.Bail("out of the blue")


@pytest.mark.parametrize(("measure", "fault"), [(False, broken), (False, bailing), (True, broken)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_anywhere_means_the_loop_as_written(name, measure, fault):
    program, xs = PROGRAMS[name]
    config = Config(measure=measure)
    wanted = program(xs)
    places = called_by(program, xs, config)
    assert len(places) > (3 if measure else 20)
    shown, reached = 0, []
    for place in places:
        function = FUNCTIONS[place]
        before = function.__code__
        fast = jit(program, config=config)
        try:
            function.__code__ = fault.__code__
            for _ in range(2):
                got = fast(xs)
                assert same(got, wanted), place
        except (RuntimeError, Bail):
            reached.append(place)
        finally:
            function.__code__ = before
        shown += "a fault was put here" in str(fast.explain()) or "out of the blue" in str(fast.explain())
        assert same(fast(xs), wanted), place  # and afterwards
    assert not reached, "came to the caller"
    assert shown > 0


def same(got, wanted):
    return xcs.comparison.same(got, wanted, rtol=1e-9)
