"""Every network with every optimiser under every kind of parallelism: 20 steps, equal to one process.

Beside each equality stands a count of who did the work. Adam and AdamW run here with one network under every
kind, and with every network under one, half of these by day; `NIGHTLY=1` runs all.
"""

import copy
import itertools
from typing import NamedTuple

import pytest
import torch

import wide_compiler.signals as gt
from nightly import NIGHTLY, one_of
from signals.nets import NETS
from signals.placed import signal, train, work

pytestmark = pytest.mark.usefixtures("workers")
STEPS = 20

# Ops of the first stage and of the second, forward and backward, and how often a step runs each.
DENSE = (
    ("aten.tanh.default", 1),
    ("aten.tanh_backward.default", 1),
    ("aten.mse_loss.default", 1),
    ("aten.mse_loss_backward.default", 1),
)
MARKS = {
    "mlp": DENSE,
    "tied": DENSE,
    "cnn": (
        ("aten.convolution.default", 1),
        ("aten.convolution_backward.default", 1),
        ("aten.nll_loss_forward.default", 1),
        ("aten.nll_loss_backward.default", 1),
    ),
    "transformer": (
        ("aten.embedding.default", 1),
        ("aten.embedding_dense_backward.default", 1),
        ("aten.native_layer_norm.default", 2),
        ("aten.native_layer_norm_backward.default", 2),
    ),
}
FIRST_PARAMETER = {
    "mlp": "inner.weight",
    "tied": "inner.weight",
    "cnn": "conv.weight",
    "transformer": "tokens.weight",
}
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3),
}


class Layout(NamedTuple):
    """stages: the signals of the two stages. forward, backward: the workers of each stage. inside: parameters
    are made inside the first signal's context, which cuts them."""

    stages: tuple[str, str]
    forward: tuple[list[int], list[int]]
    backward: tuple[list[int], list[int]]
    rows: int = 8
    inside: bool = False

    def placed(self, net, x, y):
        first, second = self.stages
        if first == second:
            with gt.signal.context(first):
                return net.loss(net(x), y)
        with gt.signal.context(first):
            hidden = net.first(x)
        with gt.signal.context(second):
            return net.loss(net.second(hidden), y)


FOUR, LEFT, RIGHT = [0, 1, 2, 3], [0, 1], [2, 3]


def data():
    signal("all", FOUR)
    return Layout(("all", "all"), (FOUR, FOUR), (FOUR, FOUR))


def model():
    """Parameters made inside a context are cut by it."""
    signal("cut", LEFT)
    return Layout(("cut", "cut"), (LEFT, LEFT), (LEFT, LEFT), inside=True)


def pipeline():
    signal("stage_1", LEFT, backward="stage_1_backward")
    signal("stage_1_backward", RIGHT)
    signal("stage_2", RIGHT, backward="stage_2_backward")
    signal("stage_2_backward", LEFT)
    return Layout(("stage_1", "stage_2"), (LEFT, RIGHT), (RIGHT, LEFT))


def hybrid():
    signal("rows", FOUR)
    signal("columns", LEFT, axis=1)
    return Layout(("rows", "columns"), (FOUR, LEFT), (FOUR, LEFT))


def backward_elsewhere():
    signal("there", LEFT, backward="back")
    signal("back", RIGHT)
    return Layout(("there", "there"), (LEFT, LEFT), (RIGHT, RIGHT))


def two_of_four():
    signal("pair", [1, 3])
    return Layout(("pair", "pair"), ([1, 3], [1, 3]), ([1, 3], [1, 3]))


def uneven():
    signal("three", [0, 1, 2])
    three = [0, 1, 2]
    return Layout(("three", "three"), (three, three), (three, three), rows=100)


LAYOUTS = [data, model, pipeline, hybrid, backward_elsewhere, two_of_four, uneven]


CASES = [
    (layout, name, optimizer)
    for layout, name, optimizer in itertools.product(LAYOUTS, NETS, OPTIMIZERS)
    if optimizer == "sgd" or name == "mlp" or layout is data or NIGHTLY
]


@pytest.mark.parametrize(
    ("layout", "name", "optimizer"), one_of(2, CASES), ids=lambda v: v if isinstance(v, str) else v.__name__
)
def test_equal_to_one_process(layout, name, optimizer):
    placed = layout()
    torch.manual_seed(0)
    alone = NETS[name]().double()
    x, y = alone.data(placed.rows)
    if placed.inside:
        with gt.signal.context(placed.stages[0]):
            net = NETS[name]().double()
        net.load_state_dict(alone.state_dict())
        assert gt.debug.placement(net.get_parameter(FIRST_PARAMETER[name]))[1] == "S(0)"
    else:
        net = gt.adopt(copy.deepcopy(alone))

    def loss(net, x, y):
        return net.loss(net(x), y)

    make = OPTIMIZERS[optimizer]
    expected = train(alone, loss, (x, y), make(alone.parameters()), STEPS)
    with work() as done:
        got = train(net, placed.placed, (gt.tensor(x), gt.tensor(y)), make(net.parameters()), STEPS)
    assert expected[-1] < expected[0] * 0.999
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-7, atol=1e-7)
    if optimizer == "sgd":
        for (key, a), b in zip(alone.state_dict().items(), net.state_dict().values(), strict=True):
            torch.testing.assert_close(b.cpu(), a, rtol=1e-7, atol=1e-7, msg=lambda m, k=key: f"{k}: {m}")
    (first, second), (first_back, second_back) = placed.forward, placed.backward
    by_mark = (first, first_back, second, second_back)
    for (op, times), workers in zip(MARKS[name], by_mark, strict=True):
        counted = [d[op] for d in done]
        assert counted == [STEPS * times * (w in workers) for w in range(4)], (op, counted)
