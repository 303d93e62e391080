"""register: the user's own wide class for a type of module, by decorator or call, and back out again."""

import pytest
import torch
from torch import nn

import wide_compiler
from untouched import refused
from wide_compiler import REGISTRY, WideLinear, WideRegistry, oracle, register

N = 3
x = torch.randn(2, 4)


class Gain(nn.Module):
    """What the tests register a wide class for."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(4))

    def forward(self, x, power=1):
        return (x * self.gain) ** power


class WideGain(nn.Module):
    built = 0

    def __init__(self, gain):
        super().__init__()
        self.gain = nn.Parameter(gain)

    @classmethod
    def from_modules(cls, modules):
        cls.built += 1
        return cls(torch.stack([m.gain.detach() for m in modules]))

    def forward(self, x, power=1):
        return (x * self.gain[:, None]) ** power


def chain():
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(Gain(), nn.ReLU()), nn.Linear(4, 2))


@pytest.fixture
def registered():
    register("Gain", WideGain)
    yield
    if REGISTRY.get("Gain") is not None:
        REGISTRY.unregister("Gain")


def test_the_call_form_and_the_decorator():
    registry = WideRegistry()
    assert registry.register("Gain", WideGain) is WideGain
    assert registry.get("Gain") is WideGain

    @registry.register("Other")
    class Other(WideGain):
        pass

    assert isinstance(Other, type) and registry.get("Other") is Other


def test_the_module_level_function_does_both():
    try:
        assert register("Gain", WideGain) is WideGain
        assert register("Other")(WideGain) is WideGain
        assert REGISTRY.get("Gain") is REGISTRY.get("Other") is WideGain
    finally:
        REGISTRY.unregister("Gain"), REGISTRY.unregister("Other")
    assert "Gain" not in REGISTRY and "Other" not in REGISTRY


@pytest.mark.parametrize("wide", [nn.Linear, object, 3, lambda modules: None])
def test_a_class_without_from_modules(wide):
    registry = WideRegistry()
    with refused(TypeError, "from_modules", "'Gain'"):
        registry.register("Gain", wide)
    with refused(TypeError, "from_modules", "'Gain'"):
        registry.register("Gain")(wide)
    assert "Gain" not in registry


@pytest.mark.parametrize("name", [Gain, None, 3])
def test_a_name_that_is_no_name(name):
    with refused(TypeError, "name", "@register('MyOp')"):
        register(name)
    with refused(TypeError, "name", "@register('MyOp')"):
        WideRegistry().register(name, WideGain)


def test_unregister_gives_the_built_in_back():
    registry = WideRegistry()
    registry.register("Linear", WideGain)
    assert registry.get("Linear") is WideGain and registry.listing()["Linear"] is WideGain
    registry.unregister("Linear")
    assert registry.get("Linear") is WideLinear


def test_unregister_of_what_is_not_registered():
    registry = WideRegistry()
    with refused(KeyError, "Gain", "nothing"):
        registry.unregister("Gain")
    registry.register("Other", WideGain)
    with refused(KeyError, "Linear", "Other"):
        registry.unregister("Linear")  # a built-in one stays
    assert registry.get("Linear") is WideLinear


def test_listing_contains_and_iteration():
    registry = WideRegistry()
    built_in = set(registry)
    assert {"Linear", "Conv2d", "BatchNorm1d", "LSTM", "Embedding", "MultiheadAttention"} <= built_in
    registry.register("Gain", WideGain)
    assert set(registry) == built_in | {"Gain"} == set(registry.listing()) == set(registry.list())
    assert "Gain" in registry and "Linear" in registry and "Nothing" not in registry
    assert registry.get("Nothing") is None
    assert set(WideRegistry()) == built_in and "Gain" not in REGISTRY


def test_a_listing_is_a_copy():
    registry = WideRegistry()
    registry.listing()["Gain"] = WideGain
    assert "Gain" not in registry


def test_a_registered_module_runs_whole_by_its_class(registered):
    models = [chain() for _ in range(N)]
    wide = wide_compiler.compile(models, x)
    row = next(r for r in wide.explain(measure=False).rows if r.op == "Gain")
    assert (row.path, row.how, row.strategy) == ("1.0", "rule", "registered")
    assert isinstance(wide.get_submodule("1.0"), WideGain)
    inputs = [((torch.randn(5, 4),), {}) for _ in range(N)]
    oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1).check(rtol=1e-5)
    assert "1.0.gain" in wide.state_dict()
    assert torch.equal(wide.lane(1)[1][0].gain, models[1][1][0].gain)
    other = chain()
    wide.load_lane(2, other)
    assert torch.equal(wide.get_submodule("1.0").gain[2], other[1][0].gain)


def test_after_unregister_the_same_models_run_by_rules(registered):
    models = [chain() for _ in range(N)]
    REGISTRY.unregister("Gain")
    wide = wide_compiler.compile(models, x)
    assert all(row.op != "Gain" for row in wide.explain(measure=False).rows)
    oracle.compare(models, wide, shared_input=((x,), {})).check(rtol=1e-5)


def test_a_model_that_is_itself_of_a_registered_type(registered):
    with pytest.raises(ValueError, match=r"WideGain\.from_modules"):
        wide_compiler.compile([Gain() for _ in range(N)], x)


def test_from_modules_that_gives_no_module(registered):
    class Wrong:
        @classmethod
        def from_modules(cls, modules):
            return 3

    register("Gain", Wrong)
    models = [chain() for _ in range(N)]
    with refused(TypeError, "Wrong.from_modules", "int", "Module", of=models):
        wide_compiler.compile(models, x)


def test_chunks_cannot_split_a_registered_module(registered):
    models = [chain() for _ in range(N)]
    with refused(ValueError, "chunk_lanes", "'1.0'", of=models):
        wide_compiler.compile(models, x, chunk_lanes=2)


def test_a_registered_class_that_hides_its_lanes_says_how_to_name_them(registered):
    class Hidden(WideGain):
        def __init__(self, gain):
            nn.Module.__init__(self)
            self.other_name = nn.Parameter(gain)

        def forward(self, x):
            return x * self.other_name[:, None]

    register("Gain", Hidden)
    models = [chain() for _ in range(N)]
    with refused(wide_compiler.InputError, "1.0", "Hidden", "'gain'", "stack", of=models):
        wide_compiler.compile(models, x).lane(0)
