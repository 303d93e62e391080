"""Lanes that run the same Python share a variant; whatever a forward can read tells two variants apart."""

import functools
import types
from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import wide_compiler
from fn import Fn
from life_oracle import live, looped
from wide_compiler import AlignmentError, oracle
from wide_compiler.capture import group_by_variant
from wide_compiler.capture import member_export as export_room

x = torch.randn(2, 4)


def held(*values):
    return [Fn(None, value=v) for v in values]


def scaler(factor, **attributes):
    def scale(module, x):
        return x * factor

    for name, value in attributes.items():
        setattr(scale, name, value)
    return scale


@dataclass
class Settings:
    rate: float = 0.1
    inner: object = None


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate


class Plain:
    def __init__(self, rate):
        self.rate = rate


class Table(np.ndarray):
    pass


def t(*values):
    return torch.tensor(values)


def test_the_weights_do_not_count():
    models = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LSTM(4, 2)) for _ in range(3)]
    models[1][1].running_mean += 1.0
    assert group_by_variant(models) == [0, 0, 0]


def test_dropout_rates():
    make = lambda p: nn.Sequential(nn.Linear(4, 4), nn.Dropout(p))  # noqa: E731
    assert group_by_variant([make(p) for p in (0.1, 0.2, 0.1, 0.3, 0.2)]) == [0, 1, 0, 2, 1]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1, 1, True),
        (1, 1.0, False),
        (1, True, False),
        (float("nan"), float("nan"), True),
        ("relu", "gelu", False),
        (None, 0, False),
        (torch.float32, torch.float64, False),
        ([1, [2, (3,)]], [1, [2, (3,)]], True),
        ([1, [2, (3,)]], [1, [2, (4,)]], False),
        ([1], (1,), False),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        (OrderedDict(a=1), OrderedDict(a=1), True),
        ({1, 2}, {2, 1}, True),
        ({1, 2}, {1, 3}, False),
        ([[t(1.0)], {"k": t(2.0)}], [[t(1.0)], {"k": t(2.0)}], True),
        ([[t(1.0)], {"k": t(2.0)}], [[t(1.0)], {"k": t(3.0)}], False),
        ([t(1.0)], [t(1)], False),
        ([t(1.0)], [t(1.0, 1.0)], False),
        (Settings(), Settings(), True),
        (Settings(), Settings(0.2), False),
        (Settings(inner=Settings()), Settings(inner=Settings(0.2)), False),
        (Settings(inner=[t(1.0)]), Settings(inner=[t(2.0)]), False),
        (Plain(1), Plain(1), True),
        (Plain(1), Plain(2), False),
        (types.SimpleNamespace(rate=1), types.SimpleNamespace(rate=2), False),
        (Slotted(1), Slotted(2), False),
        (functools.partial(torch.sum, dim=1), functools.partial(torch.sum, dim=1), True),
        (functools.partial(torch.sum, dim=1), functools.partial(torch.sum, dim=2), False),
        (torch.relu, torch.tanh, False),
        (scaler(2.0), scaler(2.0), True),
        (scaler(2.0), scaler(3.0), False),
        (scaler(2.0, rate=1), scaler(2.0, rate=2), False),
        (Plain(1).__init__, Plain(2).__init__, False),
        (np.array([1.0, 2.0]), np.array([1.0, 2.0]), None),
        (np.array([1.0, 2.0]), np.array([1.0, 3.0]), False),
        (np.array([1.0, 2.0]).view(Table), np.array([1.0, 3.0]).view(Table), False),
        (deque([1, 2]), deque([1, 3]), False),
        (deque([torch.ones(2)]), deque([torch.zeros(2)]), False),
        (np.float32(1), np.float32(2), False),
    ],
)
def test_what_a_forward_can_read(a, b, same):
    found = group_by_variant(held(a, b))
    assert found in ([0, 0], [0, 1])
    assert same is None or found == ([0, 0] if same else [0, 1])  # None: one capture too many is allowed


def test_functions_with_defaults_and_lambdas_of_other_code():
    assert group_by_variant([Fn(lambda m, x, k=k: x * k) for k in (1, 2, 1)]) == [0, 1, 0]
    assert group_by_variant([Fn(lambda m, x: x), Fn(lambda m, x: -x)]) == [0, 1]


def test_a_closure_over_a_name_that_is_never_set():
    def make():
        function = lambda m, x: x if x.dim() == 2 else later(x)  # noqa: E731
        if x.dim() == 99:
            later = torch.relu
        return Fn(function)

    models = [make(), make()]
    wide = wide_compiler.compile(models, x)
    oracle.compare(models, wide, shared_input=((x,), {})).check(rtol=1e-6)


def test_cycles_end():
    models = held(1, 1, 2)
    for model in models:
        model.__dict__["me"] = model
        model.ring = [model, {"again": model}]
        model.ring.append(model.ring)
    assert group_by_variant(models) == [0, 0, 1]


def hooked(factor):
    model = nn.Linear(4, 4)
    model.register_forward_hook(lambda module, inputs, output: output * factor)
    return model


def test_hooks():
    models = [hooked(f) for f in (2.0, 3.0, 2.0)] + [nn.Linear(4, 4)]
    assert group_by_variant(models) == [0, 1, 0, 2]
    wide = wide_compiler.compile(models[:3], x)
    oracle.compare(models[:3], wide, shared_input=((x,), {})).check(rtol=1e-5)


class Ordered(nn.Module):
    """Two layers alike, used in the order of a plain Python list."""

    def __init__(self, turned, how):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.u, self.v = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        parts = {"modules": [self.a, self.b], "methods": [self.a.forward, self.b.forward]}
        parts["parameters"] = [lambda x, p=p: x * p for p in (self.u, self.v)]
        parts["names"] = [lambda x, k=k: getattr(self, k)(x) for k in "ab"]
        self.order = parts[how][::-1] if turned else parts[how]

    def forward(self, x):
        return self.order[1](self.order[0](x).tanh())


@pytest.mark.parametrize("how", ["modules", "methods", "parameters", "names"])
def test_the_same_parts_in_another_order(how):
    """Equal to the loop, or refused by lane; never lane 0's order for all."""
    models = [Ordered(turned, how) for turned in (False, True)]
    try:
        wide = wide_compiler.compile(models, x)
    except AlignmentError as error:
        assert "lane 1" in str(error)
        return
    oracle.compare(models, wide, shared_input=((x,), {})).check(rtol=1e-5)


class Table(nn.Module):
    """Tensors in a dict and a list, of every lane its own."""

    def __init__(self, read=False):
        super().__init__()
        self.fc, self.read = nn.Linear(4, 4), read
        self.tables = {"scale": torch.randn(4), "shifts": [torch.randn(4), torch.randn(())]}

    def forward(self, x):
        h = self.fc(x) * self.tables["scale"] + self.tables["shifts"][0] * self.tables["shifts"][1]
        if self.read:
            h = h * self.tables["shifts"][1].item()
        return h


@pytest.mark.parametrize("read", [False, True])
def test_tensors_in_dicts_cost_one_capture_whatever_the_number_of_lanes(monkeypatch, read):
    exports = []
    export = export_room._export
    monkeypatch.setattr(export_room, "_export", lambda *args: (exports.append(1), export(*args))[1])
    torch.manual_seed(0)
    models = [Table(read).double() for _ in range(6)]
    x = torch.randn(2, 4, dtype=torch.float64)
    wide = wide_compiler.compile(models, x)
    assert len(exports) == (1 if not read else 6)  # a number that Python reads is part of the graph
    torch.testing.assert_close(wide.shared(x), torch.stack([model(x) for model in models]))
    if not read:
        assert wide.explain(measure=False).coverage == 1.0
    torch.testing.assert_close(wide.lane(3)(x), models[3](x))


def test_a_life_of_lanes_with_tables_of_their_own():
    assert not looped(live(lambda: Table().double()))


class Committee(nn.Module):
    """Holds a wide model, whose skeletons have meta tensors."""

    def __init__(self, wide):
        super().__init__()
        self.wide, self.head = wide, nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.wide.shared(x).mean(0))


def test_members_may_hold_wide_models():
    def committee():
        return Committee(wide_compiler.compile(nn.Linear(4, 3), torch.randn(1, 4), n=2)).double()

    models, x = [committee() for _ in range(3)], torch.randn(5, 4).double()
    wide = wide_compiler.compile(models, x)
    torch.testing.assert_close(wide.shared(x), torch.stack([model(x) for model in models]))
    torch.testing.assert_close(wide.lane(1)(x), models[1](x))
