"""WideRouter(stacked=True): towers' parameters as rows of one leaf live as plain ones do."""

import copy
import io
import pickle
import threading

import pytest
import torch
from torch import nn

from routers.towers import AT_ONCE, Mlp
from wide_compiler.routers import WideRouter


class Towers(WideRouter):
    def forward(self, x):
        return torch.stack(list(self.wide_forward(x).values()))


def routers(n=5):
    """The same towers twice: stacked, and as they are."""
    torch.manual_seed(0)
    stacked = Towers("stacked", config=AT_ONCE, stacked=True)
    for i in range(n):
        stacked.attach(f"tower_{i}", Mlp(f"tower_{i}"))
    stacked.double()
    plain = Towers("plain", config=AT_ONCE)
    for i in range(n):
        plain.attach(f"tower_{i}", copy.deepcopy(stacked[f"tower_{i}"]))
    return stacked, plain


def data(rows=4):
    return torch.randn(rows, 6, dtype=torch.float64)


def is_stacked(router):
    """For each parameter, whether it is a row of a leaf."""
    leaves = router._router_memory.leaves.values() if isinstance(router, WideRouter) else ()
    rows = {row.data_ptr() for leaf in leaves for row in leaf.leaf}
    return [p.data_ptr() in rows for p in router.parameters()]


def assert_same(stacked, plain):
    for (name, a), (other, b) in zip(stacked.named_parameters(), plain.named_parameters(), strict=True):
        assert name == other
        torch.testing.assert_close(a.data, b.data)
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(a.grad.detach(), b.grad.detach())


def backward(x, *both):
    for router in both:
        router(x).square().sum().backward()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("to_none", [True, False])
def test_a_life_in_training(make, to_none):
    both = routers()
    optimizers = [make(router.parameters(), lr=0.05) for router in both]
    for step in range(6):
        x = data()
        backward(x, *both)
        if step == 3:  # a second batch, accumulated
            backward(x + 1, *both)
        norms = [nn.utils.clip_grad_norm_(router.parameters(), 1.0) for router in both]
        torch.testing.assert_close(*norms)
        assert_same(*both)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
        assert_same(*both)
    assert all(is_stacked(both[0])) and not any(is_stacked(both[1]))
    assert both[0].explain().rows[0].how == "together"
    torch.testing.assert_close(both[0].state_dict(), both[1].state_dict())


def test_gradients_of_some_towers_only():
    both = routers()
    x = data()
    backward(x, *both)
    for router in both:
        router["tower_1"].zero_grad()
        next(router["tower_2"].parameters()).grad.mul_(3)
        first = next(router["tower_3"].parameters())
        first.grad = torch.ones_like(first)
    assert_same(*both)
    backward(x + 1, *both)
    assert_same(*both)
    for router in both:
        router["tower_0"](x).sum().backward()  # a tower by itself
        outputs = router.wide_forward(x, tower_names=["tower_2", "tower_4"])
        torch.stack(list(outputs.values())).sum().backward()
    assert_same(*both)
    for router in both:
        router.zero_grad()
    assert_same(*both)
    for router in both:
        router["tower_0"](x).sum().backward()
    assert_same(*both)


def test_towers_come_and_go():
    both = routers()
    x = data()
    backward(x, *both)
    gone = [router.detach("tower_3") for router in both]
    assert_same(*gone)
    assert not any(is_stacked(gone[0]))
    backward(x, *both)
    assert_same(*both)
    for router, tower in zip(both, gone, strict=True):
        tower(x).sum().backward()
        router.attach("again", tower)
    backward(x, *both)
    assert_same(*both)
    for router in both:
        router["again"].requires_grad_(False)
        router.zero_grad()
    backward(x, *both)
    assert_same(*both)


def test_moved_loaded_copied():
    both = routers()
    x = data()
    backward(x, *both)
    for router in both:
        router.float()
    assert_same(*both)
    for router in both:
        router(x.float()).sum().backward()
        router.double()
    backward(x, *both)
    state = {name: tensor.clone() + 1 for name, tensor in both[1].state_dict().items()}
    for router in both:
        router.load_state_dict(state)
        router.zero_grad()
    backward(x, *both)
    assert_same(*both)
    twins = [copy.deepcopy(router) for router in both]
    assert not any(is_stacked(twins[0]))
    backward(x, *twins)
    assert_same(*twins)
    again = [pickle.loads(pickle.dumps(router)) for router in both]
    torch.testing.assert_close(again[0](x), both[0](x))
    file = io.BytesIO()
    torch.save(both[0].state_dict(), file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file), both[1].state_dict())
    assert_same(*both)


def test_one_tower_moves_by_itself():
    both = routers()
    x = data()
    backward(x, *both)
    for router in both:
        router["tower_1"].float()
    assert_same(*both)
    for router in both:
        router["tower_1"].double()
    backward(x, *both)
    assert_same(*both)


@pytest.mark.parametrize("after_forward", [False, True])
def test_hooks_of_parameters_are_called(after_forward):
    both = routers()
    x = data()
    backward(x, *both)
    seen = {router: [] for router in both}
    losses = [router(x).square().sum() for router in both] if after_forward else None
    for router in both:
        first, second = list(router["tower_0"].parameters())[:2]
        first.register_hook(lambda gradient, router=router: seen[router].append(gradient.clone()))
        first.register_hook(lambda gradient: gradient * 2)
        second.register_post_accumulate_grad_hook(
            lambda p, router=router: seen[router].append(p.grad.clone())
        )
    for loss in losses or [router(x).square().sum() for router in both]:
        loss.backward()
    assert_same(*both)
    backward(x, *both)
    assert_same(*both)
    for router in both:  # the hooked parameters belong to a tower that this does not reach
        router(x)[1:].sum().backward()
    torch.testing.assert_close(*seen.values(), rtol=1e-9, atol=1e-9)
    assert all(is_stacked(both[0]))


def test_gradients_of_gradients():
    both = routers()
    x = data()
    for router in both:
        router(x).square().sum().backward(create_graph=True)
        norm = sum(p.grad.square().sum() for p in router.parameters())
        norm.backward()
    assert_same(*both)


def test_parametrized_after_stacking():
    both = routers()
    x = data()
    backward(x, *both)
    for router in both:
        torch.nn.utils.parametrizations.weight_norm(router["tower_1"].stages[0])
        router.zero_grad()
    backward(x, *both)
    assert_same(*both)


def test_weights_changed_before_backward_are_an_error():
    stacked, _ = routers()
    stacked(data())
    loss = stacked(data()).square().sum()
    with torch.no_grad():
        stacked["tower_2"].stages[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_two_threads():
    both = routers()
    inputs = [data() for _ in range(8)]
    both[0](inputs[0])
    expected = [both[1](x) for x in inputs]
    got = {}

    def work(numbers):
        for i in numbers:
            got[i] = both[0](inputs[i])

    threads = [threading.Thread(target=work, args=(range(k, 8, 2),)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, want in enumerate(expected):
        torch.testing.assert_close(got[i], want)
    for i, want in enumerate(expected):
        got[i].square().sum().backward()
        want.square().sum().backward()
    assert_same(*both)


def test_inside_torch_compile():
    both = routers()
    x = data()
    backward(x, *both)
    for router in both:
        router.zero_grad()
        router.prepare_for_compile()
        compiled = torch.compile(router, backend="aot_eager", fullgraph=True)
        compiled(x).square().sum().backward()
    assert_same(*both)


@pytest.mark.parametrize("frozen", [["tower_1"], ["tower_0", "tower_1", "tower_2", "tower_3", "tower_4"]])
def test_frozen_weights_get_no_gradient_and_learn_again_later(frozen):
    both = routers()
    optimizers = [torch.optim.SGD(router.parameters(), lr=0.1, momentum=0.9) for router in both]
    for learns in (True, False, True):
        for router in both:
            for name in frozen:
                next(router[name].parameters()).requires_grad_(learns)
        for _ in range(2):
            for optimizer in optimizers:
                optimizer.zero_grad()
            backward(data(), *both)
            assert_same(*both)
            for optimizer in optimizers:
                optimizer.step()
            assert_same(*both)
