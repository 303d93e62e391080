"""Loops over modules with gradients: to autograd every output has a graph of its own, as in plain Python."""

import gc
import weakref

import pytest
import torch
from torch import nn

from wide_compiler.xcs import Config, jit


def loop(models, x):
    return [m(x) for m in models]


def zipped(models, xs):
    return [m(x) for m, x in zip(models, xs, strict=True)]


def mixed(models, xs, y):
    return [m(x, y) for m, x in zip(models, xs, strict=True)]


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, y):
        return torch.tanh(self.left(x)) + self.right(y)


def mlp():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))


def ends_in_tanh():
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh())


def linear():
    return nn.Linear(4, 3)


class World:
    """Members, a fast loop over them, and the same members with a plain loop."""

    def __init__(self, made, count=4, plain=loop, **config):
        torch.manual_seed(0)
        self.models = [made() for _ in range(count)]
        self.twins = [made() for _ in range(count)]
        for one, other in zip(self.models, self.twins, strict=True):
            other.load_state_dict(one.state_dict())
        self.plain = plain
        self.fast = jit(plain, config=Config(**{"measure": False, **config}))

    def both(self, action, *arguments):
        """An action on the outputs of the fast and of the plain loop: the same results, errors, gradients."""
        found = []
        for function, models in ((self.fast, self.models), (self.plain, self.twins)):
            given = [_own(a) for a in arguments]
            try:
                result = action(function(models, *given), models, *given)
            except RuntimeError as error:
                result = str(error).partition(": [")[0]
            tensors = [t for a in given for t in (a if isinstance(a, list) else [a])]
            leaves = [p for m in models for p in m.parameters()] + tensors
            found.append((result, [leaf.grad for leaf in leaves]))
        (got, gradients), (wanted, expected) = found
        if isinstance(wanted, str):
            assert got == wanted
            return
        if wanted is not None:
            torch.testing.assert_close(got, wanted)
        assert [g is None for g in gradients] == [g is None for g in expected]
        for mine, other in zip(gradients, expected, strict=True):
            if other is not None:
                torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
                assert mine.stride() == other.stride()

    @property
    def wide(self):
        return sum(counts.get("wide model", 0) for counts in self.fast.stats().values())


def _own(argument):
    if isinstance(argument, list):
        return [_own(a) for a in argument]
    return argument.detach().clone().requires_grad_(argument.requires_grad)


def all_at_once(outputs, models, *given):
    sum(y.square().sum() for y in outputs).backward()


def one_only(outputs, models, *given):
    outputs[1].square().sum().backward()


def one_by_one(outputs, models, *given):
    for y in outputs:
        y.square().sum().backward()


def retained(outputs, models, *given):
    for _ in range(3):
        outputs[2].square().sum().backward(retain_graph=True)
    all_at_once(outputs, models)


def twice(outputs, models, *given):
    outputs[0].sum().backward()
    outputs[0].sum().backward()


def all_twice(outputs, models, *given):
    all_at_once(outputs, models)
    all_at_once(outputs, models)


def another_after_one_was_freed(outputs, models, *given):
    outputs[0].sum().backward()
    outputs[1].sum().backward()
    outputs[0].sum().backward()


def written_in_place(outputs, models, *given):
    outputs[0].mul_(3.0)
    outputs[2].add_(1.0)
    all_at_once(outputs, models)


def written_where_not_asked(outputs, models, *given):
    outputs[0].mul_(3.0)
    outputs[1].square().sum().backward()


def a_step_between(outputs, models, *given):
    with torch.no_grad():
        for parameter in models[0].parameters():
            parameter.mul_(2.0)
    outputs[1].square().sum().backward(retain_graph=True)
    outputs[0].square().sum().backward()


def written_past_autograd(outputs, models, *given):
    for parameter in models[2].parameters():
        parameter.data.mul_(2.0)
    all_at_once(outputs, models)


def gradients_of_some(outputs, models, *given):
    return torch.autograd.grad(outputs[1].square().sum(), list(models[1].parameters()))


def gradient_of_another_member(outputs, models, *given):
    return torch.autograd.grad(outputs[1].sum(), list(models[0].parameters()))


def unused_is_none(outputs, models, *given):
    found = torch.autograd.grad(outputs[1].sum(), list(models[0].parameters()), allow_unused=True)
    assert found == (None,) * len(found)


def second_derivatives(outputs, models, *given):
    parameters = [p for m in models for p in m.parameters()]
    first = torch.autograd.grad(sum((y**3).sum() for y in outputs), parameters, create_graph=True)
    sum(g.square().sum() for g in first).backward()


def hooks_of_outputs(outputs, models, *given):
    seen = []
    for y in outputs:
        y.register_hook(lambda g: seen.append(g.clone()) or g * 2.0)
        y.retain_grad()
    all_at_once(outputs, models)
    return [*seen, *(y.grad for y in outputs)]


def not_reached(outputs, models, *given):
    return [y.detach() for y in outputs]


ACTIONS = [
    all_at_once, one_only, one_by_one, retained, twice, all_twice, another_after_one_was_freed,
    written_in_place, written_where_not_asked, a_step_between, written_past_autograd,
    gradients_of_some, gradient_of_another_member, unused_is_none, second_derivatives, hooks_of_outputs,
    not_reached,
]  # fmt: skip


@pytest.mark.parametrize("learns", [False, True], ids=["input", "learning input"])
@pytest.mark.parametrize("made", [mlp, ends_in_tanh, linear])
@pytest.mark.parametrize("action", ACTIONS)
def test_each_output_has_a_graph_of_its_own(action, made, learns):
    world = World(made)
    x = torch.randn(5, 4).requires_grad_(learns)
    world.both(action, x)
    assert world.wide == 1
    world.both(action, x)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
def test_one_input_for_each(action, learns):
    world = World(mlp, plain=zipped)
    xs = [torch.randn(5, 4).requires_grad_(learns) for _ in range(4)]
    world.both(action, xs)
    assert world.wide == 1


class SumOfParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.v = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, x, y):
        return (x + y) * (self.u + self.v)


def test_gradients_of_sums_share_no_memory():
    """Accumulation writes into `.grad`, so a second backward would add to both summands what each gets."""
    world, found = World(SumOfParameters, plain=mixed), []
    for function, models in ((world.fast, world.models), (world.plain, world.twins)):
        torch.manual_seed(1)
        xs, y = [torch.randn(2, 4, requires_grad=True) for _ in models], torch.randn(2, 4, requires_grad=True)
        for _ in range(3):
            all_at_once(function(models, xs, y), models)
        found.append([t.grad for t in (*xs, y, *(p for m in models for p in m.parameters()))])
    assert world.wide == 3
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("action", [all_at_once, one_only, written_in_place])
def test_shared_and_own_inputs_together(action):
    world = World(Sum, plain=mixed)
    xs, y = [torch.randn(5, 4) for _ in range(4)], torch.randn(5, 4, requires_grad=True)
    world.both(action, xs, y)
    assert world.wide == 1


def test_a_training_run():
    world = World(mlp)
    optimizers = [
        torch.optim.Adam([p for m in models for p in m.parameters()], lr=0.05)
        for models in (world.models, world.twins)
    ]
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        x = torch.randn(5, 4, generator=generator)
        world.both(all_at_once, x)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert world.wide == 20
    for one, other in zip(world.models, world.twins, strict=True):
        torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_members_trained_one_by_one_stay_plain_after_the_first_time():
    world = World(mlp)
    x = torch.randn(5, 4)
    for _ in range(4):
        world.both(one_by_one, x)
    assert world.wide == 1 and "each has its own graph" in str(world.fast.explain())


def test_hooks_of_parameters_run_once():
    world = World(mlp)
    seen = []

    def tripled(gradient):
        seen.append(1)
        return gradient * 3.0

    for models in (world.models, world.twins):
        models[1][0].weight.register_hook(tripled)
    world.both(all_at_once, torch.randn(5, 4))
    assert len(seen) == 2 and world.wide == 0


def test_some_members_are_frozen():
    world = World(mlp)
    for models in (world.models, world.twins):
        models[2].requires_grad_(False)
    world.both(lambda outputs, models, x: [y.requires_grad for y in outputs] or None, torch.randn(5, 4))
    world.both(all_at_once, torch.randn(5, 4))


def test_a_frozen_part_of_each():
    world = World(mlp)
    for models in (world.models, world.twins):
        for model in models:
            model[0].requires_grad_(False)
    world.both(all_at_once, torch.randn(5, 4))
    assert world.wide == 1


def test_a_shared_trunk():
    world = World(mlp)
    for models in (world.models, world.twins):
        for model in models[1:]:
            model[0] = models[0][0]
    for action in (all_at_once, one_only, second_derivatives):
        for model in (*world.models, *world.twins):
            model.zero_grad()
        world.both(action, torch.randn(5, 4))


def test_dropout_draws_as_the_loop_does():
    def made():
        return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3))

    world = World(made)
    found = []
    for function, models in ((world.fast, world.models), (loop, world.twins)):
        torch.manual_seed(7)
        found.append(function(models, torch.ones(5, 4)))
    assert all(map(torch.equal, *found)) and world.wide == 0


def test_graphs_go_with_their_outputs():
    world = World(mlp)
    x = torch.randn(5, 4)
    outputs = world.fast(world.models, x)
    assert world.wide == 1
    gone = weakref.ref(outputs[0].grad_fn.next_functions[0][0].call)
    members = list(map(weakref.ref, world.models))
    outputs[0].sum().backward()
    del outputs
    assert gone() is None
    world.models.clear()
    gc.collect()
    assert not any(m() is not None for m in members)


def test_measured_calls_give_the_same():
    world = World(lambda: nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3)), 16, measure=True)
    for _ in range(5):
        world.both(all_at_once, torch.randn(5, 4))
