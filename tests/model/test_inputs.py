"""What the doors refuse: the error says which argument, what was expected, what to do; no lane has moved."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import wide_compiler
from untouched import refused
from wide_compiler import InputError, SampleError, oracle
from wide_compiler.model.inputs import normalize_sample

N = 3
x, y = torch.randn(2, 4), torch.randn(2, 4)


class Two(nn.Module):
    """Two inputs, a norm that would move, dropout that would draw."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)

    def forward(self, x, y, *, scale=None):
        h = self.drop(self.norm(self.fc(x) + self.fc(y)))
        return h if scale is None else h * scale


@pytest.fixture
def wide():
    return wide_compiler.compile([Two() for _ in range(N)], (x, y))


def stacked(*shape):
    return torch.randn(N, *shape)


def test_samples_in_their_three_forms():
    assert normalize_sample(x, None) == ((x,), {})
    assert normalize_sample(x, {"k": 1}) == ((x,), {"k": 1})
    assert normalize_sample((x, 2), None) == ((x, 2), {})
    assert normalize_sample({"k": x}, None) == ((), {"k": x})
    assert normalize_sample(None, {"k": x}) == ((), {"k": x})
    with refused(SampleError, "tuple", "list"):
        normalize_sample([x], None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([x] * 2, [y] * N), ["argument 0", f"list of {N}", "2 entries"]),
        (([x] * N, [y] * 4), ["argument 1", f"list of {N}", "4 entries"]),
        (([x] * N, []), ["argument 1", f"list of {N}", "0 entries"]),
        ((x, [y] * N), ["argument 0", f"list of {N}", "Tensor"]),
        (([x] * N, None), ["argument 1", f"list of {N}", "NoneType"]),
        (([x] * N,), ["'y'", "2 positional", "1 positional"]),
        (([x] * N, [y] * N, [y] * N), ["2 positional", "3 positional"]),
        ((), ["2 positional", "0 positional"]),
        (([x] * N, [y, y, y[:1]]), ["lane 2", "(1, 4)", "(2, 4)"]),
        (([x, x.double(), x], [y] * N), ["lane 1", "float64", "float32"]),
    ],
)
def test_each(wide, arguments, says):
    with refused(InputError, *says, of=wide):
        wide.each(*arguments)


def test_each_with_lanes_that_differ_names_the_argument(wide):
    with refused(InputError, "argument 1", "lane 2", "(1, 4)", of=wide):
        wide.each([x] * N, [y, y, y[:1]])
    with refused(InputError, "'scale'", "lane 1", of=wide):
        wide.each([x] * N, [y] * N, scale=[1.0, 2.0, 1.0])
    with refused(InputError, "'scale'", f"list of {N}", of=wide):
        wide.each([x] * N, [y] * N, scale=2.0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((stacked(2, 4)[:1], stacked(2, 4)), ["argument 0", "(1, 2, 4)", f"{N} lanes", "axis 0", ".shared"]),
        ((stacked(2, 4), stacked(2, 4)[:1]), ["argument 1", "(1, 2, 4)", f"{N} lanes"]),
        ((x, y), ["argument 0", "(2, 4)", f"{N} lanes"]),
        ((torch.tensor(1.0), stacked(2, 4)), ["argument 0", "()", f"{N} lanes"]),
        ((stacked(2, 5), stacked(2, 4)), ["2x5 and 4x6", "argument 0", "(2, 5)", "(B, 4)"]),
        ((stacked(2, 4), stacked(2, 5)), ["2x5 and 4x6", "argument 1", "(2, 5)", "(B, 4)"]),
        ((stacked(2, 4).double(), stacked(2, 4)), ["argument 0", "float64", "float32"]),
        ((stacked(2, 4), stacked(2, 4).long()), ["argument 1", "int64", "float32"]),
        ((stacked(2, 4),), ["2 positional", "1 positional"]),
        ((stacked(2, 4),) * 3, ["2 positional", "3 positional"]),
        ((), ["2 positional", "0 positional"]),
    ],
)
def test_stacked(wide, arguments, says):
    with refused(InputError, *says, of=wide):
        wide.stacked(*arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            (torch.randn(2, 13), torch.randn(2, 12)),
            ["packed argument 0", "(2, 13)", "13 channels", f"{N} lanes", "pack", "wide.shared(x)"],
        ),
        (
            (torch.randn(2, 12), torch.randn(2, 4)),
            ["packed argument 1", "(2, 4)", "4 channels", f"{N} lanes"],
        ),
        ((torch.randn(12), torch.randn(2, 12)), ["argument 0", "(12,)", "2 dims", ".each"]),
        ((torch.randn(2, 15), torch.randn(2, 12)), ["2x5 and 4x6", "argument 0", "(2, 5)", "(B, 4)"]),
        ((torch.randn(2, 12).double(), torch.randn(2, 12)), ["argument 0", "float64", "float32"]),
        ((torch.randn(2, 12),), ["2 positional", "1 positional"]),
        ((), ["2 positional", "0 positional"]),
    ],
)
def test_packed(wide, arguments, says):
    with refused(InputError, *says, of=wide):
        wide(*arguments)


def test_shared(wide):
    with refused(InputError, "2x5 and 4x6", "argument 1", "(2, 5)", of=wide):
        wide.shared(x, torch.randn(2, 5, generator=torch.Generator()))
    with refused(InputError, "'z'", "z=", of=wide):
        wide.shared(x, y, z=3)


def test_a_sample_with_a_batch_of_one_is_not_said_to_have_another_batch():
    wide = wide_compiler.compile(torch.nn.Linear(4, 2), torch.randn(1, 4), n=2)
    narrow = torch.randn(3, 5)
    with refused(InputError, "(3, 5) per lane, expected (B, 4) as in the sample", of=wide):
        wide.shared(narrow)


def test_an_argument_of_another_kind_is_named_by_its_type():
    wide = wide_compiler.compile(torch.nn.Linear(4, 2), torch.randn(2, 4), n=2)
    with refused(InputError, "the sample had Tensor, this call has list", of=wide):
        wide.shared([1.0, 2.0])


def test_the_members_own_error_is_the_cause_and_a_good_call_still_works(wide):
    with refused(InputError, "RuntimeError", of=wide) as caught:
        wide.shared(x.long(), y.long())
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert wide.shared(x, y).shape == (N, 2, 6)


def test_keywords_are_named_as_the_caller_wrote_them():
    wide = wide_compiler.compile([Two() for _ in range(N)], {"y": y, "x": x})
    good, wrong = stacked(2, 4), stacked(2, 5)
    with refused(InputError, "argument 'y'", "(1, 2, 4)", of=wide):
        wide.stacked(y=good[:1], x=good)
    with refused(InputError, "argument 'x' is (2, 5)", of=wide):
        wide.stacked(y=good, x=wrong)


@pytest.mark.parametrize(
    "again",
    [
        copy.deepcopy,
        lambda w: pickle.loads(pickle.dumps(w)),
        lambda w: w.double().float(),
        lambda w: w.eval().train(),
    ],
    ids=["deepcopy", "pickle", "moved", "train"],
)
def test_a_wide_model_that_was_copied_or_moved_refuses_as_well(wide, again):
    other = again(wide)
    with refused(InputError, "2x5 and 4x6", "(B, 4)", of=other):
        other.shared(torch.zeros(2, 5), y)
    assert other.shared(x, y).shape == (N, 2, 6)
    with refused(InputError, "float64", of=other):
        other.shared(x.double(), y.double())


def test_moved_to_another_precision_the_sample_follows():
    models = [nn.Linear(4, 2) for _ in range(N)]
    wide = wide_compiler.compile(models, x).double()
    wide.validate()
    assert all(row.how == "rule" for row in wide.explain().rows)


def test_an_output_that_cannot_be_packed_is_refused_before_anything_moves():
    models = [
        nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1), nn.Flatten(0)) for _ in range(N)
    ]
    wide = wide_compiler.compile(models, x)
    packed = torch.randn(5, 12)
    with refused(InputError, "1 dims per lane", "at least 2", ".each", of=wide):
        wide(packed)


def test_arrays_are_not_taken_for_one_another():
    """Plain arguments are part of a capture: two arrays that print alike must not share one."""

    class Pick(nn.Module):
        def forward(self, x, index):
            return x[:, torch.from_numpy(index)]

    first = np.zeros(3000, dtype=np.int64)
    second = first.copy()
    second[1500] = 1
    models = [Pick() for _ in range(N)]
    wide = wide_compiler.compile(models, (x, first))
    for index in (first, second):
        oracle.compare(models, wide, shared_input=((x, index), {})).check(rtol=1e-6)
        assert torch.equal(wide.shared(x, index)[0], models[0](x, index))
