"""Towers that leave tensors in their caches run together: what they leave is one more output of the graph."""

import copy

import pytest
import torch
from torch import nn

from routers.towers import AT_ONCE
from wide_compiler.routers import BaseRouter, BaseTower, WideRouter, tower_group

X = torch.randn(2, 6, dtype=torch.float64)


class Inner(BaseRouter):
    def __init__(self):
        super().__init__("inner")
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        self.cache_set("inside", self.fc(x))
        return self.cache_get("inside").tanh()


class Caching(BaseTower):
    """As geofractal's: features and opinion are left for whoever asks."""

    def __init__(self, name):
        super().__init__(name)
        self.inner, self.head = Inner(), nn.Linear(6, 3)

    def forward(self, x):
        features = self.inner(x)
        self.cache_set("features", features)
        return self.head(features)


class Collective(WideRouter):
    def forward(self, x):
        opinions = self.wide_forward(x)
        features = [tower.cache_get("features") for tower in self.towers.values()]
        again = self.wide_forward(x * 2)
        return (
            sum(opinions.values()).sum() + sum(f.square().sum() for f in features) + sum(again.values()).sum()
        )


def collective(kind=Collective):
    router = kind("r", config=AT_ONCE)
    for i in range(3):
        router.attach(f"t{i}", Caching(f"t{i}"))
    return router.double()


def test_outputs_and_caches_are_those_of_the_towers():
    router = collective()
    alone = copy.deepcopy(router)
    for _ in range(3):
        opinions = router.wide_forward(X)
        assert router.explain().together == 3
        for name, tower in alone.towers.items():
            expected = alone.wide_forward(X, tower_names=[name])[name]
            torch.testing.assert_close(opinions[name], expected)
            for key, part in (("features", ""), ("inside", "inner")):
                got = router[name].get_submodule(part).cache_get(key)
                torch.testing.assert_close(got, tower.get_submodule(part).cache_get(key))


@pytest.mark.parametrize("training", [False, True])
def test_a_collective_that_reads_them_and_trains(training):
    router = collective().train(training)
    alone = copy.deepcopy(router)
    for step in range(3):
        losses = []
        for model in (router, alone):
            if model is alone:  # one after another
                opinions = [t(X) for t in alone.towers.values()]
                features = [t.inner.fc(X).tanh() for t in alone.towers.values()]
                again = [t(X * 2) for t in alone.towers.values()]
                loss = sum(opinions).sum() + sum(f.square().sum() for f in features) + sum(again).sum()
            else:
                loss = model(X)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[0], losses[1], msg=f"step {step}")
    assert router.explain().together == 3
    assert all(not part._router_cache for part in router.modules() if isinstance(part, BaseRouter))


def test_the_graph_is_built_once(monkeypatch):
    router = collective()
    router.wide_forward(X)
    built = []
    build = tower_group.VMapTowerGroup.build
    monkeypatch.setattr(tower_group.VMapTowerGroup, "build", lambda *a: (built.append(1), build(*a))[1])
    for _ in range(3):
        router.wide_forward(X)
    assert not built


def test_under_torch_compile_they_run_in_sequence_and_are_right():
    router = collective(WideRouter)
    router.prepare_for_compile()
    expected = {name: tower(X) for name, tower in router.towers.items()}
    got = torch.compile(router, backend="eager")(X)
    for name, opinion in expected.items():
        torch.testing.assert_close(got[name], opinion)
