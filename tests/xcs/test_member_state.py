"""What a wide model knows of its members: all of their tensors, none of their own code, and no longer than
they live."""

import copyreg
import gc
import weakref

import numpy
import pytest
import torch
from torch import nn

from wide_compiler import register
from wide_compiler.registry import REGISTRY
from wide_compiler.xcs import Config, jit
from xcs import oracle

from .module_loops import loop, rows, zipped


def fast_of(plain):
    return jit(plain, config=Config(measure=False))


def ran(fast, rung="wide model"):
    return sum(counts.get(rung, 0) for counts in fast.stats().values())


def check(fast, plain, *arguments):
    """Equal by value, or by the error that is raised."""
    wanted, got = oracle.observe(plain, arguments), oracle.observe(fast, arguments)
    oracle.compare(wanted, got, rtol=1e-5)


@pytest.fixture
def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def new_kind(**names):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x)

    for name, value in names.items():
        setattr(Net, name, value)
    return Net


# Inputs of several types.


@pytest.mark.parametrize(
    "other",
    [
        torch.Tensor.long, torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.bool, torch.Tensor.double,
        lambda t: t.to("meta"), torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Sparse")
def test_one_input_of_another_type(other):
    torch.manual_seed(0)
    models, xs = [nn.Linear(4, 4) for _ in range(6)], [torch.randn(3, 4) for _ in range(6)]
    fast = fast_of(zipped)
    check(fast, zipped, models, xs)
    assert ran(fast) == 1
    for at in (0, 2, 5):
        mixed = [other(x) if i == at else x for i, x in enumerate(xs)]
        wanted, got = oracle.observe(zipped, (models, mixed)), oracle.observe(fast, (models, mixed))
        assert type(wanted.error) is type(got.error) and str(wanted.error) == str(got.error)
        if wanted.error is None:
            assert [y.layout for y in got.result] == [y.layout for y in wanted.result]
    assert ran(fast) == 1
    check(fast, zipped, models, xs)
    assert ran(fast) == 2


# Every tensor is renewed.


class Shifted(nn.Module):
    def __init__(self, persistent=False, start=0.0):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("shift", torch.full((4,), start), persistent=persistent)

    def forward(self, x):
        return self.inner(x) + self.shift


def in_place(model):
    model.shift.fill_(7.0)


def another_tensor(model):
    model.shift = torch.full((4,), 7.0)


def another_memory(model):
    model.shift.data = torch.full((4,), 7.0)


def through_numpy(model):
    model.shift.numpy()[1] = 7.0


@pytest.mark.parametrize("change", [in_place, another_tensor, another_memory, through_numpy])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("equal", [False, True])
def test_a_buffer_is_renewed(change, persistent, equal, x):
    """Also one that was equal in all members, and had no lanes."""
    models = [Shifted(persistent, 0.0 if equal else float(i)) for i in range(5)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    for turn, changed in enumerate((models[2:3], models)):
        before = loop(models, x)
        for model in changed:
            change(model)
        assert not oracle.same(before, loop(models, x), rtol=1e-5)
        check(fast, loop, models, x)
        check(fast, loop, models, x)
        assert ran(fast) == 3 + 2 * turn


def test_zeros_of_either_sign_are_two_buffers(x):
    class Divided(Shifted):
        def forward(self, x):
            return self.inner(x) * 0.0 + (1.0 / self.shift).clamp(-9.0, 9.0)

    models = [Divided(start=-0.0 if i == 1 else 0.0) for i in range(5)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    assert ran(fast) == 1
    assert [y[0, 0].item() for y in fast(models, x)] == [9.0, -9.0, 9.0, 9.0, 9.0]
    models[1].shift.fill_(0.0)
    models[3].shift.fill_(-0.0)
    check(fast, loop, models, x)
    assert ran(fast) == 3


class Trunk(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.trunk = trunk

    def forward(self, x):
        return self.inner(x) @ self.trunk


@pytest.mark.parametrize("frozen", [False, True])
def test_a_parameter_that_all_members_share(frozen, x):
    torch.manual_seed(0)
    trunk = nn.Parameter(torch.randn(4, 4), requires_grad=not frozen)
    models = [Trunk(trunk) for _ in range(5)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    with torch.no_grad():
        trunk.mul_(2.0)
    check(fast, loop, models, x)
    assert ran(fast) == 2
    other = nn.Parameter(torch.randn(4, 4), requires_grad=not frozen)
    numbers = trunk.detach().clone()
    for model in models:
        model.trunk = other
    check(fast, loop, models, x)
    check(fast, loop, models, x)
    assert ran(fast) == 4
    assert torch.equal(trunk, numbers)  # which the members no longer hold, but somebody may
    models[3].trunk = nn.Parameter(torch.randn(4, 4), requires_grad=not frozen)
    check(fast, loop, models, x)
    check(fast, loop, models, x)


def test_a_parameter_under_two_names(x):
    def tied():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        return model

    torch.manual_seed(0)
    models = [tied() for _ in range(5)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    with torch.no_grad():
        models[1][2].weight.add_(1.0)
    check(fast, loop, models, x)
    models[2][0].weight = models[2][2].weight = nn.Parameter(torch.ones(4, 4))
    check(fast, loop, models, x)
    assert ran(fast) == 3
    models[3][2].weight = nn.Parameter(torch.ones(4, 4))
    check(fast, loop, models, x)
    check(fast, loop, models, x)
    assert ran(fast) == 3


def test_members_that_keep_their_parameters_in_another_order(x):
    torch.manual_seed(0)
    models = [nn.Linear(4, 4) for _ in range(5)]
    weight = models[2].weight
    del models[2].weight
    models[2].weight = weight
    assert list(models[2]._parameters) == ["bias", "weight"]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    with torch.no_grad():
        for model in models:
            model.weight.mul_(2.0)
            model.bias.add_(1.0)
    check(fast, loop, models, x)


def test_a_part_that_two_members_share(x):
    torch.manual_seed(0)
    part = nn.Linear(4, 4).requires_grad_(False)
    models = [nn.Sequential(part if i < 2 else nn.Linear(4, 4).requires_grad_(False)) for i in range(4)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    part.weight.mul_(2.0)
    check(fast, loop, models, x)
    assert ran(fast) == 2


# Calls that do not come to `forward` as PyTorch has it.


def own_call(self, *args):
    return 5.0 * self.forward(*args)


@pytest.mark.parametrize("name", ["__call__", "_call_impl", "_wrapped_call_impl", "_slow_forward"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_class_that_is_called_in_its_own_way(name, inside, x):
    torch.manual_seed(0)
    kind = new_kind(**{name: own_call})
    models = [nn.Sequential(kind()) if inside else kind() for _ in range(5)]
    xs = [torch.randn(4) for _ in range(8)]
    fast, mapped = fast_of(loop), fast_of(rows)
    for _ in range(2):
        check(fast, loop, models, x)
        check(mapped, rows, models[0], xs)
    assert ran(fast) == ran(mapped, "torch vmap") == 0
    assert "overrides how nn.Module is called" in str(
        fast.explain()
    ) and "overrides how nn.Module is called" in str(mapped.explain())


@pytest.mark.parametrize("name", ["__call__", "_call_impl", "_wrapped_call_impl", "_slow_forward"])
@pytest.mark.parametrize("of_class", [False, True])
def test_another_way_of_being_called_put_there_later(name, of_class, x):
    torch.manual_seed(0)
    kind = new_kind()
    models, xs = [kind() for _ in range(5)], [torch.randn(4) for _ in range(8)]
    fast, mapped = fast_of(loop), fast_of(rows)
    check(fast, loop, models, x)
    check(mapped, rows, models[1], xs)
    assert ran(fast) == ran(mapped, "torch vmap") == 1
    if of_class:
        setattr(kind, name, own_call)
    else:
        vars(models[1])[name] = lambda *args: own_call(models[1], *args)
    for _ in range(2):
        check(fast, loop, models, x)
        check(mapped, rows, models[1], xs)
    ignored = name == "__call__" and not of_class  # which Python looks for in the class alone
    assert ran(fast) == ran(mapped, "torch vmap") == (3 if ignored else 1)


def test_a_method_of_tensors_that_was_replaced_and_put_back(x):
    """`Tensor.relu` is inherited; what is put back lies in `Tensor` itself, and is the same."""
    kind = new_kind()
    models, fast = [kind() for _ in range(5)], fast_of(loop)
    check(fast, loop, models, x)
    before, relu = ran(fast), torch.Tensor.relu
    torch.Tensor.relu = lambda t: t * 2
    try:
        check(fast, loop, models, x)
        assert ran(fast) == before
        torch.Tensor.relu = relu
        check(fast, loop, models, x)
        assert ran(fast) == before + 1
    finally:
        del torch.Tensor.relu


def test_members_that_are_compiled_by_pytorch(x):
    seen = []

    def backend(graph, inputs):
        seen.append(1)
        return graph.forward

    kind = new_kind()
    models = [kind() for _ in range(3)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    assert ran(fast) == 1
    for model in models:
        model.compile(backend=backend)
    fast(models, x)
    assert seen and ran(fast) == 1


# Code of the members' own that no call of them runs.


WAYS = [
    "state_dict", "load_state_dict", "_save_to_state_dict", "_load_from_state_dict", "get_extra_state",
    "set_extra_state", "modules", "named_modules", "children", "named_children", "parameters",
    "named_parameters", "buffers", "named_buffers", "get_submodule", "get_parameter", "_named_members",
    "register_parameter", "register_buffer", "add_module", "requires_grad_", "_apply", "apply", "to", "train",
    "eval", "__copy__", "__deepcopy__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__",
    "__getnewargs__", "__setattr__", "__delattr__", "__eq__", "__hash__", "__dir__", "__del__",
]  # fmt: skip


def noting(name, log):
    own = getattr(nn.Module, name, None)

    def way(self, *args, **kwargs):
        log.append(name)
        return self if name == "__deepcopy__" else own(self, *args, **kwargs) if own else None

    return way


@pytest.mark.parametrize("name", WAYS)
def test_members_with_ways_of_their_own_stay_plain(name, x):
    torch.manual_seed(0)
    log = []
    kind = new_kind()
    models = [nn.Sequential(kind(), nn.ReLU()) for _ in range(4)]
    setattr(kind, name, noting(name, log))
    numbers = [m[0].inner.weight.detach().clone() for m in models]
    fast = fast_of(loop)
    wanted = loop(models, x)
    for _ in range(2):
        assert oracle.same(fast(models, x), wanted, rtol=1e-5)
    with torch.no_grad():
        models[1][0].inner.weight.mul_(2.0)
    assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
    assert log == [] and ran(fast) == 0
    assert f"Net overrides {name}" in str(fast.explain())
    numbers[1] *= 2.0
    assert all(torch.equal(m[0].inner.weight, n) for m, n in zip(models, numbers, strict=True))
    delattr(kind, name)


@pytest.mark.parametrize("name", ["state_dict", "modules", "get_extra_state", "__deepcopy__", "parameters"])
def test_a_way_of_one_member_itself(name, x):
    models, log = [nn.Sequential(nn.Linear(4, 4)) for _ in range(4)], []
    vars(models[2])[name] = lambda *args, **kwargs: log.append(name)
    fast = fast_of(loop)
    check(fast, loop, models, x)
    assert log == [] and ran(fast) == 0
    assert f"an instance of Sequential overrides {name}" in str(fast.explain())


HOOKS = {
    "_state_dict_hooks": lambda m, log: m._register_state_dict_hook(lambda *args: log.append(1)),
    "_state_dict_pre_hooks": lambda m, log: m.register_state_dict_pre_hook(lambda *args: log.append(1)),
    "_load_state_dict_pre_hooks": lambda m, log: m.register_load_state_dict_pre_hook(
        lambda *args: log.append(1)
    ),
    "_load_state_dict_post_hooks": lambda m, log: m.register_load_state_dict_post_hook(
        lambda *args: log.append(1)
    ),
}


@pytest.mark.parametrize("hooks", HOOKS)
def test_hooks_of_a_state_are_not_run(hooks, x):
    models, log = [nn.Sequential(nn.Linear(4, 4)) for _ in range(4)], []
    HOOKS[hooks](models[1][0], log)
    fast = fast_of(loop)
    for _ in range(2):
        assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
    assert log == []


@pytest.mark.parametrize("hooks", HOOKS)
def test_hooks_of_a_state_put_there_later_are_not_run(hooks, x):
    models, log = [nn.Sequential(nn.Linear(4, 4)) for _ in range(4)], []
    fast = fast_of(loop)
    check(fast, loop, models, x)
    HOOKS[hooks](models[1][0], log)
    with torch.no_grad():
        models[1][0].weight.mul_(2.0)
    assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
    other = torch.cat([x, x, x])  # of another shape, for which a program may be built
    assert oracle.same(fast(models, other), loop(models, other), rtol=1e-5)
    assert log == [] and ran(fast) == 3


@pytest.mark.parametrize("name", ["__deepcopy__", "__getstate__", "__setstate__", "state_dict", "modules"])
def test_a_way_put_into_the_class_later(name, x):
    torch.manual_seed(0)
    kind, log = new_kind(), []
    models = [kind() for _ in range(4)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    assert ran(fast) == 1
    setattr(kind, name, noting(name, log))
    for given in (x, x.double(), torch.cat([x, x])):
        wanted, got = oracle.observe(loop, (models, given)), oracle.observe(fast, (models, given))
        assert str(wanted.error) == str(got.error)
    assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
    assert log == []


def test_what_classes_may_well_have(x):
    class Base:
        def described(self):
            return "a net"

    class Net(Base, nn.Module):
        """With a version, a repr and a method of its own."""

        _version = 2
        width: int = 4

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(self.width, self.width)

        def extra_repr(self):
            return self.described()

        def __repr__(self):
            return "Net"

        def __len__(self):
            return 0

        def reset_parameters(self):
            self.inner.reset_parameters()

        def forward(self, x):
            return self.inner(x)

    models = [Net() for _ in range(4)]
    fast = fast_of(loop)
    for _ in range(2):
        assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
    assert ran(fast) == 2


def test_copies_that_copyreg_makes(x, monkeypatch):
    kind, log = new_kind(), []
    models = [kind() for _ in range(4)]
    fast, before = fast_of(loop), fast_of(loop)
    check(before, loop, models, x)
    table = dict(copyreg.dispatch_table)
    copyreg.pickle(kind, lambda m: log.append(1) or (kind, ()))
    try:
        assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
        assert oracle.same(before(models, x), loop(models, x), rtol=1e-5)
    finally:
        del copyreg.dispatch_table[kind]
    assert table == copyreg.dispatch_table
    assert log == [] and ran(fast) == 0
    assert "custom copy function" in str(fast.explain())


def test_hooks_that_see_what_modules_are_given(x):
    log = []
    models = [nn.Linear(4, 4) for _ in range(4)]
    fast, before = fast_of(loop), fast_of(loop)
    check(before, loop, models, x)
    handle = nn.modules.module.register_module_parameter_registration_hook(lambda *args: log.append(1))
    try:
        assert oracle.same(fast(models, x), loop(models, x), rtol=1e-5)
        assert oracle.same(before(models, x), loop(models, x), rtol=1e-5)
    finally:
        handle.remove()
    assert log == [] and ran(fast) == 0
    for one in (fast, before):
        one(models, x)
        assert oracle.same(one(models, x), loop(models, x), rtol=1e-5)
        assert ran(one) >= 1


def test_a_class_whose_class_is_somebodys(x):
    class Meta(type):
        pass

    class Net(nn.Linear, metaclass=Meta):
        def forward(self, x):
            return nn.functional.linear(x, self.weight)

    models = [Net(4, 4) for _ in range(4)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    assert ran(fast) == 0 and "metaclass" in str(fast.explain())


def test_numbers_that_are_copied_in_their_own_way(x):
    log = []

    class Number(float):
        def __deepcopy__(self, memo):
            log.append(1)
            return Number(0.0)

    def net(kind, number):
        model = kind()
        model.scale = number
        return model

    kind = new_kind(forward=lambda self, x: self.inner(x) * self.scale)
    for number, fast_calls in ((Number(2.0), 0), (2.0, 1), (numpy.float64(2.0), 1)):
        models = [net(kind, number) for _ in range(3)]
        fast = fast_of(loop)
        wanted = loop(models, x)
        assert oracle.same(fast(models, x), wanted, rtol=1e-5)
        assert log == [] and ran(fast) == fast_calls, number


@pytest.mark.parametrize("grad", [False, True])
def test_parameters_that_compute_in_their_own_way(grad, x):
    log = []

    class Noting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            log.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    def noting_linear():
        model = nn.Linear(4, 4)
        model.weight = nn.Parameter(model.weight.detach().as_subclass(Noting))
        return model

    def run(models, x):
        return [m(x) for m in models]

    models = [noting_linear() for _ in range(3)]
    fast = fast_of(run)
    with torch.set_grad_enabled(grad):
        log.clear()
        run(models, x)
        wanted = list(log)
        log.clear()
        fast(models, x)
    assert log == wanted and ran(fast) == 0


def test_a_parameter_that_computes_in_its_own_way_put_there_later(x):
    log = []

    class Noting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            log.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    models = [nn.Linear(4, 4) for _ in range(3)]
    fast = fast_of(loop)
    fast(models, x)
    assert ran(fast) == 1
    models[1].weight = nn.Parameter(models[1].weight.detach().as_subclass(Noting))
    log.clear()
    loop(models, x)
    wanted = list(log)
    for _ in range(2):
        log.clear()
        fast(models, x)
        assert log == wanted
    assert ran(fast) == 1


def test_a_wide_class_of_the_users(x):
    made = []
    kind = new_kind()

    @register(kind.__name__)
    class WideNet(nn.Module):
        @classmethod
        def from_modules(cls, modules):
            made.append(len(modules))
            raise AssertionError("nobody has asked for it")

    try:
        models = [nn.Sequential(kind()) for _ in range(3)]
        fast = fast_of(loop)
        check(fast, loop, models, x)
        assert made == []
    finally:
        del REGISTRY._custom[kind.__name__]


# No longer than they live.


def test_members_are_not_kept_alive(x):
    models = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval() for _ in range(4)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    with torch.no_grad():
        models[1][0].weight.mul_(2.0)
    check(fast, loop, models, x)
    assert ran(fast) == 2
    (plan,) = fast.__xcs__.sites[0].plans
    kept = weakref.ref(plan.memory["wide"])
    parts = [weakref.ref(part) for m in models for part in (m, m[0], *m.parameters(), *m.buffers())]
    del models
    gc.collect()
    assert not any(part() is not None for part in parts)
    assert kept() is None and "wide" not in plan.memory


def test_when_one_member_goes_the_wide_model_goes(x):
    kind = new_kind()
    models = [kind() for _ in range(4)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    (plan,) = fast.__xcs__.sites[0].plans
    kept, last = weakref.ref(plan.memory["wide"]), weakref.ref(models[3])
    models.pop()
    gc.collect()
    assert last() is None and kept() is None
    for count in (2, 3):
        check(fast, loop, models, x)
        assert ran(fast) == count


def test_the_wide_model_of_other_members_stays(x):
    first, second = ([nn.Linear(4, 4) for _ in range(4)] for _ in range(2))
    fast = fast_of(loop)
    for models in (first, second, first, second):
        check(fast, loop, models, x)
    assert ran(fast) == 4
    del first, models
    gc.collect()
    check(fast, loop, second, x)
    assert ran(fast) == 5


def test_a_function_that_may_hold_its_member(x):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.call_back = lambda: self.inner

        def forward(self, x):
            return self.inner(x)

    models = [Net() for _ in range(4)]
    fast = fast_of(loop)
    check(fast, loop, models, x)
    assert ran(fast) == 0 and "may refer to the member itself" in str(fast.explain())
    refs = list(map(weakref.ref, models[1:]))  # a plan knows the first one
    del models
    gc.collect()
    assert not any(ref() is not None for ref in refs)
