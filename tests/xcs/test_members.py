"""Members of a wide model that change between calls: every change is seen, whatever it is."""

import pytest
import torch
from torch import nn

from wide_compiler.xcs import Config, jit
from xcs import oracle


def mlp(i):
    torch.manual_seed(i)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()


def loop(models, x):
    with torch.no_grad():
        return [m(x) for m in models]


WHERE = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=WHERE)
def family(request):
    """Members that ran wide once."""
    device = request.param
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    models = [mlp(i).to(device) for i in range(4)]
    fast = jit(loop, config=Config(measure=False))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(device)
    assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
    assert ran(fast) == 1
    return models, fast, x


def ran(fast):
    return next(iter(fast.stats().values())).get("wide model", 0)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2.0 * super().forward(x)


def add_in_place(models):
    with torch.no_grad():
        models[2][0].weight.add_(1.0)


def write_through_data(models):
    models[1][2].weight.data.mul_(2.0)


def array_of(tensor):
    if tensor.is_cuda:
        pytest.skip("NumPy does not reach there")
    return tensor.detach().numpy()


def write_through_numpy(models):
    array_of(models[1][2].weight)[:] *= 2.0


def one_number_through_data(models):
    models[1][2].weight.data[2, 1] += 1.0


def one_number_through_numpy(models):
    array_of(models[2][0].weight)[1, 3] += 1.0


def other_parameter(models):
    models[0][0].weight = nn.Parameter(torch.ones_like(models[0][0].weight))


def other_memory(models):
    models[3][2].bias.data = torch.ones_like(models[3][2].bias)


def same_memory_transposed(models):
    models[3][2].weight.data = models[3][2].weight.data.t()


def a_buffer(models):
    models[1][3].running_mean += 1.0


def a_step_of_an_optimiser(models):
    optimiser = torch.optim.SGD(models[2].parameters(), lr=0.5)
    models[2](models[2][0].weight.new_ones(2, 4)).sum().backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


NUMBERS = [
    add_in_place, write_through_data, write_through_numpy, one_number_through_data, one_number_through_numpy,
    other_parameter, other_memory, a_buffer,
    a_step_of_an_optimiser,
]  # fmt: skip


def another_member(models):
    models[1] = mlp(99).to(models[0][0].weight.device)


def one_member_less(models):
    models.pop()


def members_in_another_order(models):
    models.reverse()


def a_hook(models):
    models[3].register_forward_hook(lambda m, i, o: o * 10)


def a_hook_inside(models):
    models[1][0].register_forward_pre_hook(lambda m, i: (i[0] + 1.0,))


def another_submodule(models):
    models[2][1] = nn.Tanh()


def one_submodule_more(models):
    models[0].append(nn.ReLU())


def one_submodule_elsewhere(models):
    models[0]._modules["1"], models[0]._modules["2"] = models[0][2], models[0][1]


def a_forward_of_its_own(models):
    models[2].forward = lambda x: x * 0.0


def a_forward_of_its_own_inside(models):
    models[2][0].forward = lambda x: x * 0.0


def another_class(models):
    models[1][0].__class__ = Doubled


def another_number(models):
    models[3][3].eps = 1.0


def training(models):
    models[0].train()


def no_bias(models):
    models[3][0].bias = None


def other_dtype(models):
    models[2].double()


def other_shape(models):
    models[1][0].weight = nn.Parameter(models[1][0].weight.new_ones(5, 4))


def two_of_one(models):
    models[1] = models[0]


STRUCTURE = [
    another_member, one_member_less, members_in_another_order, a_hook, a_hook_inside, another_submodule,
    one_submodule_more, one_submodule_elsewhere, a_forward_of_its_own, a_forward_of_its_own_inside,
    another_class, another_number, training, no_bias, other_dtype, other_shape, two_of_one,
    same_memory_transposed,
]  # fmt: skip


def check(models, fast, x):
    """Twice, and buffers that training moves are moved by both sides."""
    for _ in range(2):
        before = [{k: v.clone() for k, v in m.state_dict().items()} for m in models]
        got = oracle.observe(fast, (models, x))
        after = [m.state_dict() for m in models]
        kept = [{k: v.clone() for k, v in state.items()} for state in after]
        for m, state in zip(models, before, strict=True):
            m.load_state_dict(state)
        wanted = oracle.observe(loop, (models, x))
        got.arguments = wanted.arguments = None
        oracle.compare(wanted, got, rtol=1e-5)
        states = [{k: v.clone() for k, v in m.state_dict().items()} for m in models]
        assert oracle.same(states, kept, rtol=1e-5)


@pytest.mark.parametrize("change", NUMBERS)
def test_other_numbers_are_copied(family, change):
    models, fast, x = family
    before = loop(models, x)
    change(models)
    assert not oracle.same(before, loop(models, x), rtol=1e-5)
    assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
    assert ran(fast) == 2
    assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
    assert ran(fast) == 3


@pytest.mark.parametrize("change", STRUCTURE)
def test_anything_else_is_seen(family, change):
    models, fast, x = family
    before = loop(models, x)
    change(models)
    if change not in (training, two_of_one, other_dtype, other_shape):
        assert not oracle.same(before, loop(models, x), rtol=1e-5)
    check(models, fast, x)


def test_a_hook_on_all_modules(family):
    models, fast, x = family
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: o + 1.0)
    try:
        check(models, fast, x)
    finally:
        handle.remove()
    assert ran(fast) == 1
    assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)


def test_a_forward_of_the_class(family, monkeypatch):
    models, fast, x = family
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: x * 3.0)
    check(models, fast, x)


def only_the_first_half(self):
    return iter(list(self._modules.values())[:1])


def doubled(method):
    return lambda *args, **kwargs: 2.0 * method(*args, **kwargs)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (nn.Sequential, "forward"), (nn.Sequential, "__call__"), (nn.Sequential, "__iter__"),
        (nn.Linear, "__call__"), (nn.Module, "__call__"), (nn.Module, "_call_impl"),
        (nn.functional, "linear"), (torch, "relu"),
    ],
)  # fmt: skip
def test_pytorch_itself_replaced(family, monkeypatch, where, name):
    models, fast, x = family
    before = loop(models, x)
    with monkeypatch.context() as patch:
        patch.setattr(
            where, name, only_the_first_half if name == "__iter__" else doubled(getattr(where, name))
        )
        assert not oracle.same(before, loop(models, x), rtol=1e-5)
        check(models, fast, x)
    assert ran(fast) == 1
    check(models, fast, x)


def test_what_others_replace_beside_it_is_left_alone(family, monkeypatch):
    """torch.compile gives modules another `__init__`, Lightning gives torch another `compile`."""
    models, fast, x = family
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    monkeypatch.setattr(torch, "compile", doubled(torch.compile))
    monkeypatch.setattr(nn.Module, "__init__", lambda *args, **kwargs: None)
    monkeypatch.setattr(nn.Module, "a_method_of_somebody", doubled(len), raising=False)
    check(models, fast, x)
    assert ran(fast) == 3
    monkeypatch.setattr(nn.Linear, "_call_impl", doubled(nn.Linear._call_impl))  # hides the one of Module
    check(models, fast, x)
    assert ran(fast) == 3


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self._scale = 2.0

    def forward(self, x):
        return self.inner(x) * self._scale


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.added = [1, 2]

    def forward(self, x):
        return self.inner(x) + self.added[0]


def another_private_number(models):
    models[2]._scale = 3.0


def minus_zero(models):
    models[2]._scale = -0.0


def attributes_of_another(models):
    models[1].__dict__ = models[2].__dict__


@pytest.mark.parametrize("change", [another_private_number, minus_zero, attributes_of_another])
def test_attributes_of_every_member_count(change):
    torch.manual_seed(0)
    models, x = [Scaled() for _ in range(4)], torch.randn(3, 4)
    fast = jit(loop, config=Config(measure=False))
    check(models, fast, x)
    assert ran(fast) == 2
    before = loop(models, x)
    change(models)
    assert not oracle.same(before, loop(models, x), rtol=1e-5)
    check(models, fast, x)


def test_a_list_in_a_member_that_is_written_to():
    models, x = [Padded() for _ in range(4)], torch.randn(3, 4)
    fast = jit(loop, config=Config(measure=False))
    check(models, fast, x)
    for model in models[1:]:
        model.added[0] = 5
        check(models, fast, x)


def test_layers_with_private_attributes_are_wide():
    models = [nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular") for _ in range(3)]
    fast, x = jit(loop, config=Config(measure=False)), torch.randn(2, 2, 5)
    check(models, fast, x)
    assert ran(fast) == 2


def test_results_are_no_views_and_count_their_writes_apart(family):
    models, fast, x = family
    first, second, *_ = fast(models, x)
    assert not first._is_view() and first._base is None
    first.add_(1.0)
    assert (first._version, second._version) == (1, 0)
    wanted = loop(models, x)
    assert oracle.same([second], [wanted[1]], rtol=1e-5)


def test_modes_of_gradients():
    def run(models, x):
        return [m(x) for m in models]

    models, x = [mlp(i) for i in range(3)], torch.randn(2, 4)
    fast = jit(run, config=Config(measure=False))
    with torch.no_grad():
        fast(models, x)
        assert ran(fast) == 1
    assert all(y.requires_grad for y in fast(models, x))
    for context in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with context():
            got, wanted = fast(models, x), run(models, x)
            assert [y.is_inference() for y in got] == [y.is_inference() for y in wanted]
            assert oracle.same([y.clone() for y in got], [y.clone() for y in wanted], rtol=1e-5)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert [y.dtype for y in fast(models, x)] == [torch.bfloat16] * 3
    for model in models:
        model.requires_grad_(False)
    assert not any(y.requires_grad for y in fast(models, x))
    assert all(y.requires_grad for y in fast(models, x.clone().requires_grad_()))
    models[1][0].weight.requires_grad_(True)
    assert [y.requires_grad for y in fast(models, x)] == [False, True, False]


def test_results_lie_in_memory_as_those_of_the_loop_do(family):
    models, fast, x = family
    for y in fast(models, x):
        y.view(-1).mul_(2.0)  # only where a tensor lies in one piece
    assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
