"""What a handler of signals raises reaches the caller, on a fast path too."""

import functools
import signal

import numpy as np
import pytest
import torch
from torch import nn

from wide_compiler.routers.fused_lanes import Fused
from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.lanes import run as lanes_run
from wide_compiler.xcs.modules import group, torch_vmap, trial
from wide_compiler.xcs.work import Work


class TimeIsUp(Exception):
    pass


def by_function(number, frame):
    raise TimeIsUp("in a function")


class Handler:
    def method(self, number, frame):
        raise TimeIsUp("in a method")

    def __call__(self, number, frame):
        raise TimeIsUp("in an object")


HANDLERS = [by_function, Handler().method, Handler(), functools.partial(by_function)]
W = np.random.default_rng(0).normal(size=(40, 40))


def lanes(xs):
    return [np.tanh(x @ W) @ W for x in xs]


def mapped(net, xs):
    with torch.no_grad():
        return [net(x) for x in xs]


def together(nets, x):
    with torch.no_grad():
        return [net(x) for net in nets]


def network():
    return nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 40))


# Where a signal comes, and for which rung.
PLACES = {
    "gathering": ("numpy lanes", lanes_run, "gathered"),
    "lanes": ("numpy lanes", lanes_run.Body, "_run"),
    "vmap": ("torch vmap", torch.func, "vmap"),
    "stacking": ("torch vmap", torch_vmap, "_gathered"),
    "a trial": ("torch vmap", trial.Watch, "__torch_dispatch__"),
    "a wide call": ("wide model", Fused, "stacked"),
    "making a wide model": ("wide model", group.Group, "build"),
    "an item that is compared": ("numpy lanes", Work, "one"),
}
CASES = {
    "numpy lanes": (lanes, lambda: (list(np.ones((300, 40))),)),
    "torch vmap": (mapped, lambda: (network(), list(torch.ones(30, 40)))),
    "wide model": (together, lambda: ([network() for _ in range(4)], torch.ones(3, 40))),
}


@pytest.mark.parametrize("handler", range(len(HANDLERS)))
@pytest.mark.parametrize("place", PLACES)
def test_it_is_not_taken_for_trouble_of_a_rung(place, handler, monkeypatch):
    rung, owner, name = PLACES[place]
    function, given = CASES[rung]
    fast, arguments = jit(function, config=Config(measure=False)), given()
    original, met = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        met.append(place)
        signal.raise_signal(signal.SIGUSR1)
        return original(*args, **kwargs)

    before = signal.signal(signal.SIGUSR1, HANDLERS[handler])
    try:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, interrupted)
            with pytest.raises(TimeIsUp):
                fast(*arguments)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert met == [place]
    fast(*arguments), fast(*arguments)
    assert next(iter(fast.stats().values()))[rung] >= 2


@pytest.mark.parametrize("config", [Config(), Config(measure=False)], ids=["measured", "at once"])
def test_while_items_are_sampled(config):
    def run(xs):
        return [interrupting(x) for x in xs]

    before = signal.signal(signal.SIGUSR1, by_function)
    try:
        with pytest.raises(TimeIsUp):
            jit(run, config=config)([1, 2, 3])
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupting(x):
    signal.raise_signal(signal.SIGUSR1)
    return x


def test_an_item_that_raises_the_same_is_the_loop_s_to_raise():
    def run(xs):
        return [raising(x) for x in xs]

    fast = jit(run, config=Config(measure=False))
    for _ in range(3):
        with pytest.raises(TimeIsUp, match="at 7"):
            fast(list(range(20)))


def raising(x):
    if x == 7:
        raise TimeIsUp(f"at {x}")
    return x * 2
