"""Components, objects, the cache, towers of stages; and what is refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

from routers.towers import AT_ONCE, Attention, Mlp, collective
from wide_compiler import WideError
from wide_compiler.errors import InputError
from wide_compiler.routers import AttentionTower, BaseRouter, BaseTower, RouterError, WideRouter


def test_components_are_ordinary_submodules():
    router = BaseRouter("r").attach("a", nn.Linear(2, 3)).attach("b", nn.Linear(3, 4))
    assert router.has("a") and "b" in router and "c" not in router and 3 not in router
    assert router["a"] is router.a and list(router.state_dict()) == [
        "a.weight",
        "a.bias",
        "b.weight",
        "b.bias",
    ]
    assert router.double()["a"].weight.dtype == torch.float64
    old = router.replace("a", nn.ReLU())
    assert isinstance(old, nn.Linear) and isinstance(router["a"], nn.ReLU)
    assert router.detach("b").out_features == 4 and not router.has("b")
    router.objects["step"] = 3
    assert router.name == "r" and copy.deepcopy(router).objects == {"step": 3}


def test_stages_and_components_of_a_tower():
    tower = BaseTower("t").append(nn.Linear(4, 4)).extend([nn.ReLU(), nn.Linear(4, 2)]).insert(1, nn.Tanh())
    tower.attach("head", nn.Linear(2, 1))
    assert len(tower) == 4 and [type(s).__name__ for s in tower] == ["Linear", "Tanh", "ReLU", "Linear"]
    assert tower[-1].out_features == 2 and tower["head"].out_features == 1 and tower
    assert tower(torch.randn(3, 4)).shape == (3, 2)


class Leaves(BaseTower):
    def __init__(self, name):
        super().__init__(name)
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x)
        self.cache_set("hidden", h)
        return h.relu()


class Reads(WideRouter):
    def forward(self, x):
        self.wide_forward(x)
        return sum(tower.cache_get("hidden") for tower in self.towers.values())


def test_the_cache_lasts_for_one_forward_of_the_outermost_router():
    router = Reads("reads", config=AT_ONCE)
    for i in range(3):
        router.attach(f"t{i}", Leaves(f"t{i}"))
    x = torch.randn(2, 4)
    expected = sum(tower.fc(x) for tower in router.towers.values())
    torch.testing.assert_close(router(x), expected)
    assert all(tower.cache_get("hidden") is None for tower in router.towers.values())
    assert router.explain().together == 3
    alone = router.detach("t0")
    alone(x)
    assert alone.cache_get("hidden") is None
    router.cache_set("k", x)
    router["t1"].cache_set("k", x)
    router.cache_clear(recursive=False)
    assert router.cache_get("k", 7) == 7 and router["t1"].cache_get("k") is x
    router.cache_clear()
    assert router["t1"].cache_get("k") is None


def test_an_error_empties_the_cache_too():
    class Fails(Leaves):
        def forward(self, x):
            super().forward(x)
            raise ZeroDivisionError

    tower = Fails("f")
    with pytest.raises(ZeroDivisionError):
        tower(torch.randn(2, 4))
    assert tower.cache_get("hidden") is None


def test_discovery():
    router = WideRouter("r", auto_discover=False)
    outer = Mlp("outer")
    outer.attach("inner", Mlp("inner"))
    router.attach("listed", nn.ModuleList([Mlp("x"), nn.Linear(2, 2), Mlp("y")]))
    router.attach("outer", outer).attach("fusion", nn.Linear(2, 2))
    other = WideRouter("other").attach("its_own", Mlp("its_own"))
    router.attach("other", other)
    router.direct = Mlp("direct")
    assert router.tower_names == []
    assert router.discover_towers() == ["listed.0", "listed.2", "outer", "direct"]
    assert router.discover_towers() == router.tower_names  # a second time changes nothing
    x = torch.randn(3, 6)
    assert list(router.wide_forward(x)) == ["listed.0", "listed.2", "outer", "direct"]
    assert other.tower_names == ["its_own"]
    router.unregister_tower("listed.2")
    router.detach("listed")
    assert router.tower_names == ["outer", "direct"]
    router.register_tower("fusion")
    assert router.tower_names[-1] == "fusion"
    del router.direct
    assert router.tower_names == ["outer", "fusion"]


def test_copies_run_their_own_towers():
    router = collective(*[Mlp(str(i)) for i in range(4)])
    x = torch.randn(3, 6, dtype=torch.float64)
    router.wide_forward(x)
    router.prepare_for_compile()
    for clone in (copy.deepcopy(router), pickle.loads(pickle.dumps(router))):
        with torch.no_grad():
            for p in clone.parameters():
                p.add_(1)
        assert "prepared=False" in repr(clone)
        for name, out in clone.wide_forward(x).items():
            torch.testing.assert_close(out, clone[name](x))
            assert not torch.allclose(out, router[name](x))


BAD = {
    "a duplicate name": (lambda r: r.attach("a", Mlp("a")), "'a' is already attached"),
    "a name that is taken": (
        lambda r: r.attach("forward", Mlp("a")),
        "'forward' is an attribute of WideRouter",
    ),
    "a dotted name": (lambda r: r.attach("x.y", Mlp("a")), "without dots, got 'x.y'"),
    "no module": (lambda r: r.replace("a", 3), "'a': expected a torch.nn.Module, got int"),
    "a stage that is no module": (
        lambda r: r["a"].append("relu"),
        "stage: expected a torch.nn.Module, got str",
    ),
    "registered twice": (
        lambda r: r.register_tower("a"),
        "'a' is already registered; registered towers: a, b",
    ),
    "nothing to register": (
        lambda r: r.register_tower("z"),
        "no component 'z' to register; attached: a, b",
    ),
    "an unknown component": (lambda r: r["z"], "no component 'z'; attached: a, b"),
    "an unknown tower": (
        lambda r: r.wide_forward(torch.randn(2, 6), tower_names=["b", "z", "y"]),
        "no tower 'z', 'y'; registered towers: a, b",
    ),
    "a string of towers": (lambda r: r.wide_forward(torch.randn(2, 6), tower_names="a"), "a list of names"),
    "a mask for towers that take none": (
        lambda r: r.wide_forward(torch.randn(2, 6), mask=torch.ones(2)),
        r"'a' \(Mlp\) has no mask parameter",
    ),
    "a name that is no string": (lambda r: BaseRouter(3), "name: expected a string, got 3"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input(what):
    router = WideRouter("r").attach("a", Mlp("a")).attach("b", Mlp("b"))
    act, message = BAD[what]
    with pytest.raises(RouterError, match=message) as caught:
        act(router)
    assert isinstance(caught.value, WideError) and isinstance(caught.value, ValueError)


def test_no_towers_at_all():
    with pytest.raises(RouterError, match="'empty' has no towers; attach some"):
        WideRouter("empty").wide_forward(torch.randn(2, 6))


def test_a_mask_of_the_wrong_shape():
    router = WideRouter("r", config=AT_ONCE)
    for i in range(3):
        router.attach(f"t{i}", AttentionTower(f"t{i}", 8, heads=2))
    x = torch.randn(2, 5, 8)
    for mask in (torch.ones(2, 4, dtype=torch.bool), torch.ones(5, 5, dtype=torch.bool), torch.ones(2, 5)):
        with pytest.raises(InputError, match=r"expected booleans \[B, T\] = \(2, 5\)"):
            router.wide_forward(x, mask=mask)
    assert len(router.wide_forward(x, mask=torch.ones(2, 5, dtype=torch.bool))) == 3


def test_the_towers_own_errors_are_what_one_sees():
    router = collective(*[Attention(str(i)) for i in range(3)])
    with pytest.raises(RuntimeError, match="normalized_shape"):
        router.wide_forward(torch.randn(2, 5, 7, dtype=torch.float64))


class ConditionalTower(BaseTower):
    """As geofractal writes it: numbers are attached beside modules."""

    def __init__(self, name, scale, **options):
        super().__init__(name, **options)
        self.attach("config", {"scale": scale})
        self.attach("proj", torch.nn.Linear(6, 6))

    def forward(self, x):
        return self["proj"](x) * self["config"]["scale"]


def test_names_of_geofractals_routers():
    router = WideRouter("r", uuid="4711", strict=False, config=AT_ONCE)
    assert router.uuid == "4711" and WideRouter("r").uuid != WideRouter("r").uuid
    for i in range(3):
        router.attach(f"t{i}", ConditionalTower(f"t{i}", 1.0 + i, strict=False))
    router.attach("config", {"depth": 3})
    router.attach("norm", torch.nn.LayerNorm(6))
    assert router["config"] == {"depth": 3} and router.get("config") is router.objects["config"]
    assert router.has("config") and "config" in router and router.get("nothing") is None
    assert list(router.components) == ["t0", "t1", "t2", "norm"] and router.get("norm") is router.norm
    x = torch.randn(2, 6)
    opinions = router.wide_forward(x)
    for i in range(3):
        torch.testing.assert_close(opinions[f"t{i}"], router[f"t{i}"].proj(x) * (1.0 + i))
    assert router.explain().together == 3
    assert list(router.wide_forward(x, ["t2", "t0"], None)) == ["t0", "t2"]
    assert "_vmap_groups" in router.objects and router.objects.get("_vmap_groups") == {}
    assert router.network_to(dtype=torch.float64)["t0"].proj.weight.dtype == torch.float64
    router["t0"].cache_set("left", x)
    assert router["t0"].cache_keys() == ["left"]
    router.clear_tower_caches()
    assert router["t0"].cache_keys() == []
    router["t0"].cache_set("left", x)
    router.reset()
    assert router["t0"].cache_get("left") is None
    assert router.detach("config") == {"depth": 3} and "config" not in router


def test_a_module_may_be_attached_as_config():
    router = WideRouter("r").attach("config", torch.nn.Linear(2, 2))
    assert router["config"] is router.config and router.detach("config").in_features == 2


def test_a_router_of_one_dtype_refuses_others():
    router = BaseRouter("half", strict_dtype=torch.float16, strict_device="cpu")
    with pytest.raises(RouterError, match=r"weight has dtype torch\.float32, but 'half' takes only torch"):
        router.attach("a", torch.nn.Linear(2, 2))
    assert router.attach("a", torch.nn.Linear(2, 2).half()).has("a")


def test_opinions_with_gradients_may_be_written():
    router = WideRouter("r", config=AT_ONCE)
    for i in range(3):
        router.attach(f"t{i}", ConditionalTower(f"t{i}", 1.0 + i))
    x = torch.randn(2, 6)
    opinions = router.wide_forward(x)
    opinions["t1"].mul_(2.0)
    sum(opinion.sum() for opinion in opinions.values()).backward()
    got = router["t1"].proj.weight.grad
    (expected,) = torch.autograd.grad((router["t1"](x) * 2).sum(), router["t1"].proj.weight)
    torch.testing.assert_close(got, expected)
