"""For which shapes is a capture true? Guards admit exactly those; elsewhere the wide model captures anew."""

import pytest
import sympy
import torch
from torch import nn

import wide_compiler
from fn import Fn
from wide_compiler import _tree, oracle
from wide_compiler.capture import export_member, observe_member
from wide_compiler.capture.shape_guards import ShapeGuards


def guards(model, *tensors, free=None):
    """The guards of a capture at `tensors`, with the named dims of each left free."""
    leaves, spec = _tree.flatten((tensors, {}))
    dynamic = free or [{0} for _ in tensors]
    observation = observe_member(model, *_tree.unflatten(leaves, spec))
    return export_member(model, leaves, spec, {}, dynamic, observation).guards[0]


def test_a_batch_is_free():
    found = guards(nn.Linear(4, 2), torch.randn(3, 4))
    assert all(found.admit([(batch, 4)]) for batch in (2, 3, 5, 1000))


@pytest.mark.parametrize("shape", [(3, 5), (3, 3), (3,), (3, 4, 1), ()])
def test_another_width_or_number_of_dims_is_not(shape):
    assert not guards(nn.Linear(4, 2), torch.randn(3, 4)).admit([shape])


def test_a_sequence_is_free_where_it_is_asked_for():
    model = nn.GRU(4, 3, batch_first=True)
    fixed = guards(nn.Linear(4, 3), torch.randn(3, 7, 4))
    assert fixed.admit([(5, 7, 4)]) and not fixed.admit([(5, 8, 4)])
    free = guards(Fn(lambda m, x: m.fc(x).cumsum(1), fc=nn.Linear(4, 3)), torch.randn(3, 7, 4), free=[{0, 1}])
    assert free.admit([(5, 8, 4)]) and free.admit([(2, 2, 4)]) and not free.admit([(5, 8, 5)])
    assert guards(model, torch.randn(3, 7, 4)).admit([(5, 7, 4)])


def test_a_dim_that_the_model_fixes_is_specialised_even_if_asked_for():
    found = guards(nn.Linear(4, 2), torch.randn(3, 4), free=[{0, 1}])
    assert found.dims[0][1] == 4
    assert found.admit([(9, 4)]) and not found.admit([(9, 5)])
    view = guards(Fn(lambda m, x: x.view(-1, 6)), torch.randn(4, 3), free=[{0, 1}])
    assert view.admit([(4, 3)]) and not view.admit([(3, 3)])


def test_one_batch_for_all_inputs():
    add = guards(Fn(lambda m, x, y: x + y), torch.randn(3, 4), torch.randn(3, 4))
    assert add.admit([(5, 4), (5, 4)])
    assert not add.admit([(5, 4), (6, 4)])
    apart = guards(Fn(lambda m, x, y: (x * 2, y * 3)), torch.randn(3, 4), torch.randn(5, 4))
    assert apart.admit([(7, 4), (9, 4)])


def test_a_size_that_follows_from_another():
    joined = guards(
        Fn(lambda m, x, y: torch.cat([x, x]) + y), torch.randn(3, 4), torch.randn(6, 4), free=[{0}, {0}]
    )
    assert joined.admit([(3, 4), (6, 4)])
    assert joined.admit([(5, 4), (10, 4)])
    assert not joined.admit([(5, 4), (9, 4)])


def test_a_branch_on_a_size():
    model = Fn(lambda m, x: x * 2 if x.shape[0] > 3 else x * 3)
    small, large = guards(model, torch.randn(3, 4)), guards(model, torch.randn(6, 4))
    for batch in (2, 3, 4, 7):
        assert small.admit([(batch, 4)]) == (batch <= 3)
        assert large.admit([(batch, 4)]) == (batch > 3)


def test_a_branch_on_parity():
    found = guards(Fn(lambda m, x: x[::2] if x.shape[0] % 2 == 0 else x), torch.randn(4, 4))
    assert found.admit([(6, 4)]) and not found.admit([(7, 4)])


def test_guards_by_hand():
    s, t = sympy.symbols("s t", integer=True)
    found = ShapeGuards([(s, 4), (2 * s, t)], {s: (2, 8), t: (0, None)}, [sympy.Ne(t, 5)])
    assert found.admit([(3, 4), (6, 1)])
    assert not found.admit([(3, 4), (7, 1)])  # not twice the first
    assert not found.admit([(9, 4), (18, 1)])  # out of range
    assert not found.admit([(1, 4), (2, 1)])
    assert not found.admit([(3, 4), (6, 5)])  # the condition
    assert not found.admit([(3, 5), (6, 1)])


def captures(wide):
    return sum(len(known) for known in wide.programs.captures.values())


def lanes_of(make, sample, n=2):
    models = [make() for _ in range(n)]
    return models, wide_compiler.compile(models, sample)


def agree(models, wide, x):
    oracle.compare(models, wide, shared_input=((x,), {})).check(rtol=1e-5)
    wide.shared(x)


def test_one_capture_serves_every_batch():
    models, wide = lanes_of(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4))
    for batch in (2, 3, 17):
        agree(models, wide, torch.randn(batch, 4))
    assert captures(wide) == 1
    agree(models, wide, torch.randn(1, 4))
    agree(models, wide, torch.randn(0, 4))


def test_a_sequence_length_is_freed_when_a_second_one_comes():
    models, wide = lanes_of(lambda: nn.Linear(4, 3), torch.randn(2, 5, 4))
    for length in (5, 6, 7, 11):
        agree(models, wide, torch.randn(3, length, 4))
    assert captures(wide) == 2


def test_both_sides_of_a_branch_on_a_size():
    def branch(m, x):
        return m.fc(x) if x.shape[0] > 3 else -m.fc(x)

    models, wide = lanes_of(lambda: Fn(branch, fc=nn.Linear(4, 4)), torch.randn(2, 4))
    for batch in (2, 3, 4, 5, 2, 9):
        agree(models, wide, torch.randn(batch, 4))
    assert captures(wide) == 2


@pytest.mark.parametrize("limits", [(10, 3), (3, 10), (10, 10, 3)])
def test_a_branch_on_a_size_that_differs_by_lane(limits):
    """All lanes take one side at the sample; at batch 5 they part. Lane 0's guards do not speak for all."""

    def branch(m, x):
        return x * 2.0 if x.shape[0] <= m.limit else x * 3.0

    models = [Fn(branch, limit=limit) for limit in limits]
    wide = wide_compiler.compile(models, torch.randn(2, 4))
    for batch in (2, 5, 12):
        agree(models, wide, torch.randn(batch, 4))
