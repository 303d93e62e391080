"""Registered classes are compared with their members when a lane graph is built, in both layouts."""

import contextlib
import copy

import pytest
import torch
from torch import nn

import wide_compiler
from untouched import refused
from wide_compiler import REGISTRY, ValidationError, WideConfig, oracle
from wide_compiler.measure.compare import exact_products

N = 3
X = torch.randn(2, 4)


class Gain(nn.Module):
    """A member: `[B, 4]` in and out."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(4) + 0.5)
        self.shift = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return x * self.gain + self.shift


class Stacked(nn.Module):
    """What the classes here have in common: the members' parameters, stacked under their names."""

    @classmethod
    def from_modules(cls, modules):
        wide = cls()
        for name, parameter in modules[0].named_parameters():
            each = [dict(m.named_parameters())[name].detach() for m in modules]
            setattr(wide, name, nn.Parameter(torch.stack(each), parameter.requires_grad))
        for name, _ in modules[0].named_buffers():
            wide.register_buffer(name, torch.stack([dict(m.named_buffers())[name] for m in modules]))
        return wide


class WideGain(Stacked):
    def forward(self, x):
        return x * self.gain[:, None] + self.shift[:, None]


class PackedGain(nn.Module):
    """N of them as the documents write such classes: `[B, N*4]` in and out."""

    def __init__(self, modules):
        super().__init__()
        self.all_gains = nn.Parameter(torch.cat([m.gain.detach() for m in modules]))
        self.all_shifts = nn.Parameter(torch.cat([m.shift.detach() for m in modules]))

    @classmethod
    def from_modules(cls, modules):
        return cls(modules)

    def forward(self, x):
        assert x.shape[1] == len(self.all_gains)
        return x * self.all_gains + self.all_shifts


@contextlib.contextmanager
def registered(name, wide):
    wide_compiler.register(name, wide)
    try:
        yield
    finally:
        REGISTRY.unregister(name)


def nets(make=Gain, n=N):
    return [nn.Sequential(nn.Linear(4, 4), make(), nn.Tanh()) for _ in range(n)]


def row_of(wide, path="1"):
    return next(row for row in wide.explain(measure=False).rows if row.path == path)


def check_training(models, wide, shape=(5, 4)):
    """Outputs, gradients to the parameters around, buffers, and one step of SGD."""
    inputs = [((torch.randn(shape),), {}) for _ in models]
    oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1).check(rtol=1e-4)
    explanation = wide.explain(measure=False)
    assert explanation.coverage == 1.0 and not explanation.counts.get("loop")


# Classes that are wrong.


class HalfAsMuch(WideGain):
    def forward(self, x):
        return super().forward(x) / 2


class TurnedRound(WideGain):
    @classmethod
    def from_modules(cls, modules):
        return super().from_modules(list(modules)[::-1])


class FirstLaneOnly(WideGain):
    def forward(self, x):
        return x * self.gain[0] + self.shift[:, None]


class InputsMixed(WideGain):
    def forward(self, x):
        return x.mean(0, keepdim=True) * self.gain[:, None] + self.shift[:, None]


class RightForTwo(WideGain):
    """Lane 2 and all after it get lane 1's weights."""

    def forward(self, x):
        lanes = torch.arange(len(x)).clamp(max=1)
        return x * self.gain[lanes][:, None] + self.shift[lanes][:, None]


class NoGradientToInput(WideGain):
    def forward(self, x):
        return super().forward(x.detach())


class NoGradientToShift(WideGain):
    def forward(self, x):
        return x * self.gain[:, None] + self.shift.detach()[:, None]


class NotTrainable(WideGain):
    @classmethod
    def from_modules(cls, modules):
        wide = super().from_modules(modules)
        for name in ("gain", "shift"):
            values = getattr(wide, name).detach()
            delattr(wide, name)
            wide.register_buffer(name, values)
        return wide


class WritesItsInput(WideGain):
    def forward(self, x):
        return x.mul_(self.gain[:, None]).add(self.shift[:, None])


class OtherDtype(WideGain):
    def forward(self, x):
        return super().forward(x).double()


class WrongPackedGain(PackedGain):
    def forward(self, x):
        return super().forward(x).flip(1)


WRONG = [
    *(HalfAsMuch, TurnedRound, FirstLaneOnly, InputsMixed, RightForTwo, NoGradientToInput, NoGradientToShift),
    *(NotTrainable, WritesItsInput, OtherDtype, WrongPackedGain),
]


@pytest.mark.parametrize("wide", WRONG, ids=lambda c: c.__name__)
def test_a_wrong_class_is_refused_with_path_class_and_difference(wide):
    models = nets()
    says = ["1:", wide.__name__, "Gain", "[N, B, ...]", "[B, N*C, ...]", "REGISTRY.unregister('Gain')"]
    with registered("Gain", wide), refused(ValidationError, *says, of=models):
        wide_compiler.compile(models, X)


@pytest.mark.parametrize("wide", [FirstLaneOnly, TurnedRound, RightForTwo], ids=lambda c: c.__name__)
def test_mixed_up_lanes_are_seen_though_all_lanes_are_copies(wide):
    model = nets()[0]
    with registered("Gain", wide), refused(ValidationError, wide.__name__, of=model):
        wide_compiler.compile(model, X, n=N, init="copy")


@pytest.mark.parametrize("sample", [torch.zeros(2, 4), torch.ones(1, 4)], ids=["zeros", "one row"])
@pytest.mark.parametrize("wide", [HalfAsMuch, InputsMixed], ids=lambda c: c.__name__)
def test_a_wrong_class_is_seen_whatever_the_sample(wide, sample):
    models = [nn.Sequential(Gain(), nn.Tanh()) for _ in range(N)]
    with registered("Gain", wide), refused(ValidationError, wide.__name__, of=models):
        wide_compiler.compile(models, sample)


def test_the_error_has_the_largest_difference_in_both_layouts():
    with registered("Gain", HalfAsMuch), pytest.raises(ValidationError) as caught:
        wide_compiler.compile(nets(), X)
    stacked, packed = str(caught.value).split("packed, as")
    assert "output 0 differs from the loop by" in stacked and "lane" in stacked
    assert "raises RuntimeError" in packed


# Classes that are right.


@pytest.mark.parametrize("n", [1, 2, N, 5])
@pytest.mark.parametrize(
    ("wide", "strategy"),
    [(WideGain, "registered"), (PackedGain, "registered, packed")],
    ids=["stacked", "packed"],
)
def test_a_right_class_runs_in_its_layout(wide, strategy, n):
    models = nets(n=n)
    with registered("Gain", wide):
        fused = wide_compiler.compile(models, X)
    row = row_of(fused)
    assert row.how == "rule" and row.why == ""
    assert row.strategy == strategy or n == 1
    check_training(models, fused)
    x = torch.randn(7, 4)
    torch.testing.assert_close(fused.shared(x), torch.stack([m(x) for m in models]))
    packed = fused(wide_compiler.pack([x] * n))
    torch.testing.assert_close(wide_compiler.unpack(packed, n)[-1], models[-1](x))


class Block(nn.Module):
    """A convolution with a norm, which has buffers and behaves otherwise in training."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


class GroupedBlock(nn.Module):
    """As the documents have it: one grouped convolution, and one norm over N*C channels."""

    def __init__(self, modules):
        super().__init__()
        n = len(modules)
        self.op = nn.Conv2d(n * 2, n * 4, 3, padding=1, groups=n)
        self.norm = nn.BatchNorm2d(n * 4)
        with torch.no_grad():
            for own, part in ((self.op, "conv"), (self.norm, "norm")):
                for name, tensor in own.state_dict().items():
                    each = [m.get_submodule(part).state_dict()[name] for m in modules]
                    tensor.copy_(torch.cat(each) if tensor.dim() else each[0])

    @classmethod
    def from_modules(cls, modules):
        return cls(modules)

    def forward(self, x):
        return self.norm(self.op(x)).relu()


class NoStatistics(GroupedBlock):
    """Normalises rightly in training, and never learns the statistics for eval."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        norm = self.norm
        return nn.functional.batch_norm(self.op(x), None, None, norm.weight, norm.bias, True).relu()


class AlwaysTraining(GroupedBlock):
    def forward(self, x):
        norm = self.norm
        return nn.functional.batch_norm(self.op(x), None, None, norm.weight, norm.bias, True).relu()


def blocks(n=N):
    models = [nn.Sequential(nn.Conv2d(3, 2, 1), Block(), nn.Flatten(), nn.LazyLinear(2)) for _ in range(n)]
    for model in models:
        model(torch.randn(4, 3, 5, 5))  # statistics of its own
    return models


IMAGES = torch.randn(2, 3, 5, 5)


def test_a_grouped_convolution_with_a_norm_in_training_and_eval():
    models = blocks()
    with registered("Block", GroupedBlock):
        wide = wide_compiler.compile(models, IMAGES)
        check_training(models, wide, IMAGES.shape)
        assert row_of(wide).strategy == "registered, packed"
        for _ in range(2):
            xs = [torch.randn(6, 3, 5, 5) for _ in models]
            expected = [m(x) for m, x in zip(models, xs, strict=True)]
            torch.testing.assert_close(wide.each(xs), expected)
        means = torch.cat([m[1].norm.running_mean for m in models])
        torch.testing.assert_close(wide.get_submodule("1").norm.running_mean, means)
        wide.eval()
        expected = [m.eval()(IMAGES) for m in models]
        torch.testing.assert_close(list(wide.shared(IMAGES)), expected)
        assert row_of(wide).strategy == "registered, packed"


def test_models_in_eval_get_a_class_in_eval():
    models = [m.eval() for m in blocks()]
    with registered("Block", GroupedBlock):
        wide = wide_compiler.compile(models, IMAGES)
    assert not wide.get_submodule("1").training
    torch.testing.assert_close(list(wide.shared(IMAGES)), [m(IMAGES) for m in models])


def test_a_class_that_does_not_keep_its_buffers_is_refused():
    models = blocks()
    says = ["NoStatistics", "buffer norm."]
    with registered("Block", NoStatistics), refused(ValidationError, *says, of=models):
        wide_compiler.compile(models, IMAGES)


def test_what_is_wrong_in_one_mode_only_is_refused_where_that_mode_is_first_used():
    models = [m.eval() for m in blocks()]
    with registered("Block", NoStatistics):
        wide = wide_compiler.compile(models, IMAGES)
    torch.testing.assert_close(list(wide.shared(IMAGES)), [m(IMAGES) for m in models])
    wide.train()
    with pytest.raises(ValidationError, match=r"1: NoStatistics.*buffer norm\."):
        wide.shared(IMAGES)
    with registered("Block", AlwaysTraining), refused(ValidationError, "AlwaysTraining", "output 0"):
        wide_compiler.compile(models, IMAGES)


def test_measuring_leaves_the_buffers_of_a_registered_module_alone():
    with registered("Block", GroupedBlock):
        wide = wide_compiler.compile(blocks(), IMAGES)
    mean = wide.get_submodule("1").norm.running_mean
    before = mean.clone()
    wide.explain()
    assert torch.equal(mean, before)


class Dropping(Gain):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


class WideDropping(WideGain):
    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


class WrongDropping(HalfAsMuch):
    pass


class Noisy(Gain):
    """Draws in eval too."""

    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


class WideNoisy(WideGain):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


def test_members_that_draw_random_numbers_are_compared_in_eval():
    models = nets(Dropping)
    with registered("Dropping", WideDropping):
        wide = wide_compiler.compile(models, X)
    assert row_of(wide).strategy == "registered" and "in eval" in row_of(wide).why
    out = wide.shared(torch.ones(50, 4))
    assert out.unique().numel() > 2 * N  # dropout is at work
    x = torch.randn(5, 4)
    torch.testing.assert_close(wide.eval().shared(x), torch.stack([m.eval()(x) for m in models]))
    with registered("Dropping", WrongDropping), refused(ValidationError, "WrongDropping"):
        wide_compiler.compile(models, X)
    with registered("Noisy", WideNoisy):
        noisy = wide_compiler.compile(nets(Noisy), X)
    assert "only shapes were compared" in row_of(noisy).why


class TwoOfEach(Gain):
    """Two inputs, one of them whole numbers; two outputs."""

    def forward(self, x, index):
        return x * self.gain[index], x + self.shift


class PackedTwo(PackedGain):
    def forward(self, x, index):
        n = x.shape[1] // 4
        lanes = torch.arange(n).repeat_interleave(4)
        return x * self.all_gains[index + 4 * lanes], x + self.all_shifts


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.two = TwoOfEach()

    def forward(self, x, index):
        a, b = self.two(x, index)
        c, d = self.two(b, index=index)
        return a + d, b * c


def test_several_inputs_outputs_and_calls_packed():
    models = [Calls() for _ in range(N)]
    index = torch.tensor([[0, 1, 2, 3], [3, 3, 0, 1]])
    with registered("TwoOfEach", PackedTwo):
        wide = wide_compiler.compile(models, (X, index))
    rows = [row for row in wide.explain(measure=False).rows if row.op == "TwoOfEach"]
    assert [row.strategy for row in rows] == ["registered, packed"] * 2
    assert wide.explain(measure=False).coverage == 1.0
    inputs = [((torch.randn(5, 4), torch.randint(4, (5, 4))), {}) for _ in models]
    oracle.compare(models, wide, inputs).check(rtol=1e-5)


class Transposed(nn.Module):
    """Keeps a weight the other way round, and both biases as one."""

    @classmethod
    def from_modules(cls, modules):
        wide = cls()
        wide.kernel = nn.Parameter(torch.stack([m.weight.detach().T for m in modules]))
        wide.offset = nn.Parameter(torch.cat([m.bias.detach() for m in modules]))
        return wide

    def forward(self, x):
        return x @ self.kernel + self.offset.view(len(x), 1, -1)


class TransposedNoGradient(Transposed):
    def forward(self, x):
        return x @ self.kernel.detach() + self.offset.view(len(x), 1, -1)


class Projection(nn.Linear):
    pass


class Both(nn.Module):
    """Two weights of a member as one parameter: compared by sums that no order changes."""

    factor = 1.0

    @classmethod
    def from_modules(cls, modules):
        wide = cls()
        wide.both = nn.Parameter(
            torch.stack([torch.cat([m.gain.detach(), m.shift.detach()]) for m in modules])
        )
        return wide

    def forward(self, x):
        gain, shift = (self.both * self.factor + self.both.detach() * (1 - self.factor)).chunk(2, -1)
        return x * gain[:, None] + shift[:, None]


class BothTwiceTheGradient(Both):
    factor = 2.0


def test_parameters_in_another_form_are_found_by_their_numbers():
    models = nets(lambda: Projection(4, 4))
    with registered("Projection", Transposed):
        wide = wide_compiler.compile(models, X)
    check_training(models, wide)
    with registered("Projection", TransposedNoGradient), refused(ValidationError, "gradient to weight"):
        wide_compiler.compile(models, X)
    models = nets()
    with registered("Gain", Both):
        check_training(models, wide_compiler.compile(models, X))
    with registered("Gain", BothTwiceTheGradient), refused(ValidationError, "gradient to gain, shift"):
        wide_compiler.compile(models, X)


class CarelessGain(WideGain):
    """Makes a parameter of whatever it is given, as many do."""

    @classmethod
    def from_modules(cls, modules):
        wide = super().from_modules(modules)
        for parameter in wide.parameters():
            parameter.requires_grad_(True)
        return wide


def test_what_is_frozen_in_the_members_stays_frozen():
    models = nets()
    for model in models:
        model[1].gain.requires_grad_(False)
    for careless in (CarelessGain, WideGain):
        with registered("Gain", careless):
            wide = wide_compiler.compile(models, X)
        assert [wide.get_submodule("1").gain.requires_grad, wide.get_submodule("1").shift.requires_grad] == [
            False,
            True,
        ]
    with registered("Gain", PackedGain), refused(ValidationError, "all_gains", "frozen"):
        wide_compiler.compile(models, X)


class InPlace(Gain):
    def forward(self, x):
        return x.mul_(self.gain) + self.shift


def test_members_that_write_into_their_input_cannot_be_registered():
    models = nets(InPlace)
    with registered("InPlace", WideGain), refused(ValidationError, "InPlace", "writes into its input"):
        wide_compiler.compile(models, X)


class Positive(Gain):
    def forward(self, x):
        if not torch.compiler.is_compiling() and bool((x < 1).any()):
            raise ValueError("numbers of at least one only")
        return super().forward(x)


def test_members_that_reject_other_numbers_are_compared_on_those_of_the_sample():
    models = [nn.Sequential(Positive(), nn.Tanh()) for _ in range(N)]
    sample = torch.rand(2, 4) + 1
    with registered("Positive", WideGain):
        wide = wide_compiler.compile(models, sample)
    torch.testing.assert_close(wide.shared(sample), torch.stack([m(sample) for m in models]))
    with registered("Positive", HalfAsMuch), refused(ValidationError, "HalfAsMuch"):
        wide_compiler.compile(models, sample)


# A life after compiling.


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("moved", [False, True], ids=["compiled there", "moved there"])
def test_on_a_gpu(moved):
    models = blocks()
    for model in models if not moved else ():
        model.cuda()
    with registered("Block", GroupedBlock):
        wide = wide_compiler.compile(models, IMAGES if moved else IMAGES.cuda()).cuda()
    models = [model.cuda() for model in models]
    x = torch.randn(6, 3, 5, 5, device="cuda")
    with exact_products():
        torch.testing.assert_close(list(wide.shared(x)), [m(x) for m in models])
    assert row_of(wide).strategy == "registered, packed" and wide.explain(measure=False).coverage == 1.0
    dropping = [model.cuda() for model in nets(Dropping)]
    with registered("Dropping", WideDropping):
        wide = wide_compiler.compile(dropping, X.cuda())
    assert "in eval" in row_of(wide).why
    with registered("Gain", RightForTwo), pytest.raises(ValidationError, match="RightForTwo"):
        wide_compiler.compile([model.cuda() for model in nets()], X.cuda())


@pytest.mark.parametrize("wide", [WideGain, PackedGain], ids=lambda c: c.__name__)
def test_in_another_precision(wide):
    models = nets()
    with registered("Gain", wide):
        fused = wide_compiler.compile(models, X).double()
    x = torch.randn(5, 4).double()
    torch.testing.assert_close(fused.shared(x), torch.stack([m.double()(x) for m in models]))
    assert fused.explain(measure=False).coverage == 1.0


@pytest.mark.parametrize("wide", [WideGain, PackedGain], ids=lambda c: c.__name__)
def test_through_torch_compile(wide):
    models = nets()
    with registered("Gain", wide):
        fused = wide_compiler.compile(models, X)
    run = torch.compile(fused.shared, backend="eager")
    x = torch.randn(5, 4)
    torch.testing.assert_close(run(x), torch.stack([m(x) for m in models]))


class Reads(nn.Module):
    """Its own forward branches on values, so all of it runs as a loop."""

    def __init__(self):
        super().__init__()
        self.op, self.fc = Gain(), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.op(x)) if float(x.detach().sum()) > -1e9 else x


def test_a_model_that_runs_as_a_loop_takes_lanes_out_of_the_class():
    models = [Reads() for _ in range(N)]
    with registered("Gain", WideGain):
        wide = wide_compiler.compile(models, X)
    assert wide.explain(measure=False).counts.get("loop")
    x = torch.randn(5, 4)
    out = wide.shared(x)
    torch.testing.assert_close(out, torch.stack([m(x) for m in models]))
    out.sum().backward()
    sum(m(x).sum() for m in models).backward()
    expected = torch.stack([m.op.gain.grad for m in models])
    torch.testing.assert_close(wide.get_submodule("op").gain.grad, expected)


def test_a_model_that_runs_as_a_loop_and_a_class_that_hides_its_lanes():
    models = [Reads() for _ in range(N)]
    with (
        registered("Gain", PackedGain),
        refused(wide_compiler.InputError, "loop over its members", "op: PackedGain", "'gain'", of=models),
    ):
        wide_compiler.compile(models, X)


def test_copies_and_saved_models_need_no_members():
    models = nets()
    with registered("Gain", PackedGain):
        wide = wide_compiler.compile(models, X, config=WideConfig(tune_seconds=0))
    assert not wide.registered.instances
    x = torch.randn(5, 4)
    torch.testing.assert_close(copy.deepcopy(wide).shared(x), torch.stack([m(x) for m in models]))
