"""Code written for geofractal's routers: its way of attaching, and towers that give `(opinion, features)`."""

import torch
from torch import nn

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
