"""Subclasses and their attributes: names like ours, and caches of towers that came later."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

from routers.towers import AT_ONCE, Mlp
from wide_compiler import WideConfig
from wide_compiler.routers import BaseRouter, BaseTower, MeanFusion, RouterError, WideRouter

X = torch.randn(3, 6)


class Leaves(BaseTower):
    def __init__(self, name):
        super().__init__(name)
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        h = self.fc(x)
        self.cache_set("hidden", h)
        return h.relu()


class Contained(BaseRouter):
    """Runs what stands in its container, in its own forward."""

    def __init__(self, container):
        super().__init__("contained")
        self.parts = container

    def forward(self, x):
        parts = list(self.parts.values() if isinstance(self.parts, nn.ModuleDict) else self.parts)
        for part in parts:
            part(x)
        return sum(part.cache_get("hidden") for part in parts)


def put_at_the_end(parts, tower):
    if isinstance(parts, nn.ModuleDict):
        parts["late"] = tower
    else:
        parts.append(tower)


CONTAINERS = {
    "ModuleList": lambda first: nn.ModuleList([first]),
    "Sequential": lambda first: nn.Sequential(first),
    "named Sequential": lambda first: nn.Sequential(OrderedDict(first=first)),
    "ModuleDict": lambda first: nn.ModuleDict({"first": first}),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_tower_put_into_a_container_later_keeps_its_cache(kind):
    first, late = Leaves("first"), Leaves("late")
    router = Contained(CONTAINERS[kind](first))
    put_at_the_end(router.parts, late)
    torch.testing.assert_close(router(X), first.fc(X) + late.fc(X))
    assert first.cache_get("hidden") is None and late.cache_get("hidden") is None
    router.parts = CONTAINERS[kind](late)  # `first` is nobody's any more, and empties its own cache
    first(X)
    assert first.cache_get("hidden") is None
    torch.testing.assert_close(router(X), late.fc(X))


def test_a_tower_taken_out_of_a_container_empties_its_own_cache():
    router = Contained(nn.ModuleList([Leaves("a"), Leaves("b")]))
    gone = router.parts.pop(0)
    gone(X)
    assert gone.cache_get("hidden") is None
    torch.testing.assert_close(router(X), router.parts[0].fc(X))


def test_a_tower_that_is_no_submodule():
    tower = Leaves("a")
    router = Contained(nn.ModuleList())
    router.objects["parts"] = [tower]
    router.forward = lambda x: (tower(x), tower.cache_get("hidden"))[1]
    torch.testing.assert_close(router(X), tower.fc(X))
    assert tower.cache_get("hidden") is None


def test_a_tower_appended_to_a_stage_of_a_tower():
    class Outer(BaseTower):
        def forward(self, x):
            self.stages[0](x)
            return self.stages[0][-1].cache_get("hidden")

    outer = Outer("outer").append(nn.Sequential(nn.Identity()))
    outer[0].append(inner := Leaves("inner"))
    torch.testing.assert_close(outer(X), inner.fc(X))
    assert inner.cache_get("hidden") is None


class Collective(WideRouter):
    def forward(self, x):
        self.wide_forward(x)
        return sum(tower.cache_get("hidden") for tower in self.towers.values())


def test_towers_discovered_later_keep_their_caches_in_a_collective():
    router = Collective("c", config=AT_ONCE)
    router.experts = nn.ModuleList([Leaves("a"), Leaves("b")])
    router.discover_towers()
    router.experts.append(Leaves("late"))
    router.discover_towers()
    assert router.tower_names == ["experts.0", "experts.1", "experts.2"]
    for _ in range(2):
        torch.testing.assert_close(router(X), sum(tower.fc(X) for tower in router.experts))
        assert all(tower.cache_get("hidden") is None for tower in router.experts)
    router.wide_forward(X)  # outside a forward what was left can be read, until the next one ends
    torch.testing.assert_close(router.experts[2].cache_get("hidden"), router.experts[2].fc(X))
    router(X)
    assert all(tower.cache_get("hidden") is None for tower in router.experts)


def test_caches_and_torch_compile():
    router = Contained(nn.ModuleList([Leaves("a")]))
    router.parts.append(Leaves("late"))
    compiled = torch.compile(router, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(X), sum(tower.fc(X) for tower in router.parts))
    assert all(tower.cache_get("hidden") is None for tower in router.parts)


def test_compiled_towers_inside_an_ordinary_forward():
    router = Contained(nn.ModuleList([Leaves("a"), Leaves("b")]))
    for tower in router.parts:
        tower.compile(fullgraph=True, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(router(X), sum(tower.fc(X) for tower in router.parts))
        assert all(tower.cache_get("hidden") is None for tower in router.parts)
        router.parts[0](X)  # alone
        assert router.parts[0].cache_get("hidden") is None


# Names.


class MyConfig:
    width = 3


class Named(WideRouter):
    """Sets one attribute, and three towers of one structure."""

    def __init__(self, attribute, value):
        super().__init__("named", config=AT_ONCE)
        setattr(self, attribute, value)
        for i in range(3):
            self.attach(f"t{i}", Mlp(f"t{i}"))


VALUES = {
    "an object": MyConfig,
    "a number": lambda: 7,
    "a list": lambda: [1, 2],
    "a dict": lambda: {"a": 1},
    "a module": lambda: nn.Linear(2, 2),
    "a string": lambda: "mine",
}
NAMES = ["config", "name", "objects", "towers", "tower_names", "fusion", "cache", "device"]


@pytest.mark.parametrize("what", ["an object", "a list", "a module", "a string"])
@pytest.mark.parametrize("name", NAMES)
def test_an_attribute_named_like_ours_is_the_subclass_own(name, what):
    value = VALUES[what]()
    router = Named(name, value)
    assert getattr(router, name) is value
    outputs = router.wide_forward(X)
    assert list(outputs) == ["t0", "t1", "t2"]
    for tower, out in outputs.items():
        torch.testing.assert_close(out, router[tower](X))
    assert router.explain().together == 3  # AT_ONCE still is how it runs
    if what == "a module":
        assert any(key.startswith(name) for key in router.state_dict())
    clone = copy.deepcopy(router)
    assert type(getattr(clone, name)) is type(value)
    assert list(clone.wide_forward(X)) == ["t0", "t1", "t2"]


@pytest.mark.parametrize("name", NAMES)
def test_attributes_of_a_class_named_like_ours(name):
    kind = type("Own", (WideRouter,), {name: MyConfig()})
    router = kind("own", config=AT_ONCE)
    for i in range(3):
        router.attach(f"t{i}", Mlp(f"t{i}"))
    assert isinstance(getattr(router, name), MyConfig)
    assert list(router.wide_forward(X)) == ["t0", "t1", "t2"] and router.explain().together == 3


def test_a_wide_config_is_ours_and_makes_new_groups():
    router = Named("config", MyConfig())
    router.wide_forward(X)
    router.config = changed = WideConfig(tune_seconds=0, chunk_lanes=2)
    assert router.config is changed
    assert [group.config for group in router.formation().groups.values()] == [changed]


def test_towers_that_set_their_name_once_more_are_alike():
    class Renamed(Mlp):
        def __init__(self, name):
            super().__init__(name)
            self.name = f"{name} again"

    router = WideRouter("r", config=AT_ONCE)
    for i in range(3):
        router.attach(f"t{i}", Renamed(f"t{i}"))
    router.wide_forward(X)
    assert router["t1"].name == "t1 again" and router.explain().together == 3


def test_a_module_list_called_towers_is_discovered():
    router = WideRouter("r", config=AT_ONCE)
    router.towers = nn.ModuleList([Mlp("a"), Mlp("b")])
    router.fusion = MeanFusion()
    assert router.discover_towers() == ["towers.0", "towers.1"]
    opinions = router.wide_forward(X)
    torch.testing.assert_close(router.fusion(opinions), (router.towers[0](X) + router.towers[1](X)) / 2)


@pytest.mark.parametrize(
    "name", ["attach", "detach", "replace", "has", "compile", "explain", "wide_forward", "_changed"]
)
@pytest.mark.parametrize("what", ["a number", "a module", "a list"])
def test_an_attribute_named_like_a_method_is_refused_by_name(name, what):
    with pytest.raises(RouterError, match=rf"self\.{name} = .*{name} is a method of Named; .*self\.my_"):
        Named(name, VALUES[what]())


@pytest.mark.parametrize("name", ["config", "name", "objects", "towers", "tower_names"])
def test_a_parameter_named_like_a_property_is_refused_by_name(name):
    with pytest.raises(
        RouterError, match=rf"self\.{name} = Parameter: {name} is a property of Named; .*my_{name}"
    ):
        Named(name, nn.Parameter(torch.ones(2)))
    assert Named("fusion", nn.Parameter(torch.ones(2))).fusion.shape == (2,)


def test_a_method_may_be_replaced_by_a_function():
    router = Named("explain", lambda: "mine")
    assert router.explain() == "mine"


@pytest.mark.parametrize("attribute", ["_cache", "_memory", "_settings", "_prepared"])
def test_private_attributes_of_towers_are_followed(attribute):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)
            setattr(self, attribute, 2.0)

        def forward(self, x):
            return self.fc(x) * getattr(self, attribute)

    router = WideRouter("r", config=AT_ONCE)
    for i in range(3):
        router.attach(f"t{i}", Scaled())
        router.register_tower(f"t{i}")
    router.wide_forward(X)
    assert router.explain().together == 3
    setattr(router["t1"], attribute, 5.0)
    torch.testing.assert_close(router.wide_forward(X)["t1"], router["t1"].fc(X) * 5.0)
