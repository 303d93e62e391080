"""A wide model as an nn.Module: what a user does to its submodules and hooks takes effect or is refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize, prune

import wide_compiler
from fn import Fn
from wide_compiler import WideError

N = 3
F64 = torch.float64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 4)
        self.net = nn.Sequential(nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 4))

    def forward(self, x):
        return self.net(self.fc1(x))


@pytest.fixture
def models():
    return [Net().double().eval() for _ in range(N)]


@pytest.fixture
def wide(models):
    return wide_compiler.compile(models, randn(2, 4))


def randn(*shape):
    return torch.randn(*shape, dtype=F64)


def stacked_linear(*lanes):
    linear = copy.deepcopy(lanes[0])
    linear.weight = nn.Parameter(torch.stack([lane.weight.detach() for lane in lanes]))
    linear.bias = nn.Parameter(torch.stack([lane.bias.detach() for lane in lanes]))
    return linear


def equals_the_loop(wide, models, x=None):
    x = randn(5, 4) if x is None else x
    torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in models]))
    assert wide.explain(measure=False).coverage == 1.0


# Replacing.


REPLACE = {
    "attribute": lambda wide, module: setattr(wide.net, "2", module),
    "index": lambda wide, module: wide.net.__setitem__(2, module),
    "negative index": lambda wide, module: wide.net.__setitem__(-1, module),
    "set_submodule": lambda wide, module: wide.set_submodule("net.2", module),
    "add_module": lambda wide, module: wide.net.add_module("2", module),
}


@pytest.mark.parametrize("how", REPLACE)
def test_a_replacement_of_the_same_kind_takes_effect(how, models, wide):
    wide.shared(randn(5, 4))
    new = [nn.Linear(4, 4).double() for _ in range(N)]
    REPLACE[how](wide, stacked_linear(*new))
    for model, linear in zip(models, new, strict=True):
        model.net[2] = linear
    equals_the_loop(wide, models)
    torch.testing.assert_close(
        wide.state_dict()["net.2.weight"], torch.stack([m.net[2].weight for m in models])
    )
    wide.shared(randn(5, 4)).sum().backward()
    assert wide.net[2].weight.grad is not None


def test_a_whole_subtree_may_be_replaced(models, wide):
    new = [Net().double().eval().net for _ in range(N)]
    replacement = copy.deepcopy(new[0])
    replacement[2] = stacked_linear(*[net[2] for net in new])
    wide.net = replacement
    for model, net in zip(models, new, strict=True):
        model.net = net
    equals_the_loop(wide, models)


WRONG = {
    "no lanes": ("fc1", lambda: nn.Linear(4, 4).double(), r"\(3, 4, 4\).*\(4, 4\)"),
    "another dtype": ("fc1", lambda: stacked_linear(*[nn.Linear(4, 4)] * N), "float64.*float32"),
    "another kind": ("fc1", lambda: nn.Identity(), "Linear.*Identity"),
    "a function without tensors": ("net.0", lambda: nn.GELU(), "Tanh.*GELU"),
    "another number": ("net.1", lambda: nn.Dropout(0.1), "0.5.*0.1"),
    "no bias": ("fc1", lambda: nn.Linear(4, 4, bias=False).double(), "Linear"),
    "nothing": ("fc1", lambda: None, "fc1.*None"),
    "no module": ("net", lambda: 3, "net.*3"),
}


@pytest.mark.parametrize("case", WRONG)
def test_any_other_replacement_is_refused_and_nothing_changes(case, models, wide):
    path, make, says = WRONG[case]
    before = {name: tensor.clone() for name, tensor in wide.state_dict().items()}
    parent, _, name = path.rpartition(".")
    with pytest.raises(WideError, match=says):
        setattr(wide.get_submodule(parent), name, make())
    torch.testing.assert_close(dict(wide.state_dict()), before)
    equals_the_loop(wide, models)


def test_deleting_is_refused(models, wide):
    with pytest.raises(WideError, match="fc1"):
        del wide.fc1
    with pytest.raises(WideError, match="2"):
        delattr(wide.net, "2")
    equals_the_loop(wide, models)


def test_a_parameter_of_another_shape_is_refused(models, wide):
    with pytest.raises(WideError, match=r"\(3, 4, 4\).*\(4, 4\)"):
        wide.fc1.weight = nn.Parameter(randn(4, 4))
    wide.fc1.weight = nn.Parameter(randn(N, 4, 4))
    for i, model in enumerate(models):
        model.fc1.weight.data = wide.fc1.weight[i].detach()
    equals_the_loop(wide, models)


def test_tied_names_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    models = [Tied().double() for _ in range(N)]
    wide = wide_compiler.compile(models, randn(2, 4))
    wide.second.weight = nn.Parameter(randn(N, 4, 4))
    assert wide.first.weight is wide.second.weight
    equals_the_loop(wide, wide.lanes())
    wide.first = stacked_linear(*[nn.Linear(4, 4).double() for _ in range(N)])
    assert wide.first.weight is wide.second.weight
    equals_the_loop(wide, wide.lanes())
    other = {k: randn(*v.shape) for k, v in wide.state_dict().items()}
    other["second.weight"] = other["first.weight"]
    wide.load_state_dict(other, assign=True)
    equals_the_loop(wide, wide.lanes())
    torch.testing.assert_close(wide.lane(1).first.weight, other["first.weight"][1])


def test_a_module_of_the_users_own_may_be_added(models, wide):
    wide.extra = nn.BatchNorm1d(4)
    wide.net.note = nn.Linear(1, 1)
    assert not wide.eval().extra.training and wide.train().net.note.training
    equals_the_loop(wide.eval(), models)
    wide.label = None
    assert "extra.weight" in wide.state_dict()


@pytest.mark.parametrize("name", ["views", "again", "lanes", "ready", "held", "n"])
def test_children_called_like_attributes_of_a_wide_model(name):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(name, nn.Linear(4, 4))

        def forward(self, x):
            return self._modules[name](x)

    models = [Named().double() for _ in range(N)]
    wide = wide_compiler.compile(models, randn(2, 4))
    equals_the_loop(wide, models)
    equals_the_loop(copy.deepcopy(wide), models)
    assert wide.get_submodule(name).get_parameter("weight") is wide.get_parameter(f"{name}.weight")


@pytest.mark.parametrize("name", ["views", "lanes", "n", "seed", "config"])
def test_tensors_called_like_attributes_of_a_wide_model(name):
    models = [Fn(lambda self, x: x * self._parameters[name]) for _ in range(N)]
    for model in models:
        model._parameters[name] = nn.Parameter(randn(4))
        model._buffers[f"{name}s"] = randn(4)
    wide = wide_compiler.compile(models, randn(2, 4))
    equals_the_loop(wide, models)
    assert wide.get_parameter(name).shape == wide.get_buffer(f"{name}s").shape == (N, 4)


# Hooks.

REGISTER = [
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
]


@pytest.mark.parametrize("register", REGISTER)
def test_hooks_on_submodules_are_refused(register, models, wide):
    with pytest.raises(WideError, match="before they are compiled, or on the wide model itself"):
        getattr(wide.fc1, register)(lambda *args: None)
    with pytest.raises(WideError, match="Tanh"):
        getattr(wide.net[0], register)(lambda *args: None)
    equals_the_loop(wide, models)


DOORS = {
    "packed": lambda wide, xs: wide_compiler.unpack(wide(wide_compiler.pack(xs)), N),
    "each": lambda wide, xs: wide.each(xs),
    "stacked": lambda wide, xs: wide.stacked(torch.stack(xs)),
    "shared": lambda wide, xs: wide.shared(xs[0]),
}


@pytest.mark.parametrize("door", DOORS)
def test_hooks_of_the_wide_model_fire_through_every_door(door, models, wide):
    xs, seen = [randn(5, 4).requires_grad_() for _ in range(N)], []
    wide.register_forward_pre_hook(lambda module, args: seen.append(("pre", module is wide, len(args))))
    wide.register_forward_hook(
        lambda module, args, out: seen.append(("post", module is wide, type(out).__name__))
    )
    wide.register_forward_hook(
        lambda module, args, kwargs, out: seen.append(("kw", kwargs)), with_kwargs=True
    )
    wide.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append(("back", module is wide)))
    out = DOORS[door](wide, xs)
    kind = "list" if door == "each" else "Tensor"
    assert seen == [("pre", True, 1), ("post", True, kind), ("kw", {})]
    if door != "each":  # torch hooks into backward where the output is a tensor or a tuple
        sum(o.sum() for o in out).backward()
        assert seen[-1] == ("back", True)


@pytest.mark.parametrize("door", DOORS)
def test_hooks_may_change_what_passes(door, models, wide):
    xs = [randn(5, 4) for _ in range(N)]
    plain = DOORS[door](wide, [2 * x for x in xs])
    twice = lambda tree: torch.utils._pytree.tree_map(lambda t: 2 * t, tree)  # noqa: E731
    handle = wide.register_forward_pre_hook(lambda module, args: twice(args))
    wide.register_forward_hook(lambda module, args, out: twice(out))
    torch.testing.assert_close(list(DOORS[door](wide, xs)), [2 * out for out in plain])
    handle.remove()


@pytest.mark.parametrize("door", DOORS)
def test_hooks_for_all_modules_fire_as_well(door, wide):
    seen = []
    DOORS[door](wide, [randn(5, 4) for _ in range(N)])  # the first call of a kind is also tried on a member
    handle = register_module_forward_hook(lambda module, args, out: seen.append(module is wide))
    try:
        DOORS[door](wide, [randn(5, 4) for _ in range(N)])
    finally:
        handle.remove()
    assert seen == [True]


def test_a_hook_that_calls_the_model_again(models, wide):
    """Inside a hook of one door the others are open as usual."""
    x, seen = randn(5, 4), []

    def call(module, args, out):
        if not seen:
            seen.append(None)
            seen.append(wide(x.repeat(1, N)))

    wide.register_forward_hook(call)
    out = wide.shared(x)
    torch.testing.assert_close(torch.stack(wide_compiler.unpack(seen[1], N)), out)


def test_hooks_inside_torch_compile(models, wide):
    wide.register_forward_hook(lambda module, args, out: 2 * out)
    x = randn(5, 4)
    compiled = torch.compile(
        lambda x: (wide.shared(x), wide(x.repeat(1, N))), backend="eager", fullgraph=True
    )
    expected = 2 * torch.stack([m(x) for m in models])
    shared, packed = compiled(x)
    torch.testing.assert_close(shared, expected)
    torch.testing.assert_close(torch.stack(wide_compiler.unpack(packed, N)), expected)


# Computed weights.


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).mT


def members(models, change):
    changed = copy.deepcopy(models)
    for model in changed:
        change(model.fc1)
    return changed


def test_a_parametrization_is_computed_for_all_lanes(models, wide):
    x = randn(5, 4)
    wide.shared(x)  # a way of the old kind is known
    symmetric = members(models, lambda fc: parametrize.register_parametrization(fc, "weight", Symmetric()))
    parametrize.register_parametrization(wide.fc1, "weight", Symmetric())
    equals_the_loop(wide, symmetric, x)
    for target in (wide, *symmetric):
        optimizer = torch.optim.SGD(target.parameters(), lr=0.1)
        (wide.shared(x) if target is wide else target(x)).square().sum().backward()
        optimizer.step()
    equals_the_loop(wide, symmetric, x)
    assert not wide.eval().fc1.parametrizations.weight[0].training
    torch.testing.assert_close(wide.lane(1).fc1.weight, symmetric[1].fc1.weight)
    compiled = torch.compile(wide.shared, backend="eager")
    torch.testing.assert_close(compiled(x), wide.shared(x))
    with torch.no_grad():
        torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in symmetric]))
    equals_the_loop(copy.deepcopy(wide), symmetric, x)
    parametrize.remove_parametrizations(wide.fc1, "weight")
    equals_the_loop(wide, symmetric, x)


COMPUTED = {
    "weight_norm": nn.utils.weight_norm,
    "parametrized weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
    "parametrized spectral_norm": nn.utils.parametrizations.spectral_norm,
    "prune": lambda fc: prune.l1_unstructured(fc, "weight", 0.5),
    "prune twice": lambda fc: prune.random_unstructured(
        prune.l1_unstructured(fc, "weight", 0.3), "weight", 0.3
    ),
    "prune bias": lambda fc: prune.l1_unstructured(fc, "bias", 0.5),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_weights_computed_by_torch_utilities(name, models, wide):
    """They see the stacked tensor; the result is that of members with the computed weights."""
    x = randn(5, 4)
    wide.shared(x)
    COMPUTED[name](wide.fc1)
    for step in range(2):
        equals_the_loop(wide, list(wide.lanes()), x)
        with torch.no_grad():
            for parameter in wide.fc1.parameters():
                parameter.mul_(1.5)
        if step:
            wide.shared(x).sum().backward()
            assert all(p.grad is not None for p in wide.fc1.parameters())
    if name == "prune":
        assert (wide.lane(0).fc1.weight == 0).any()
        prune.remove(wide.fc1, "weight")
        equals_the_loop(wide, list(wide.lanes()), x)


def test_lanes_of_computed_weights_cannot_be_set(models, wide):
    nn.utils.parametrizations.weight_norm(wide.fc1)
    with pytest.raises(WideError, match=r"fc1.weight.*remove_parametrizations"):
        wide.load_lane(0, models[1])
    with pytest.raises(WideError, match=r"select_lanes: fc1\.weight"):
        wide.select_lanes([0, 1])
    parametrize.remove_parametrizations(wide.fc1, "weight")
    wide.select_lanes([2, 0])
    equals_the_loop(wide, [models[2], models[0]])


def test_a_computed_weight_of_members_that_run_as_python():
    models = [
        Fn(lambda self, x: self.fc(x) if x.sum() > 0 else x, fc=nn.Linear(4, 4)).double() for _ in range(N)
    ]
    wide = wide_compiler.compile(models, randn(2, 4))
    prune.l1_unstructured(wide.fc, "weight", 0.5)
    x = randn(5, 4).abs()
    torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in wide.lanes()]))
    assert wide.explain(measure=False).counts["loop"] == 1


def test_a_weight_that_is_gone_is_named(models, wide):
    del wide.fc1._parameters["weight"]
    with pytest.raises(WideError, match=r"fc1\.weight: the members' code reads a tensor"):
        wide.shared(randn(5, 4))


def test_a_door_is_kept_where_torch_compile_gives_up():
    """A function that was compiled too often runs as Python, inside a call of which the door was traced."""
    torch._dynamo.reset()
    models = [nn.Linear(4, 4) for _ in range(2)]
    for dtype in (torch.float32, torch.float64):
        wide = wide_compiler.compile([copy.deepcopy(m).to(dtype) for m in models], torch.rand(2, 4).to(dtype))
        wide.register_forward_hook(lambda *_: torch._dynamo.graph_break())
        for batch in range(2, 14):  # more than the limit of recompilations
            x = torch.rand(batch, 4, dtype=dtype)
            got = torch.compile(wide.shared, backend="eager", dynamic=False)(x)
            assert got.shape == (2, batch, 4)
            torch.testing.assert_close(got, torch.stack([m.to(dtype)(x) for m in models]))
            torch.testing.assert_close(wide(torch.cat([x, x], 1)), torch.cat([m(x) for m in models], 1))
    torch._dynamo.reset()
