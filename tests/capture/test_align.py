"""Are N models of one architecture? If not, the first difference by path, and nothing has changed."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import wide_compiler
from untouched import refused
from wide_compiler import AlignmentError, oracle
from wide_compiler.capture import check_models

x = torch.randn(2, 4)


class Net(nn.Module):
    def __init__(self, hidden=6, act=nn.ReLU, bias=True, tie=False, extra=False, **kind):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, hidden, bias=bias, **kind), act(), nn.Linear(hidden, 4, **kind)
        )
        self.head = nn.Linear(4, 4, **kind)
        self.tail = nn.Linear(4, 4, **kind)
        self.register_buffer("scale", torch.ones(4, **kind))
        if tie:
            self.tail.weight = self.head.weight
        if extra:
            self.extra = nn.Dropout(0.1)

    def forward(self, x):
        return self.tail(self.head(self.body(x))) * self.scale


def frozen(path):
    net = Net()
    net.get_parameter(path).requires_grad_(False)
    return net


def with_buffer(value):
    net = Net()
    net.scale = value
    return net


def without(path, name):
    net = Net()
    delattr(net.get_submodule(path), name)
    return net


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: nn.Linear(4, 4), ["the model", "Linear", "Net", "WideRouter"]),
        (lambda: Net(act=nn.Tanh), ["body.1", "Tanh", "ReLU", "WideRouter"]),
        (lambda: Net(extra=True), ["extra", "Dropout", "nothing", "WideRouter"]),
        (lambda: without("", "tail"), ["tail", "nothing", "Linear", "WideRouter"]),
        (lambda: Net(hidden=5), ["body.0.weight", "(5, 4)", "(6, 4)", "WideRouter"]),
        (lambda: Net(bias=False), ["body.0.bias", "missing", "(6,)", "WideRouter"]),
        (lambda: Net(dtype=torch.float64), ["dtype", "float64", "float32", "make the lanes agree"]),
        (lambda: Net(tie=True), ["tail.weight", "tied to head.weight", "tensor of its own"]),
        (lambda: frozen("head.weight"), ["head.weight", "requires_grad=False", "requires_grad=True"]),
        (lambda: with_buffer(torch.ones(3)), ["scale", "(3,)", "(4,)"]),
        (lambda: with_buffer(torch.ones(4).double()), ["scale", "float64", "float32"]),
        (lambda: with_buffer(None), ["scale", "missing", "(4,)"]),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_first_difference_by_path(other, says, swapped):
    models = [Net(), Net(), other()] if not swapped else [other(), Net(), Net()]
    lane = "lane 1" if swapped else "lane 2"
    with refused(AlignmentError, lane, "lane 0", *says, of=models):
        wide_compiler.compile(models, x)


def test_what_was_got_and_what_lane_0_has_stand_in_this_order():
    with pytest.raises(AlignmentError, match=r"lane 1: body.0.weight is \(5, 4\), lane 0 has \(6, 4\)"):
        check_models([Net(), Net(hidden=5)])
    with pytest.raises(
        AlignmentError, match=r"lane 1: tail.weight is tied to head.weight, lane 0: tail.weight"
    ):
        check_models([Net(), Net(tie=True)])


def test_ties_that_agree_are_no_difference():
    check_models([Net(tie=True), Net(tie=True)])


def test_values_flags_and_python_attributes_are_no_difference():
    models = [Net(), Net(), Net()]
    models[1].scale += 1.0
    models[2].name = "of no lane but this"
    check_models(models)


class Scaled(nn.Module):
    """One tensor called `s`, held in one of three ways."""

    def __init__(self, held):
        super().__init__()
        if held == "parameter":
            self.s = nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
        elif held == "buffer":
            self.register_buffer("s", torch.full((4,), 2.0))
        else:
            self.s = torch.full((4,), 2.0)

    def forward(self, x):
        return x * self.s


@pytest.mark.parametrize("held", [("parameter", "buffer"), ("buffer", "constant"), ("constant", "parameter")])
def test_a_tensor_held_in_another_way(held):
    models = [Scaled(h) for h in held]
    with refused(AlignmentError, "lane 1", "s is a", "lane 0", held[0], held[1], of=models):
        wide_compiler.compile(models, x)


def test_train_flags_that_differ_by_lane_are_refused_or_kept():
    """A wide model has one flag per module: lanes that disagree must not silently take lane 0's."""
    models = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train(i == 0) for i in range(2)]
    try:
        wide = wide_compiler.compile(models, x)
    except AlignmentError as error:
        assert "lane 1" in str(error) and "training" in str(error)
        return
    oracle.compare(models, wide, shared_input=((x,), {})).check(rtol=1e-5)


def local_class(factor):
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x) * factor

    return Local()


def redefined(forward):
    """What a notebook holds after a cell with a class in it has been changed and run again."""
    space = {"nn": nn, "__name__": "notebook"}
    exec(f"class Cell(nn.Linear):\n    def forward(self, x):\n        return {forward}", space)
    return space["Cell"](4, 4)


@pytest.mark.parametrize(
    "models",
    [
        lambda: [local_class(2.0), local_class(3.0)],
        lambda: [redefined("super(type(self), self).forward(x)"), redefined("x + self.bias")],
        lambda: [redefined("x * 2 + self.bias"), redefined("x * 3 + self.bias")],
    ],
    ids=["closure", "other ops", "other number"],
)
def test_classes_of_one_name_that_run_different_code(models):
    """Equal to the loop or refused by name; never lane 0's code for all."""
    models = models()
    try:
        wide = wide_compiler.compile(models, x)
    except AlignmentError as error:
        assert "lane 1" in str(error)
        return
    oracle.compare(models, wide, shared_input=((x,), {})).check(rtol=1e-5)


@pytest.mark.parametrize(
    "norm", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
)
def test_parametrized_models_are_of_one_architecture(norm):
    models = [nn.Sequential(norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2)).eval() for _ in range(3)]
    assert type(models[0][0]) is not type(models[1][0])
    check_models(models)
    wide = wide_compiler.compile(models, x)
    inputs = [((torch.randn(5, 4),), {}) for _ in models]
    oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1).check(rtol=1e-4)


def test_a_parametrized_lane_beside_a_plain_one():
    models = [nn.Sequential(nn.Linear(4, 4)), nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)))]
    with refused(AlignmentError, "lane 1", "0", "ParametrizedLinear", "Linear", of=models):
        wide_compiler.compile(models, x)
