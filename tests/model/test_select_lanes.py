"""Other lanes in the same wide model: kept, reordered, repeated, and each still what it was."""

import copy
import gc

import pytest
import torch
from torch import nn

import wide_compiler
from fn import Fn
from wide_compiler import WideConfig, oracle
from wide_compiler.errors import UsageError

QUICK = WideConfig(tune_seconds=0)
ORDERS = [[3, 1], [3, 2, 1, 0], [0, 0, 3, 3, 1]]


class Cnn(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)
        self.register_buffer("offset", torch.arange(3.0))

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1]) + self.offset


CASES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)), (5,)),
    "cnn": (Cnn, (2, 4, 4)),
    "lstm": (Lstm, (6, 5)),
}


def check(wide, shape, batch=3):
    """Against the loop over its own lanes, gradients and buffers too, with inputs that differ by lane."""
    inputs = [((torch.randn(batch, *shape).double(),), {}) for _ in range(wide.n)]
    oracle.compare([wide.lane(i) for i in range(wide.n)], wide, inputs, gradients=True).check(rtol=1e-9)
    assert wide.explain(measure=False).coverage == 1.0


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_selected_lanes(case, order):
    make, shape = CASES[case]
    models = [make().double() for _ in range(4)]
    wide = wide_compiler.compile(models, torch.randn(2, *shape).double(), config=QUICK)
    wide.stacked(torch.randn(4, 2, *shape).double()).sum().backward()
    state = copy.deepcopy(wide.state_dict())
    gradients = {name: p.grad.clone() for name, p in wide.named_parameters()}
    parameters = dict(wide.named_parameters())
    captures = dict(wide.programs.captures)
    assert wide.select_lanes(order) is wide and wide.n == len(order)
    for name, p in wide.named_parameters():
        assert p is parameters[name]
        assert torch.equal(p, state[name][order]) and torch.equal(p.grad, gradients[name][order])
    for lane, source in enumerate(order):
        for name, value in wide.lane(lane).state_dict().items():
            whole = state[name]
            assert torch.equal(value, whole[source] if name != "offset" else whole)
    check(wide, shape)
    wide.eval()
    check(wide, shape, batch=5)
    assert all(wide.programs.captures[mode] == known for mode, known in captures.items())  # none made anew


def test_an_earlier_loss_may_still_be_held():
    wide = wide_compiler.compile(nn.Linear(5, 3).double(), torch.randn(2, 5).double(), n=3, config=QUICK)
    held = wide.shared(torch.randn(2, 5).double())
    held.sum().backward()
    used, spent = wide.shared(torch.randn(2, 5).double()), wide.weight
    wide.select_lanes([0, 2, 1, 1])
    assert wide.weight is spent
    check(wide, (5,))
    with pytest.raises(RuntimeError):  # its weights are gone
        used.sum().backward()
    optimizer = torch.optim.SGD(wide.parameters(), 0.1)
    before = wide.weight.detach().clone()
    wide.shared(torch.randn(2, 5).double()).sum().backward()
    optimizer.step()
    assert not torch.equal(before, wide.weight)
    wide.weight.register_hook(lambda gradient: None)
    held = wide.shared(torch.randn(2, 5).double())
    with pytest.raises(RuntimeError, match=r"`del losses`.*it has gradient hooks"):
        wide.select_lanes([0])
    assert wide.n == 4 and len(wide.weight) == len(wide.bias) == 4  # what fails changes nothing
    check(wide, (5,))


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_gradient_hooks_stay_or_the_selection_is_refused(register):
    wide = wide_compiler.compile(nn.Linear(5, 3), torch.randn(2, 5), n=3, config=QUICK)
    calls = []
    getattr(wide.weight, register)(lambda _: calls.append(1))
    wide.select_lanes([0, 1])
    wide.shared(torch.randn(2, 5)).sum().backward()
    assert calls == [1]
    held = wide.shared(torch.randn(2, 5))
    with pytest.raises(UsageError, match="it has gradient hooks"):
        wide.select_lanes([0])
    held.sum().backward()
    assert calls == [1, 1]


def test_to_many_lanes_and_from_one():
    wide = wide_compiler.compile([nn.Linear(5, 3).double()], torch.randn(2, 5).double(), config=QUICK)
    check(wide.select_lanes([0, 0, 0]), (5,))
    check(wide.select_lanes([2]), (5,))
    check(wide.select_lanes([0] * 6), (5,))
    wide.seed(3)
    wide.select_lanes([5, 0])
    assert wide.seeds.peek().tolist() == [8, 3]


def test_measured_anew_for_another_number_of_lanes():
    """A copy with other lanes runs its own way, and so does the model it was copied from."""
    models = [nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double() for _ in range(6)]
    wide = wide_compiler.compile(models, torch.randn(2, 5).double(), config=WideConfig(tune_seconds=0.05))
    wide.stacked(torch.randn(6, 2, 5).double())
    twin = copy.deepcopy(wide).select_lanes([0, 1])
    check(twin, (5,))
    check(wide, (5,))


def test_lanes_that_differ_in_their_python():
    models = [
        Fn(lambda m, x: m.layer(x) * m.factor, layer=nn.Linear(5, 3).double(), factor=float(i))
        for i in range(4)
    ]
    wide = wide_compiler.compile(models, torch.randn(2, 5).double(), config=QUICK)
    wide.select_lanes([3, 1, 1])
    x = torch.randn(2, 5).double()
    for lane, source in enumerate([3, 1, 1]):
        torch.testing.assert_close(wide.shared(x)[lane], models[source](x))
    wide.select_lanes([1, 2])  # one kind of lane is left
    torch.testing.assert_close(wide.shared(x)[0], models[1](x))


def test_members_that_run_as_python_keep_their_own_state():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(5, 3).double(), 0

        def forward(self, x):
            self.calls += 1
            return self.layer(x) if x.sum().item() > 0 else -self.layer(x)

    models = [Counting() for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 5).double(), config=QUICK)
    x = torch.randn(2, 5).double()
    expected = wide.shared(x)
    wide.select_lanes([2, 0, 0])
    torch.testing.assert_close(wide.shared(x), expected[[2, 0, 0]])
    assert len({id(member) for member in wide.skeletons.each()}) == 3


def test_views_follow_their_lane():
    models = [nn.Linear(5, 3) for _ in range(4)]
    wide = wide_compiler.compile(models, torch.randn(2, 5), views=True, config=QUICK)
    gone = models[3].weight.detach().clone()
    wide.select_lanes([2, 0, 1, 0])
    with torch.no_grad():
        wide.weight.fill_(7)
    assert all(bool((models[lane].weight == 7).all()) for lane in (0, 1, 2))
    assert torch.equal(models[3].weight, gone)


def test_a_shared_trunk_stays_one():
    trunk = nn.Linear(5, 4).double()
    models = [nn.Sequential(trunk, nn.Linear(4, 3).double()) for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 5).double(), config=QUICK)
    wide.select_lanes([2, 0])
    assert wide.get_parameter("0.weight").shape == (4, 5) and wide.get_parameter("1.weight").shape == (
        2,
        3,
        4,
    )
    x = torch.randn(2, 5).double()
    torch.testing.assert_close(wide.shared(x), torch.stack([models[2](x), models[0](x)]))


def test_registered_modules_are_reordered_but_not_resized():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5))

        def forward(self, x):
            return x * self.weight

    @wide_compiler.register("Scale")
    class WideScale(nn.Module):
        @classmethod
        def from_modules(cls, modules):
            return cls(torch.stack([m.weight.detach() for m in modules]))

        def __init__(self, weight):
            super().__init__()
            self.weight = nn.Parameter(weight)

        def forward(self, x):
            return x * self.weight.unsqueeze(1)

    try:
        models = [nn.Sequential(Scale(), nn.Linear(5, 3)) for _ in range(3)]
        wide = wide_compiler.compile(models, torch.randn(2, 5), config=QUICK)
        x = torch.randn(2, 5)
        expected = wide.shared(x)
        wide.select_lanes([2, 0, 1])
        torch.testing.assert_close(wide.shared(x), expected[[2, 0, 1]])
        with pytest.raises(wide_compiler.InputError, match="0 is a registered wide module"):
            wide.select_lanes([0, 1])
    finally:
        wide_compiler.REGISTRY.unregister("Scale")


def test_held_lanes():
    wide = wide_compiler.compile(Cnn(), torch.randn(2, 2, 4, 4), n=3, config=QUICK).hold_lanes([1])
    mean = wide.get_buffer("1.running_mean")
    wide.stacked(torch.randn(3, 4, 2, 4, 4)).sum().backward()
    assert mean.abs().sum(1).bool().tolist() == [True, False, True]
    wide.hold_lanes([])
    wide.stacked(torch.randn(3, 4, 2, 4, 4))
    assert mean.abs().sum(1).bool().all()


def test_bad_input():
    wide = wide_compiler.compile(nn.Linear(5, 3), torch.randn(2, 5), n=3, config=QUICK)
    with pytest.raises(IndexError, match="lane 3 is out of range for 3 lanes"):
        wide.select_lanes([0, 3])
    with pytest.raises(ValueError, match="at least one lane"):
        wide.select_lanes([])
    with pytest.raises(IndexError, match="lane 5 is out of range"):
        wide.hold_lanes([5])


def test_gradients_keep_the_layout_of_their_parameters():
    """PyTorch's fused Adam on a CPU reads a gradient with the parameter's strides, whatever its own are."""
    wide = wide_compiler.compile(
        [nn.Conv2d(2, 4, 3).double() for _ in range(3)], torch.randn(1, 2, 5, 5).double()
    )
    wide.weight.data = wide.weight.data.movedim(2, -1).contiguous().movedim(-1, 2)
    wide.shared(torch.randn(1, 2, 5, 5).double()).square().sum().backward()
    wide.select_lanes([2, 0, 1])
    assert wide.weight.grad.stride() == wide.weight.stride()
    plain = wide.weight.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    plain.grad = wide.weight.grad.contiguous()
    for p, fused in ((wide.weight, True), (plain, False)):
        torch.optim.Adam([p], 0.1, fused=fused).step()
    torch.testing.assert_close(wide.weight.detach(), plain.detach())


def test_outputs_in_a_reference_cycle_hold_nothing_back():
    models = [nn.Linear(4, 4) for _ in range(3)]
    x = torch.randn(2, 4)
    wide = wide_compiler.compile(models, x, config=WideConfig(tune_seconds=0))
    gc.disable()
    try:
        outputs = [wide.shared(x)]
        outputs.append(outputs)
        del outputs
        wide.select_lanes([2, 0])
    finally:
        gc.enable()
    torch.testing.assert_close(wide.shared(x)[0], models[2](x))
