"""Lanes that differ in Python as one graph: numbers per lane where that can be, else an error by lane."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from untouched import refused
from wide_compiler import AlignmentError, oracle

x = torch.randn(3, 4).double()


class Fn(nn.Module):
    def __init__(self, function, **attributes):
        super().__init__()
        self.fc, self.other, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.function(self, x)


def by_k(function, *ks):
    return [Fn(function, k=k) for k in ks]


def compare(models, wide, x):
    oracle.compare(models, wide, shared_input=((x,), {}), gradients=True, learning_rate=0.1).check(rtol=1e-8)


def equal(models):
    """Equal to the loop in values and gradients, at the sample's batch and at another."""
    models = [model.double() for model in models]
    wide = wide_compiler.compile(models, x)
    compare(models, wide, x)
    compare(models, wide, torch.cat([x, x + 1]))
    return wide


def equal_or_refused(models):
    """What cannot be one graph is refused by lane; a wrong number is neither."""
    models = [model.double() for model in models]
    try:
        wide = wide_compiler.compile(models, x)
    except AlignmentError as error:
        assert "lane 1" in str(error)
        return
    compare(models, wide, x)


PER_LANE = {
    "sign": (lambda m, x: m.fc(x) * m.k, (1.0, -1.0, 1.0)),
    "int": (lambda m, x: m.fc(x) * m.k + m.k, (2, 3, 5)),
    "power": (lambda m, x: m.fc(x).abs() ** m.k, (2.0, 3.0, 2.0)),
    "clamp": (lambda m, x: m.fc(x).clamp(-m.k, m.k), (0.1, 0.5, 0.3)),
    "alpha": (lambda m, x: torch.add(m.fc(x), x, alpha=m.k), (2, 3, 4)),
    "layer norm eps": (lambda m, x: F.layer_norm(m.fc(x), (4,), eps=m.k), (1e-5, 0.5, 0.1)),
    "layer norm eps, default last": (lambda m, x: F.layer_norm(m.fc(x), (4,), eps=m.k), (0.5, 0.1, 1e-5)),
    "group norm eps": (lambda m, x: F.group_norm(m.fc(x), 2, eps=m.k), (1e-5, 0.5, 0.1)),
    "dim": (lambda m, x: m.fc(x).softmax(m.k), (0, 1, -1)),
    "shift": (lambda m, x: m.fc(x).roll(m.k, 1), (1, 2, 3)),
    "slope": (lambda m, x: F.leaky_relu(m.fc(x), m.k), (0.2, 0.3, 0.4)),
    "elu": (lambda m, x: F.elu(m.fc(x), m.k), (0.5, 2.0, 3.0)),
    "softplus": (lambda m, x: F.softplus(m.fc(x), m.k), (0.5, 2.0, 3.0)),
    "hardtanh": (lambda m, x: F.hardtanh(m.fc(x), -m.k, m.k), (0.1, 0.2, 0.3)),
    "two numbers": (lambda m, x: F.threshold(m.fc(x), m.k, 1 - m.k), (0.1, 0.2, 0.3)),
    "a tensor made while tracing": (lambda m, x: m.fc(x) + torch.tensor([1.0, 2.0, m.k, 4.0]), (2.0, 3.0)),
    "a full tensor": (lambda m, x: m.fc(x) + torch.full((4,), m.k), (2.0, 3.0)),
    "nested tensors": (lambda m, x: m.fc(x) * m.k[0]["t"], [[{"t": torch.rand(4).double()}] for _ in "abc"]),
}
# Where the number is what the op takes when none is given, an op leaves it out of the graph.
DEFAULTS = {
    "slope": (lambda m, x: F.leaky_relu(m.fc(x), m.k), (0.01, 0.2)),
    "alpha": (lambda m, x: torch.add(m.fc(x), x, alpha=m.k), (1, 2)),
    "elu": (lambda m, x: F.elu(m.fc(x), m.k), (1.0, 2.0)),
    "softplus": (lambda m, x: F.softplus(m.fc(x), m.k), (1, 2)),
    "gelu": (lambda m, x: F.gelu(3 * m.fc(x), approximate=m.k), ("none", "tanh")),
    "keepdim": (lambda m, x: m.fc(x) + m.fc(x).sum(1, keepdim=m.k)[:1].sum(), (False, True)),
    "unbiased": (lambda m, x: m.fc(x).std(1, correction=m.k), (1, 0)),
}


@pytest.mark.parametrize("name", PER_LANE)
def test_a_number_that_differs_by_lane(name):
    function, ks = PER_LANE[name]
    equal(by_k(function, *ks))


@pytest.mark.parametrize("turned", [False, True], ids=["default first", "default last"])
@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_beside_another_number(name, turned):
    function, ks = DEFAULTS[name]
    equal_or_refused(by_k(function, *(ks[::-1] if turned else ks)))


@pytest.mark.parametrize("slopes", [(0.01, 0.2), (0.2, 0.01), (0.1, 0.2)])
def test_the_slope_of_a_leaky_relu_is_each_lanes_own(slopes):
    equal([nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(s)) for s in slopes])


@pytest.mark.parametrize("key", ["eps", "momentum"])
def test_batch_norm_in_training_with_its_own_number_in_each_lane(key):
    equal([nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, **{key: v})) for v in (0.1, 0.5, 0.9)])


def test_dropout_at_a_rate_of_its_own():
    models = [nn.Sequential(nn.Linear(4, 64), nn.Dropout(p)).double() for p in (0.0, 0.5, 1.0, 0.9)]
    wide = wide_compiler.compile(models, x)
    out, plain = wide.shared(x), torch.stack([model[0](x) for model in models])
    zeros = (out == 0).double().mean((1, 2)).tolist()
    assert torch.allclose(out[0], plain[0], atol=1e-6) and zeros[2] == 1.0
    assert 0.3 < zeros[1] < 0.7 and 0.8 < zeros[3] < 1.0
    kept = out[1] != 0
    assert torch.allclose(out[1][kept], 2 * plain[1][kept], atol=1e-5)
    for model in models:
        model.eval()
    oracle.compare(models, wide.eval(), shared_input=((x,), {})).check(rtol=1e-5)


def test_lanes_of_one_variant_share_a_capture_and_the_rest_runs_by_rules():
    wide = equal(by_k(PER_LANE["sign"][0], 1.0, -1.0, 1.0, -1.0))
    assert len(wide.skeletons.variants) == 2
    assert [row.how for row in wide.explain(measure=False).rows] == ["rule", "rule"]


@pytest.mark.parametrize(
    ("function", "ks", "says"),
    [
        (lambda m, x: getattr(m.fc(x), m.k)(), ("relu", "relu", "tanh"), ["lane 2", "tanh", "relu"]),
        (lambda m, x: m.fc(m.fc(x)) if m.k else m.fc(x), (0, 1, 0), ["lane 1", "operations"]),
        (lambda m, x: m.fc(x) + (m.other(x) if m.k else x), (1, 1, 0), ["lane 2"]),
        (lambda m, x: m.fc(x) - x if m.k else x - m.fc(x), (0, 0, 1), ["lane 2", "has other inputs"]),
    ],
)
def test_lanes_whose_python_leads_to_different_computations(function, ks, says):
    models = [model.double() for model in by_k(function, *ks)]
    with refused(AlignmentError, *says, of=models):
        wide_compiler.compile(models, x)


def test_a_lane_that_uses_another_layer():
    equal_or_refused(by_k(lambda m, x: getattr(m, m.k)(x), "fc", "other"))


@pytest.mark.parametrize("k", [(2, 3), ("a", "b")])
def test_a_plain_output_that_differs_by_lane(k):
    equal_or_refused(by_k(lambda m, x: {"y": m.fc(x), "k": m.k}, *k))


def test_an_output_structure_that_differs_by_lane():
    equal_or_refused(by_k(lambda m, x: m.k([m.fc(x), x]), tuple, list))


def test_sizes_that_differ_by_lane_are_refused_by_name():
    models = [model.double() for model in by_k(lambda m, x: m.fc(x)[:, : m.k], 1, 2)]
    with refused(AlignmentError, "lane 1", of=models):
        wide_compiler.compile(models, x)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor * 10.0, None


class Branch(nn.Module):
    def forward(self, x, factor):
        return x * factor if x.sum() > 0 else -x * factor


def test_a_number_given_to_an_autograd_function():
    equal_or_refused(by_k(lambda m, x: Scaled.apply(m.fc(x), m.k), 2.0, 3.0))


def test_a_number_given_to_a_module_kept_whole():
    equal_or_refused([Fn(lambda m, x: m.branch(m.fc(x), m.k), k=k, branch=Branch()) for k in (2.0, 3.0)])
