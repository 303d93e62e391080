"""Prepared towers lie next to each other in memory: nothing is stacked, and only the clock can tell."""

import copy

import pytest
import torch
from torch import nn

from routers.towers import Conv, Mlp, assert_equal_to_sequence, collective, in_sequence
from wide_compiler.routers import stacked_memory as memory_room


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def sources(router):
    """Where the stacks of the group that ran last come from."""
    (group,) = router.formation().groups.values()
    return group.latest.fused.sources


def check(router, x):
    with torch.no_grad():
        expected, _ = in_sequence(router, x)
        got = router.wide_forward(x)
    assert router.explain().together == len(expected)
    for name, out in expected.items():
        torch.testing.assert_close(got[name], out)


@pytest.fixture
def lent(monkeypatch):
    """Stacks of any size are lent in training."""
    monkeypatch.setattr(memory_room, "LARGE", {"cpu": 0, "cuda": 0})


def test_prepared_towers_are_not_stacked(monkeypatch):
    router = collective(*[Mlp(str(i)) for i in range(4)])
    before = [id(p) for p in router.parameters()]
    x = double(3, 6)
    check(router, x)
    assert all(source.memory is None for source in sources(router))
    router.prepare_for_compile()
    check(router, x)
    assert all(source.memory is not None for source in sources(router))
    assert [id(p) for p in router.parameters()] == before
    monkeypatch.setattr(torch, "stack", None)
    with torch.no_grad():
        router.wide_forward(x)
        router.eval()
    monkeypatch.undo()
    check(router, x)  # another mode, the same memory
    assert all(source.memory is not None for source in sources(router))


@pytest.mark.parametrize("kind", [Mlp, Conv])
def test_training_on_lent_stacks(lent, kind):
    router = collective(*[kind(str(i)) for i in range(4)]).prepare_for_compile()
    shape = (4, 6) if kind is Mlp else (4, 3, 5, 5)
    for _ in range(3):
        assert_equal_to_sequence(router, double(*shape))
    assert router.explain().together == 4
    assert all(source.memory is not None for source in sources(router))


def test_second_derivatives(lent):
    router = collective(*[Mlp(str(i)) for i in range(3)]).prepare_for_compile()
    x = double(4, 6).requires_grad_()

    def penalty(outputs):
        (gradient,) = torch.autograd.grad(sum(o.sum() for o in outputs), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), list(router.parameters()), allow_unused=True)

    got = penalty(router.wide_forward(x).values())
    expected = penalty([tower(x) for tower in router.towers.values()])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a if a is not None else b, b if b is not None else a)


def test_weights_changed_before_backward_raise_as_they_would_in_sequence(lent):
    router = collective(*[Mlp(str(i)) for i in range(3)]).prepare_for_compile()

    def attempt(change, outputs):
        loss = sum(o.square().sum() for o in outputs)
        with torch.no_grad():
            change()
        loss.backward()

    x = double(4, 6)
    weight, bias = router["1"][2].weight, router["1"][2].bias
    for outputs in (lambda: [t(x) for t in router.towers.values()], lambda: router.wide_forward(x).values()):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            attempt(lambda: weight.mul_(2), outputs())
        attempt(lambda: bias.mul_(2), outputs())  # no gradient depends on a bias
        # One forward that is stale does not spoil another that is not.
        stale = sum(o.sum() for o in outputs())
        with torch.no_grad():
            weight.mul_(0.5)
        fresh = sum(o.sum() for o in outputs())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            stale.backward()
        fresh.backward()


def test_every_way_to_change_a_weight_is_seen(lent):
    router = collective(*[Mlp(str(i)) for i in range(4)]).prepare_for_compile()
    x = double(3, 6)
    check(router, x)
    weight = router["2"][0].weight
    weight.data.mul_(3)
    check(router, x)
    with torch.no_grad():
        weight.add_(1)
    check(router, x)
    router["2"].load_state_dict(router["3"].state_dict())
    check(router, x)
    assert all(source.memory is not None for source in sources(router))
    weight.data = double(*weight.shape)  # moved away: stacked again from now on
    check(router, x)
    assert sum(source.memory is None for source in sources(router)) == 1
    router.prepare_for_compile()
    check(router, x)
    router["1"][0].weight = nn.Parameter(double(*weight.shape))
    check(router, x)
    router.float().double()
    check(router, x)


def test_memory_that_others_hold_is_left_where_it_is():
    router = collective(*[Mlp(str(i)) for i in range(4)])
    held = router["1"][0].weight.detach()
    shared = router["2"][2].weight
    shared.data.share_memory_()
    router.prepare_for_compile()
    x = double(3, 6)
    check(router, x)
    held.zero_()
    check(router, x)
    assert shared.is_shared() and router["1"][0].weight.abs().sum() == 0
    assert sum(source.memory is None for source in sources(router)) == 2


def test_some_towers_only():
    router = collective(*[Mlp(str(i)) for i in range(6)]).prepare_for_compile()
    x = double(3, 6)
    expected, _ = in_sequence(router, x)
    for names, together in ((["1", "2", "3"], True), (["0", "2", "5"], False)):
        with torch.no_grad():
            for name, out in router.wide_forward(x, tower_names=names).items():
                torch.testing.assert_close(out, expected[name])
        assert all((source.memory is not None) == together for source in sources(router))


def test_saved_copied_and_taken_out(tmp_path):
    router = collective(*[Conv(str(i)) for i in range(3)]).prepare_for_compile()
    x = double(4, 3, 5, 5)
    router.wide_forward(x)
    torch.save(router["1"].state_dict(), tmp_path / "one.pt")
    router.eval()
    expected = {name: out.detach() for name, out in router.wide_forward(x).items()}
    alone = Conv("alone").double().eval()
    alone.load_state_dict(torch.load(tmp_path / "one.pt"))
    torch.testing.assert_close(alone(x), expected["1"])
    clone = copy.deepcopy(router)
    with torch.no_grad():
        for p in clone.parameters():
            p.add_(1)
    taken = router.detach("1")
    torch.testing.assert_close(taken(x), expected["1"])
    check(router, x)
    with torch.no_grad():
        taken[0].weight.zero_()
    torch.testing.assert_close(router.wide_forward(x)["2"], expected["2"])
    check(clone, x)
