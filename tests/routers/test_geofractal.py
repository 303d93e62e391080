"""Code written for geofractal's routers: its way of attaching, and towers that give `(opinion, features)`."""

import torch
from torch import nn

from routers.towers import AT_ONCE
from wide_compiler.routers.geofractal import BaseTower, WideRouter


class SafeAttach:
    def attach(self, name, component):
        if isinstance(component, nn.Module):
            self.components[name] = component
        else:
            self.objects[name] = component


class Tower(SafeAttach, BaseTower):
    def __init__(self, name, dim=8):
        super().__init__(name, strict=False)
        self.attach("proj", nn.Linear(dim, dim))
        self.objects["config"] = {"dim": dim}

    @property
    def cached_features(self):
        return self.cache_get("features")

    def forward(self, x, mask=None):
        features = torch.tanh(self["proj"](x))
        self.cache_set("features", features)
        return features.mean(1), features


class Collective(SafeAttach, WideRouter):
    def __init__(self, names):
        super().__init__("collective", auto_discover=False)
        for name in names:
            self.attach(name, Tower(name))
            self.register_tower(name)
        self.attach("fusion", nn.Linear(8 * len(names), 8))

    def forward(self, x, mask=None):
        opinions = self.wide_forward(x, mask=mask)
        features = [self[name].cached_features for name in self.tower_names]
        return self["fusion"](torch.cat([opinions[name] for name in self.tower_names], -1)), features


def test_a_collective():
    torch.manual_seed(0)
    names = ["one", "two", "three"]
    collective = Collective(names)
    assert list(collective.components) == [*names, "fusion"] and len(collective.components) == 4
    x = torch.randn(2, 5, 8)
    for _ in range(3):
        fused, features = collective(x)
        own = [torch.tanh(collective[name]["proj"](x)) for name in names]
        torch.testing.assert_close(fused, collective["fusion"](torch.cat([f.mean(1) for f in own], -1)))
        torch.testing.assert_close(features, own)
    some = collective.wide_forward(x, ["two"])
    assert list(some) == ["two"] and some["two"].shape == (2, 8)
    assert collective.explain().rows[0].how in ("together", "loop", "alone")


def test_components_can_be_taken_out():
    collective = Collective(["one", "two"])
    new = Tower("two")
    collective.components["two"] = new
    assert collective["two"] is new and dict(collective.named_modules())["two"] is new
    del collective.components["fusion"]
    assert "fusion" not in collective.components and not collective.has("fusion")


class Address(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fingerprint = nn.Parameter(torch.randn(dim))


class Inverted(nn.Module):
    def __init__(self, address):
        super().__init__()
        self.inner = address


class AddressedTower(Tower):
    """Differs from others in a component that its forward does not use."""

    def __init__(self, name, inverted=False, dim=8):
        super().__init__(name, dim)
        address = Address(dim)
        self.attach("address", Inverted(address) if inverted else address)
        self.attach("scale", Inverted(nn.Linear(1, 1)) if name == "odd" else nn.Linear(1, 1))

    def forward(self, x, mask=None):
        opinion, features = super().forward(x)
        return opinion * (2.0 if isinstance(self["scale"], Inverted) else 1.0), features


def addressed(**options):
    collective = WideRouter("pairs", config=AT_ONCE, **options)
    for name in ("a_pos", "a_neg", "b_pos", "b_neg", "odd"):
        collective.attach(name, AddressedTower(name, inverted=name.endswith("neg")))
    return collective.double()


def check(collective, x):
    for stepping in (False, True):
        expected = {name: tower(x)[0] for name, tower in collective.towers.items()}
        collective.cache_clear()
        got = collective.wide_forward(x)
        torch.testing.assert_close(got, expected)
        parameters = list(collective.parameters())
        if stepping:
            want, have = (
                torch.autograd.grad(
                    sum(o.square().sum() for o in outs.values()), parameters, allow_unused=True
                )
                for outs in (expected, got)
            )
            torch.testing.assert_close(have, want)


def test_towers_that_differ_in_what_they_do_not_use():
    torch.manual_seed(0)
    collective = addressed()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    check(collective, x)
    rows = {row.towers: row.how for row in collective.explain().rows}
    assert rows == {("a_pos", "a_neg", "b_pos", "b_neg"): "together", ("odd",): "alone"}
    assert list(collective["a_neg"].components) == ["proj", "address", "scale"]
    with torch.no_grad():
        collective["a_neg"]["proj"].weight.mul_(2)
    check(collective, x)
    collective["b_pos"].components["proj"] = nn.Linear(8, 8).double()
    check(collective, x)
    collective["b_neg"].components["scale"] = Inverted(nn.Linear(1, 1)).double()  # one that counts
    check(collective, x)
    collective.eval()
    check(collective, x + 1)


def test_a_tower_that_begins_to_use_a_child():
    class Late(AddressedTower):
        uses = False

        def forward(self, x, mask=None):
            opinion, features = super().forward(x)
            return (opinion + self["address"].fingerprint if self.uses else opinion), features

    torch.manual_seed(0)
    collective = WideRouter("late", config=AT_ONCE)
    for name in ("one", "two"):
        collective.attach(name, Late(name))
    collective["two"].attach("extra", nn.Linear(2, 2))
    collective.double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    check(collective, x)
    assert [row.how for row in collective.explain().rows] == ["together"]
    collective["two"].uses = True
    check(collective, x)
    for tower in collective.towers.values():
        tower.uses = True
    check(collective, x)
