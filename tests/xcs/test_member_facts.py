"""What members read outside of themselves: in modules of Python, in functions, in functions of their own."""

import copy
import types

import pytest
import torch
from torch import nn

from wide_compiler.xcs import Config, jit
from xcs import oracle

settings = types.ModuleType("settings")


def start():
    settings.SCALE, settings.SIZES, settings.TABLE = 2.0, [2.0, 3.0], {"a": 2.0}
    settings.BIAS, settings.act = torch.ones(4), action(2.0)[0]
    helper.factor = 2.0


def action(scale):
    def act(x, shift=0.0):
        return x * scale + shift

    def change(to):
        nonlocal scale
        scale = to

    return act, change


def another(scale):
    def act(x, shift=0.0):
        return x - scale

    return act


def helper(x):
    return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.act, self.change = None, None


class Scaled(Net):
    def forward(self, x):
        return self.inner(x) * settings.SCALE


class Sized(Net):
    def forward(self, x):
        return self.inner(x) * settings.SIZES[0]


class Tabled(Net):
    def forward(self, x):
        return self.inner(x) * settings.TABLE["a"]


class Biased(Net):
    def forward(self, x):
        return self.inner(x) + settings.BIAS


class Helped(Net):
    def forward(self, x):
        return self.inner(x) * helper.factor


class Acted(Net):
    def forward(self, x):
        return settings.act(self.inner(x))


class HoldsHelper(Net):
    def __init__(self):
        super().__init__()
        self.act = helper

    def forward(self, x):
        return self.inner(x) * self.act.factor


class Acting(Net):
    def __init__(self):
        super().__init__()
        self.act = action(2.0)[0]

    def forward(self, x):
        return self.act(self.inner(x))


def loop(models, x):
    with torch.no_grad():
        return [m(x) for m in models]


def ran(fast):
    return sum(counts.get("wide model", 0) for counts in fast.stats().values())


def cell_of(function, value):
    function.__closure__[0].cell_contents = value


CHANGES = {
    "a number": (Scaled, lambda models: setattr(settings, "SCALE", 5.0)),
    "gone": (Scaled, lambda models: delattr(settings, "SCALE")),
    "in a list": (Sized, lambda models: settings.SIZES.__setitem__(0, 9.0)),
    "in a dict": (Tabled, lambda models: settings.TABLE.__setitem__("a", 9.0)),
    "a tensor": (Biased, lambda models: setattr(settings, "BIAS", torch.full((4,), 7.0))),
    "of a function": (Helped, lambda models: setattr(helper, "factor", 5.0)),
    "of a function that members hold": (HoldsHelper, lambda models: setattr(helper, "factor", 5.0)),
    "a function": (Acted, lambda models: setattr(settings, "act", action(5.0)[0])),
    "a cell of the first": (Acting, lambda models: cell_of(models[0].act, 5.0)),
    "a cell of the third": (Acting, lambda models: cell_of(models[2].act, 5.0)),
    "a default of the third": (Acting, lambda models: setattr(models[2].act, "__defaults__", (5.0,))),
    "the code of the third": (
        Acting, lambda models: setattr(models[2].act, "__code__", another(2.0).__code__),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_outside_is_seen(case):
    start()
    kind, change = CHANGES[case]
    torch.manual_seed(0)
    models, x = [kind() for _ in range(5)], torch.randn(3, 4)
    for model in models:
        del model.change
    fast = jit(loop, config=Config(measure=False))
    for turn in range(4):
        wanted, got = oracle.observe(loop, (models, x)), oracle.observe(fast, (models, x))
        oracle.compare(wanted, got, rtol=1e-5)
        if turn == 1:
            assert ran(fast) == 2, str(fast.explain())
            change(models)


class Forgetful(nn.Module):
    def __init__(self):
        self.__dict__["scale"] = 2.0

    def forward(self, x):
        return x * self.scale


def test_modules_that_are_not_made_as_modules():
    models = [Forgetful() for _ in range(5)]
    fast = jit(loop, config=Config(measure=False))
    oracle.compare(
        oracle.observe(loop, (models, torch.ones(2))), oracle.observe(fast, (models, torch.ones(2)))
    )


def test_a_function_among_the_submodules():
    models = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(5)]
    for model in models:
        model._modules["1"] = torch.relu
    fast, x = jit(loop, config=Config(measure=False)), torch.randn(3, 4)
    for _ in range(2):
        assert all(map(torch.equal, fast(models, x), loop(models, x)))


class ByMethod(Net):
    def forward(self, x):
        return self.inner(x).relu()


@pytest.mark.parametrize("name", ["relu", "__add__"])
def test_a_method_of_tensors_that_is_replaced(name, monkeypatch):
    torch.manual_seed(0)
    models, x = [ByMethod() for _ in range(5)], torch.randn(3, 4)
    fast = jit(loop, config=Config(measure=False))
    fast(models, x)
    assert ran(fast) == 1
    own = getattr(torch.Tensor, name)
    monkeypatch.setattr(torch.Tensor, name, lambda *given: own(*given) * 3)
    assert all(map(torch.equal, fast(models, x), loop(models, x)))
    monkeypatch.undo()
    assert ran(fast) == 1
    oracle.compare(oracle.observe(loop, (models, x)), oracle.observe(fast, (models, x)), rtol=1e-5)


def test_notes_that_python_keeps_in_classes_change_nothing():
    models, x = [ByMethod() for _ in range(5)], torch.randn(3, 4)
    fast = jit(loop, config=Config(measure=False))
    copy.copy(x), copy.copy(models[0]), copy.copy(models[0].inner)
    assert "__slotnames__" in vars(torch.Tensor)
    fast(models, x)
    assert ran(fast) == 1


def rows(model, xs):
    with torch.no_grad():
        return [model(x) for x in xs]


def strange_items():
    yield "sparse", torch.eye(4).to_sparse()
    yield "compressed", torch.eye(4).to_sparse_csr()
    yield "nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    yield "complex32", torch.ones(4, dtype=torch.complex32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "item"), strange_items(), ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.parametrize("model", [nn.Identity(), nn.Dropout().eval()], ids=["identity", "dropout"])
def test_items_that_no_fast_way_knows(name, item, model):
    fast = jit(rows, config=Config(measure=False))
    for _ in range(3):
        for wanted, got in zip(rows(model, [item] * 9), fast(model, [item] * 9), strict=True):
            assert got is wanted or got.is_nested
