"""The snippets of the WideRouter guide as they stand there, but for the import line."""

import functools

import pytest
import torch
from torch import Tensor, nn

import wide_compiler.routers
from routers.towers import AT_ONCE
from wide_compiler.routers import BaseTower, CompileRouter, MeanFusion, WideRouter

BASIC = """
from wide_compiler.routers import WideRouter, BaseTower

class MyCollective(WideRouter):
    def __init__(self, num_towers: int, dim: int):
        super().__init__('my_collective', auto_discover=True)
        
        # Attach towers
        for i in range(num_towers):
            self.attach(f'tower_{i}', MyTower(f'tower_{i}', dim))
        
        # Attach fusion (not a tower)
        self.attach('fusion', MyFusion(dim))
        
        # Discover towers before compile
        self.discover_towers()
    
    def forward(self, x: Tensor) -> Tensor:
        # wide_forward executes all registered towers
        opinions = self.wide_forward(x)  # Dict[str, Tensor]
        
        # Fuse opinions your way
        return self['fusion'](opinions)
"""

EXPLICIT = """
# Option 1: Explicit preparation
model.collective.prepare_for_compile()
model = torch.compile(model, mode='reduce-overhead')
"""

OWN_METHOD = """
# Option 2: Use WideRouter's compile method
compiled_collective = collective.compile(mode='reduce-overhead')
"""

WITH_COMPILE_ROUTER = """
# Option 3: With CompileRouter (call prepare first)
model.collective.prepare_for_compile()  # ← Don't forget this!
compiler = CompileRouter.from_module(model)
model = compiler.compile(mode='reduce-overhead')
"""

REGISTRATION_BY_DISCOVERY = """
# Auto-discovery (recommended)
class MyCollective(WideRouter):
    def __init__(self):
        super().__init__('collective', auto_discover=True)
        self.attach('tower_a', MyTower(...))  # Auto-registered
        self.attach('fusion', Fusion(...))    # Not a tower, ignored
        self.discover_towers()
"""

REGISTRATION_BY_HAND = """
# Manual registration
class MyCollective(WideRouter):
    def __init__(self):
        super().__init__('collective', auto_discover=False)
        self.attach('tower_a', MyTower(...))
        self.register_tower('tower_a')  # Explicit
"""

PAIRS = """
class InversePairCollective(WideRouter):
    def __init__(self, dim: int):
        super().__init__('pairs', auto_discover=True)
        
        # Positive and negative towers
        self.attach('fib_pos', FibonacciTower('fib_pos', dim, sign=+1))
        self.attach('fib_neg', FibonacciTower('fib_neg', dim, sign=-1))
        
        self.discover_towers()
    
    def forward(self, x):
        opinions = self.wide_forward(x)
        # Combine inverse perspectives
        return opinions['fib_pos'] - opinions['fib_neg']
"""

SELECTIVE = """
def forward(self, x, use_towers=None):
    # Execute subset of towers
    opinions = self.wide_forward(x, tower_names=use_towers)
    return self.fuse(opinions)
"""

MASKED = """
def forward(self, x, mask=None):
    opinions = self.wide_forward(x, mask=mask)
    return self.fuse(opinions)
"""

BOTH = """
# 1. Prepare WideRouter first
model.collective.prepare_for_compile()

# 2. Then use CompileRouter
compiler = CompileRouter.from_module(model)
compiler.compile_towers()
model = compiler.compile(mode='reduce-overhead')
"""

LOGGING = """
torch._logging.set_logs(graph_breaks=True, recompiles=True)
"""

STATE = """
print(collective)
# WideRouter(name='my_collective', towers=8, analyzed=True, prepared=True)

print(collective.tower_names)
# ['tower_0', 'tower_1', ...]

print(collective.objects['_vmap_groups'].keys())
# Shows pre-built vmap groups
"""


class MyTower(BaseTower):
    def __init__(self, name, dim=6):
        super().__init__(name)
        dim = 6 if dim is ... else dim
        self.append(nn.Linear(dim, 2 * dim)).append(nn.GELU()).append(nn.Linear(2 * dim, dim))

    def forward(self, x, mask=None):
        out = super().forward(x)
        return out if mask is None else out * mask


class FibonacciTower(BaseTower):
    def __init__(self, name, dim, sign):
        super().__init__(name)
        self.fc, self.sign = nn.Linear(dim, dim), sign

    def forward(self, x):
        return torch.tanh(self.fc(x)) * self.sign


class Model(nn.Module):
    def __init__(self, collective):
        super().__init__()
        self.stem, self.collective = nn.Linear(6, 6), collective

    def forward(self, x):
        return self.collective(self.stem(x))


def names(**more):
    known = {"WideRouter": WideRouter, "BaseTower": BaseTower, "CompileRouter": CompileRouter, "torch": torch}
    known |= {"MyTower": lambda name, dim=6: MyTower("a" if name is ... else name, dim), "Tensor": Tensor}
    return {
        **known,
        "Dict": dict,
        "MyFusion": lambda dim: MeanFusion(),
        "Fusion": lambda dim: MeanFusion(),
        **more,
    }


@pytest.fixture
def collective():
    exec(BASIC, found := names())
    made = found["MyCollective"](8, 6)
    made.config = AT_ONCE
    return made


@pytest.fixture
def without_inductor(monkeypatch):
    """The snippets' own words, without waiting for a C++ compiler."""
    original = torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(
        torch, "compile", lambda model, mode=None, **options: original(model, backend="aot_eager", **options)
    )


def by_hand(collective, x):
    return torch.stack([collective[f"tower_{i}"](x) for i in range(8)]).mean(0)


def test_the_basic_pattern(collective):
    x = torch.randn(4, 6)
    torch.testing.assert_close(collective(x), by_hand(collective, x))
    assert collective.tower_names == [f"tower_{i}" for i in range(8)]
    assert collective.explain().together == 8


@pytest.mark.parametrize("snippet", [EXPLICIT, WITH_COMPILE_ROUTER, BOTH], ids=["explicit", "router", "both"])
def test_compilation_of_a_model(snippet, collective, without_inductor):
    original = Model(collective)
    exec(snippet, found := names(model=original))
    x = torch.randn(4, 6)
    expected = by_hand(collective, original.stem(x))
    torch.testing.assert_close(found["model"](x), expected)
    grown = found["model"](x).square().sum()
    grown.backward()
    assert all(p.grad is not None for p in original.parameters())
    if "compiler" in found:
        assert found["compiler"].plan.together == 8
    else:
        assert collective.explain().together == 8


def test_compilation_by_its_own_method(collective, without_inductor):
    exec(OWN_METHOD, found := names(collective=collective))
    x = torch.randn(4, 6)
    torch.testing.assert_close(found["compiled_collective"](x), by_hand(collective, x))
    assert collective.explain().together == 8


def test_through_inductor_for_real(collective):
    torch._dynamo.reset()
    exec(OWN_METHOD, found := names(collective=collective))
    x = torch.randn(4, 6)
    torch.testing.assert_close(found["compiled_collective"](x), by_hand(collective, x))


@pytest.mark.parametrize(
    "snippet", [REGISTRATION_BY_DISCOVERY, REGISTRATION_BY_HAND], ids=["auto", "by hand"]
)
def test_registration(snippet):
    exec(snippet, found := names())
    made = found["MyCollective"]()
    assert made.tower_names == ["tower_a"]
    x = torch.randn(4, 6)
    torch.testing.assert_close(made.wide_forward(x)["tower_a"], made["tower_a"](x))


def test_inverse_pairs():
    exec(PAIRS, found := names(FibonacciTower=FibonacciTower))
    made = found["InversePairCollective"](6)
    made.config = AT_ONCE
    x = torch.randn(4, 6)
    expected = torch.tanh(made["fib_pos"].fc(x)) + torch.tanh(made["fib_neg"].fc(x))
    torch.testing.assert_close(made(x), expected)
    (row,) = made.explain().rows
    assert (row.how, row.towers) == ("together", ("fib_pos", "fib_neg"))


@pytest.mark.parametrize("snippet", [SELECTIVE, MASKED], ids=["selective", "masked"])
def test_selective_execution_and_masks(snippet):
    exec(snippet, found := names())
    kind = type("Custom", (WideRouter,), {"forward": found["forward"], "fuse": lambda self, o: o})
    made = kind("custom", config=AT_ONCE)
    for i in range(4):
        made.attach(f"tower_{i}", MyTower(f"tower_{i}"))
    x = torch.randn(4, 6)
    assert list(made(x)) == made.tower_names
    if snippet is SELECTIVE:
        assert list(made(x, use_towers=["tower_3", "tower_1"])) == ["tower_1", "tower_3"]
    else:
        mask = torch.randn(4, 6) > 0
        for name, out in made(x, mask=mask).items():
            torch.testing.assert_close(out, made[name](x) * mask)
    assert made.explain().together in (2, 4)


def test_debugging_prints_what_it_says(collective, capsys):
    try:
        exec(LOGGING, names())
    finally:
        torch._logging.set_logs()
    collective.prepare_for_compile()
    exec(STATE, names(collective=collective))
    state, listed, groups = capsys.readouterr().out.splitlines()
    assert state == "WideRouter(name='my_collective', towers=8, analyzed=True, prepared=True)"
    assert listed == str([f"tower_{i}" for i in range(8)])
    assert groups.startswith("dict_keys([('tower_0', 'tower_1'")
    (group,) = collective.objects["_vmap_groups"].values()
    assert isinstance(group, wide_compiler.routers.VMapTowerGroup)
    x = torch.randn(4, 6)
    for tower, out in zip(collective.towers.values(), group(x), strict=True):
        torch.testing.assert_close(out, tower(x))


def test_every_method_of_the_table():
    for method in (
        "attach",
        "register_tower",
        "discover_towers",
        "wide_forward",
        "prepare_for_compile",
        "compile",
    ):
        assert callable(getattr(WideRouter, method)), method
    assert functools.reduce(getattr, ("routers", "CompileRouter", "from_module"), wide_compiler)
