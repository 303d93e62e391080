"""A call like the latest takes the short way, and whatever has become of the towers in between is seen."""

import copy

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from routers.towers import AT_ONCE, Attention, Mlp, assert_equal_to_sequence, collective
from wide_compiler import WideConfig
from wide_compiler.routers import RouterError, WideRouter

WAYS = {"together": AT_ONCE, "loop": WideConfig(strategy="loop")}


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture
def long_ways(monkeypatch):
    """Counts the calls that were not like an earlier one."""
    counted = []
    original = WideRouter._batched_tower_forward

    def counting(self, *args):
        counted.append(args)
        return original(self, *args)

    monkeypatch.setattr(WideRouter, "_batched_tower_forward", counting)
    return counted


def settled(how, long_ways, x, make=Mlp, **options):
    """A router of which the next call of this look would take the short way."""
    router = collective(*[make(str(i)) for i in range(4)], config=WAYS[how])
    for _ in range(3):
        router.wide_forward(x, **options)
    assert len(long_ways) == 1 and router.explain().rows[0].how == how
    long_ways.clear()
    return router


def check(router, x, **options):
    """What the towers give by themselves."""
    got = router.wide_forward(x, **options)
    assert list(got) == router.tower_names
    for name, out in got.items():
        torch.testing.assert_close(out, router.towers[name](x, **options))


def mlp(name="new", **options):
    return Mlp(name, **options).double()


def in_container(router):
    router.attach("more", nn.ModuleList([mlp(), mlp()]))
    router.discover_towers()


def moved(router):
    router["2"][0].weight.data = double(10, 6)


CHANGES = {
    "nothing": lambda router: None,
    "attached": lambda router: router.attach("new", mlp()),
    "attached in a container": in_container,
    "detached": lambda router: router.detach("1"),
    "replaced": lambda router: router.replace("1", mlp()),
    "replaced by another kind": lambda router: router.replace("1", mlp(hidden=3)),
    "set past the router": lambda router: setattr(router, "1", mlp()),
    "put into the table": lambda router: router._modules.update({"1": mlp(hidden=3)}),
    "deleted past the router": lambda router: delattr(router, "1"),
    "unregistered": lambda router: router.unregister_tower("2"),
    "a stage exchanged": lambda router: router["1"].stages.__setitem__(1, nn.Tanh()),
    "a stage added": lambda router: router["1"].append(nn.Tanh()),
    "weights in place": lambda router: nn.init.ones_(router["1"][0].weight),
    "weights elsewhere": moved,
    "another parameter": lambda router: setattr(router["1"][0], "bias", nn.Parameter(double(10))),
    "frozen": lambda router: router["1"].requires_grad_(False),
    "evaluating": lambda router: router.eval(),
    "one evaluating": lambda router: router["1"].eval(),
    "an attribute": lambda router: setattr(router["1"][1], "approximate", "tanh"),
    "a hook": lambda router: router["1"][0].register_forward_hook(lambda module, args, out: out + 1),
    "prepared": lambda router: router.prepare_for_compile(),
    "another config": lambda router: setattr(router, "config", AT_ONCE),
    "loaded weights": lambda router: router["1"].load_state_dict(mlp().state_dict(), assign=True),
}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen_by_the_next_call(what, how, long_ways):
    x = double(4, 6)
    router = settled(how, long_ways, x)
    CHANGES[what](router)
    for _ in range(3):
        check(router, x)
    assert_equal_to_sequence(router, x)
    if what in ("nothing", "weights in place"):
        assert len(long_ways) == 1  # the last, whose input has a gradient


@pytest.mark.parametrize("how", WAYS)
def test_another_dtype_and_back(how, long_ways):
    x = double(4, 6)
    router = settled(how, long_ways, x)
    router.float()
    check(router, x.float())
    router.double()
    check(router, x)
    with pytest.raises(RuntimeError, match="dtype"):
        router.wide_forward(x.float())


@pytest.mark.parametrize("how", WAYS)
def test_towers_in_containers(how, long_ways):
    router = WideRouter("nested", config=WAYS[how])
    router.attach("experts", nn.ModuleList([mlp() for _ in range(3)])).discover_towers()
    x = double(4, 6)
    for _ in range(3):
        check(router, x)
    assert len(long_ways) == 1
    router.experts[1] = mlp()
    check(router, x)
    router.experts = nn.ModuleList([mlp() for _ in range(3)])
    check(router, x)
    del router.experts[2]
    check(router, x)
    assert router.tower_names == ["experts.0", "experts.1"]
    del router.experts
    with pytest.raises(RouterError, match="has no towers"):
        router.wide_forward(x)


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    """Doubles what every linear layer gives."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return 2 * out if func is nn.functional.linear else out


@pytest.mark.parametrize("how", WAYS)
def test_what_surrounds_the_call_is_seen(how, long_ways):
    x = double(4, 6)
    router = settled(how, long_ways, x)
    got = torch.func.vmap(lambda scale: router.wide_forward(x)["1"] * scale)(double(3))
    assert got.shape == (3, 4, 6)
    got = torch.func.grad(lambda y: router.wide_forward(y)["1"].sum())(x)
    torch.testing.assert_close(got, torch.func.grad(lambda y: router["1"](y).sum())(x))
    for mode in (Passing, Doubling):
        with mode():
            check(router, x)
    assert not long_ways  # under a transform or a mode the towers run by themselves
    with torch.no_grad():
        check(router, x)
        assert not router.wide_forward(x)["0"].requires_grad
    with torch.inference_mode():
        check(router, x)
    check(router, x)
    router.float()
    for dtype in (torch.bfloat16, torch.float16, None):
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            for _ in range(2):
                got = router.wide_forward(x.float())
                assert all(out.dtype == (dtype or torch.float32) for out in got.values())


@pytest.mark.parametrize("how", WAYS)
def test_other_arguments_are_seen(how, long_ways):
    x = double(2, 5, 8)
    router = settled(how, long_ways, x, Attention)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[:, 3:] = True
    for _ in range(3):
        check(router, x, mask=mask)
        check(router, x)
        check(router, x.transpose(0, 1).contiguous().transpose(0, 1))
        check(router, double(3, 5, 8))
    assert len(long_ways) == 2  # the mask and the larger batch; strides do not count
    router.attach("new", mlp(dim=8))
    with pytest.raises(RouterError, match="no mask parameter"):
        router.wide_forward(x, mask=mask)
    with pytest.raises((AttributeError, TypeError)):
        router.wide_forward(None)


@pytest.mark.parametrize("how", WAYS)
def test_some_towers_only(how, long_ways):
    x = double(4, 6)
    router = settled(how, long_ways, x, tower_names=["2", "0"])
    for names in (["2", "0"], ("2", "0"), iter(["2", "0"])):
        assert list(router.wide_forward(x, tower_names=names)) == ["0", "2"]
    assert not long_ways
    assert list(router.wide_forward(x, tower_names=["1", "0"])) == ["0", "1"]
    check(router, x)
    router.detach("2")
    with pytest.raises(RouterError, match="no tower '2'"):
        router.wide_forward(x, tower_names=["2", "0"])


def test_explain_tells_of_the_last_call_where_looks_alternate():
    router = collective(*[Mlp(str(i)) for i in range(4)], config=AT_ONCE)
    x = double(4, 6)
    for _ in range(2):
        router.wide_forward(x)
        assert router.explain().together == 4
        router.wide_forward(x, tower_names=["0", "1"])
        assert [row.towers for row in router.explain().rows] == [("0", "1")]
        router.wide_forward(x, tower_names=["3"])
        assert [row.how for row in router.explain().rows] == ["alone"]


@pytest.mark.parametrize("how", WAYS)
def test_a_copy_runs_its_own_towers(how, long_ways):
    x = double(4, 6)
    router = settled(how, long_ways, x)
    clone = copy.deepcopy(router)
    with torch.no_grad():
        for p in clone.parameters():
            p.add_(1)
    check(clone, x)
    check(router, x)
    assert not torch.allclose(clone.wide_forward(x)["0"], router.wide_forward(x)["0"])


def test_replaced_towers_are_let_go():
    router = collective(*[Mlp(str(i)) for i in range(3)], config=AT_ONCE)
    x = double(4, 6)
    for _ in range(12):
        setattr(router, "1", mlp())
        check(router, x)
    kept = {id(known.answer.formation) for known in router._router_repeats.known.values()}
    assert len(kept) == 1
