"""Numbers that a loss reads are seen to change."""

import functools

from torch import nn

from wide_compiler.training.fingerprint import fingerprint

SCALE = 1.0


def by_global(y):
    return SCALE * y


def test_globals_closures_defaults_and_helpers(monkeypatch):
    before = fingerprint(by_global)
    assert fingerprint(by_global) == before
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert fingerprint(by_global) != before

    beta = 0.5

    def helper(y):
        return beta * y

    def loss(y, power=2):
        return helper(y) ** power

    before = fingerprint(loss)
    beta = 0.7
    assert fingerprint(loss) != before
    before = fingerprint(loss)
    loss.__defaults__ = (3,)
    assert fingerprint(loss) != before


def test_dictionaries_lists_and_partials():
    settings = {"weight": 1.0, "nested": [1, 2]}

    def loss(y):
        return settings["weight"] * y

    before = fingerprint(loss)
    settings["weight"] = 2.0
    assert fingerprint(loss) != before
    before = fingerprint(loss)
    settings["nested"][0] = 5
    assert fingerprint(loss) != before
    one = functools.partial(by_global, 3)
    assert fingerprint(one) != fingerprint(functools.partial(by_global, 4))


def test_objects_and_modules():
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    before = fingerprint(loss)
    loss.label_smoothing = 0.2
    assert fingerprint(loss) != before

    class Loss:
        def __init__(self):
            self.scale = 1.0
            self.inner = nn.HuberLoss(delta=1.0)

        def __call__(self, y):
            return self.scale * self.inner(y, y)

    own = Loss()
    before = fingerprint(own)
    own.inner.delta = 2.0
    assert fingerprint(own) != before
    before = fingerprint(own.__call__)
    own.scale = 3.0
    assert fingerprint(own.__call__) != before
