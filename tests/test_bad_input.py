"""What compile() refuses: the error says what was wrong and what to do, and the models stay as they were."""

import pytest
import torch
from torch import nn

import wide_compiler
from untouched import picture, refused
from wide_compiler import (
    AlignmentError,
    SampleError,
    UnsupportedError,
    ValidationError,
    WideConfig,
    WideError,
)


def mlp(out=2, **kind):
    """With a norm that has buffers, and dropout that would draw."""
    layers = [nn.Linear(4, 6, **kind), nn.BatchNorm1d(6, **kind), nn.Dropout(0.5), nn.Linear(6, out, **kind)]
    return nn.Sequential(*layers)


def with_gradients(n=3):
    models = [mlp() for _ in range(n)]
    for model in models:
        model(torch.randn(3, 4)).sum().backward()
    models[0][1].eval(), models[1][1].eval(), models[2][1].eval()  # a flag inside that is not the root's
    return models


x = torch.randn(2, 4)


@pytest.mark.parametrize("models", [[], (), nn.ModuleList()])
def test_no_models(models):
    with refused(AlignmentError, "no models", "n="):
        wide_compiler.compile(models, x)


@pytest.mark.parametrize("wrong", [None, 3, "model", nn.Linear, torch.zeros(2)])
def test_something_that_is_no_module(wrong):
    models = [mlp(), wrong, mlp()]
    with refused(AlignmentError, "lane 1", type(wrong).__name__, "Module", of=models):
        wide_compiler.compile(models, x)


@pytest.mark.parametrize("wrong", [None, 3, "model", {"a": nn.Linear(4, 2)}, nn.Linear])
def test_something_that_is_no_list_of_models(wrong):
    with refused(AlignmentError, "list of models", "n=", type(wrong).__name__):
        wide_compiler.compile(wrong, x)


def test_a_single_model_without_n():
    model = mlp()
    with refused(AlignmentError, "one model", "n=", "list", of=model):
        wide_compiler.compile(model, x)


@pytest.mark.parametrize("n", [0, -1, True, False, 2.0, "2", [2]])
def test_a_number_of_lanes_that_cannot_be(n):
    model = mlp()
    with refused(AlignmentError, "n", "positive integer", repr(n), of=model):
        wide_compiler.compile(model, x, n=n)


@pytest.mark.parametrize(("count", "n"), [(2, 3), (2, 0), (2, -1), (1, True)])
def test_a_number_that_contradicts_the_list(count, n):
    models = [mlp() for _ in range(count)]
    with refused(AlignmentError, f"n={n!r}", str(count), of=models):
        wide_compiler.compile(models, x, n=n)


@pytest.mark.parametrize("sample", [[x], [x, x], "x", None, 5, {1, 2}, nn.Linear(2, 2)])
def test_a_sample_of_the_wrong_type(sample):
    models = with_gradients()
    with refused(SampleError, "tensor", "tuple", "dict", type(sample).__name__, of=models):
        wide_compiler.compile(models, sample)


@pytest.mark.parametrize("sample", [[x], torch.randn(2, 5)])
def test_views_of_the_models_are_only_made_once_the_sample_is_accepted(sample):
    models = with_gradients()
    with refused(SampleError, of=models):
        wide_compiler.compile(models, sample, views=True)


def test_keywords_given_twice():
    models = with_gradients()
    with refused(SampleError, "sample_kwargs", "not both", of=models):
        wide_compiler.compile(models, {"input": x}, sample_kwargs={"input": x})


@pytest.mark.parametrize(
    ("sample", "says", "cause"),
    [
        (torch.randn(2, 5), ["RuntimeError", "2x5 and 4x6"], RuntimeError),
        (torch.randn(1, 5), ["RuntimeError", "1x5 and 4x6"], RuntimeError),
        (torch.ones(2, 4, dtype=torch.int64), ["RuntimeError", "dtype"], RuntimeError),
        ((x, x), ["TypeError", "positional argument"], TypeError),
        ((), ["TypeError", "missing 1 required positional argument"], TypeError),
        ({"y": x}, ["TypeError", "'y'", "sample=({...},)"], TypeError),
    ],
)
def test_a_sample_that_the_model_itself_rejects(sample, says, cause):
    models = with_gradients()
    with refused(SampleError, "rejects the sample", *says, of=models) as caught:
        wide_compiler.compile(models, sample)
    assert isinstance(caught.value.__cause__, cause)
    assert str(caught.value.__cause__) in str(caught.value)


def test_the_models_own_words_are_shown():
    class Picky(nn.Module):
        def forward(self, x):
            torch.rand(3)
            raise LookupError("I only take words")

    with refused(SampleError, "LookupError", "I only take words") as caught:
        wide_compiler.compile([Picky(), Picky()], x)
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("init", ["fresh", "copy", lambda model, lane: nn.init.ones_(model[0].weight)])
def test_a_rejected_sample_with_one_model_and_n(init):
    model = mlp()
    with refused(SampleError, "2x5 and 4x6", of=model):
        wide_compiler.compile(model, torch.randn(2, 5, generator=torch.Generator()), n=3, init=init)


@pytest.mark.parametrize("make", [nn.LazyLinear, lambda out: nn.Sequential(nn.ReLU(), nn.LazyConv2d(out, 3))])
def test_lazy_modules(make):
    path = next(name for name, _ in make(3).named_parameters())
    models = [make(3), make(3)]
    with refused(AlignmentError, path, "lazy", "run each model once", of=models):
        wide_compiler.compile(models, x)


@pytest.mark.parametrize("init", ["copy", "fresh"])
def test_lanes_of_one_lazy_model(init):
    model = nn.Sequential(nn.LazyLinear(3))
    with refused(AlignmentError, "0.weight", "lazy", "run", of=model):
        wide_compiler.compile(model, x, n=2, init=init)


def test_a_lazy_lane_beside_an_initialised_one():
    models = [nn.LazyLinear(3), nn.LazyLinear(3)]
    models[0](x)
    with refused(AlignmentError, "lane 1", "LazyLinear", of=models):
        wide_compiler.compile(models, x)


class Branch(nn.Module):
    def forward(self, x):
        return x.relu() if x.sum() > 0 else x


def test_strict_names_what_would_run_per_lane_and_changes_nothing():
    models = [nn.Sequential(nn.Linear(4, 4), Branch()) for _ in range(2)]
    with refused(UnsupportedError, "1", "Branch", "fallback_passthrough=True", "register", of=models):
        wide_compiler.compile(models, x, config=WideConfig(fallback_passthrough=False))


def test_a_failed_validation_says_where():
    models = [mlp().eval() for _ in range(2)]
    wide = wide_compiler.compile(models, x)
    with torch.no_grad():
        wide.get_submodule("0").weight[1] += 1.0
    with refused(ValidationError, "lane 1", "output", "rtol", of=[*models, wide]):
        wide.validate(models)


@pytest.mark.parametrize("error", [AlignmentError, SampleError, UnsupportedError, ValidationError])
def test_one_parent_catches_all(error):
    assert issubclass(error, WideError)


@pytest.mark.parametrize("train", [True, False])
def test_a_compile_that_succeeds_leaves_the_models_alone_too(train):
    models = [m.train(train) for m in with_gradients()]
    before = picture(*models)
    wide = wide_compiler.compile(models, x, validate=not train)
    wide.shared(torch.randn(5, 4, generator=torch.Generator()))
    if train:  # the call drew for its dropout
        after, before["rng"] = picture(*models), None
        after["rng"] = None
        assert after == before
    else:
        assert picture(*models) == before


@pytest.mark.parametrize("channels", [6, 7, 3])
def test_one_plain_input_to_the_packed_door_names_the_door_that_takes_it(channels):
    """Six channels split into three lanes of two, which the members reject."""
    wide = wide_compiler.compile([nn.Linear(channels, 2) for _ in range(3)], torch.randn(4, channels))
    with pytest.raises(ValueError, match=r"wide\.shared\(x\)"):
        wide(torch.randn(5, channels))
    with pytest.raises(ValueError, match=r"wide\.shared\(x\)"):
        wide(torch.randn(channels))
