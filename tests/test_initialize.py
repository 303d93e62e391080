"""N lanes out of one model: fresh ones differ, copies agree, a callable decides; the model itself stays."""

import math

import pytest
import torch
from torch import nn

import wide_compiler
from untouched import picture, refused
from wide_compiler import AlignmentError, oracle
from wide_compiler.initialize import make_lanes, reinitialize

x = torch.randn(2, 4)


def model():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.PReLU(), nn.Linear(6, 2))


def pairs(wide, path):
    weights = wide.tensors()[path]
    return [(weights[i], weights[j]) for i in range(wide.n) for j in range(i)]


def unmoved(before, model):
    """Equal but for the random state, which fresh weights are drawn from."""
    return {**picture(model), "rng": None} == {**before, "rng": None}


def test_fresh_lanes_differ_from_each_other_and_from_the_model():
    given = model()
    with torch.no_grad():
        given[2].weight.fill_(7.0)
        given[1].running_mean.fill_(3.0)
    before = picture(given)
    wide = wide_compiler.compile(given, x, n=4)
    assert unmoved(before, given)
    for path in ("0.weight", "0.bias", "3.weight", "3.bias"):
        assert not any(torch.equal(a, b) for a, b in pairs(wide, path))
        assert not any(torch.equal(lane, given.get_parameter(path)) for lane in wide.tensors()[path])
    assert (wide.tensors()["2.weight"] == 0.25).all()  # what PReLU starts from
    assert (wide.tensors()["1.running_mean"] == 0).all()
    assert not any(t.isnan().any() for t in wide.tensors().values())
    oracle.compare(list(wide.lanes()), wide, shared_input=((torch.randn(5, 4),), {})).check(rtol=1e-5)


def test_fresh_is_the_default_and_follows_the_seed():
    given = nn.Linear(4, 2)
    torch.manual_seed(3)
    first = wide_compiler.compile(given, x, n=2).tensors()["weight"]
    torch.manual_seed(3)
    again = wide_compiler.compile(given, x, n=2, init="fresh").tensors()["weight"]
    assert torch.equal(first, again)
    torch.manual_seed(3)
    assert torch.equal(first[0], nn.Linear(4, 2).weight)


def test_copies_agree_and_are_not_shared():
    given = model()
    before = picture(given)
    wide = wide_compiler.compile(given, x, n=3, init="copy")
    assert picture(given) == before
    for name, parameter in given.named_parameters():
        assert torch.equal(wide.tensors()[name], parameter.expand(3, *parameter.shape))
    assert all(p.shape[0] == 3 for p in wide.parameters())
    oracle.compare([given] * 3, wide, shared_input=((torch.randn(5, 4),), {})).check(rtol=1e-5)


def test_a_callable_is_given_a_copy_and_the_lane():
    given, seen = model(), []
    before = picture(given)

    def init(member, lane):
        seen.append((member, lane))
        nn.init.constant_(member[0].weight, float(lane))

    wide = wide_compiler.compile(given, x, n=3, init=init)
    assert picture(given) == before
    assert [lane for _, lane in seen] == [0, 1, 2]
    assert all(member is not given for member, _ in seen)
    assert wide.tensors()["0.weight"].mean((1, 2)).tolist() == [0.0, 1.0, 2.0]
    assert torch.equal(wide.tensors()["3.weight"][1], given[3].weight)


def test_a_callable_may_return_another_model():
    others = [model() for _ in range(2)]
    wide = wide_compiler.compile(model(), x, n=2, init=lambda member, lane: others[lane])
    assert all(torch.equal(wide.tensors()["0.weight"][i], others[i][0].weight) for i in range(2))


def test_a_callable_that_changes_the_architecture():
    given = model()
    weights = torch.zeros(3, 6)

    def init(member, lane):
        if lane:
            member[3].weight = nn.Parameter(weights)

    with refused(AlignmentError, "lane 1", "3.weight", "(3, 6)", "(2, 6)", of=given):
        wide_compiler.compile(given, x, n=2, init=init)


def test_a_callables_own_error_is_its_own():
    given = model()

    def init(member, lane):
        nn.init.zeros_(member[0].weight)
        raise LookupError(f"no checkpoint for lane {lane}")

    with refused(LookupError, "no checkpoint for lane 0", of=given):
        wide_compiler.compile(given, x, n=2, init=init)


@pytest.mark.parametrize("init", ["frsh", "", None, 3, ("fresh",)])
def test_an_unknown_init_lists_the_choices(init):
    given = model()
    with refused(AlignmentError, repr(init), "'fresh'", "'copy'", "callable", of=given):
        wide_compiler.compile(given, x, n=2, init=init)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))
        self.inner.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.inner(x) * self.inner.scale


def test_a_bare_parameter_that_nothing_can_initialise():
    given = Bare()
    with refused(AlignmentError, "inner.scale", "reset_parameters", "init='copy'", "callable", of=given):
        wide_compiler.compile(given, x, n=2)


def test_the_remedies_for_a_bare_parameter():
    given = Bare()
    wide = wide_compiler.compile(given, x, n=2, init="copy")
    assert torch.equal(wide.tensors()["inner.scale"], torch.ones(2, 4))
    wide = wide_compiler.compile(
        given, x, n=2, init=lambda m, lane: nn.init.constant_(m.inner.scale, lane + 1.0)
    )
    assert wide.tensors()["inner.scale"][:, 0].tolist() == [1.0, 2.0]


def test_an_outer_initialiser_has_the_last_word():
    """As in a constructor: the layers initialise themselves first, the model around them decides."""

    class ZeroHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
            self.reset_parameters()

        def reset_parameters(self):
            nn.init.zeros_(self.head.weight)

        def forward(self, x):
            return self.head(self.body(x))

    lanes = make_lanes(ZeroHead(), 3, "fresh")
    assert not torch.equal(lanes[0].body.weight, lanes[1].body.weight)
    assert all((lane.head.weight == 0).all() for lane in lanes)


def test_fresh_weights_of_a_transformer_are_as_wide_as_its_own():
    given = nn.Transformer(8, 2, 1, 1, 8, batch_first=True)
    xavier = math.sqrt(6 / 16)
    assert given.encoder.layers[0].linear1.weight.abs().max() > 0.9 * xavier
    lane = make_lanes(given, 1, "fresh")[0]
    assert lane.encoder.layers[0].linear1.weight.abs().max() > 0.9 * xavier


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.LSTM(4, 3),
        lambda: nn.Embedding(5, 4, padding_idx=2),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)),
        lambda: nn.Bilinear(3, 4, 2),
    ],
)
def test_every_layer_with_its_own_initialiser(make):
    member = make()
    reinitialize(member)
    assert not any(p.isnan().any() for p in member.parameters())
    if isinstance(member, nn.Embedding):
        assert (member.weight[2] == 0).all()


def test_tied_weights_stay_tied():
    given = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    given[1].weight = given[0].weight
    wide = wide_compiler.compile(given, x, n=2)
    assert set(dict(wide.named_parameters())) == {"0.weight"}
    assert not torch.equal(*wide.tensors()["0.weight"])
