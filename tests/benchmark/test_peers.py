"""The peers: each is held against the loop, and whoever fails is shown with its error."""

import functools

import pytest
import torch

from wide_compiler.benchmark import MODELS, BenchmarkRow, Options, find, plan, run
from wide_compiler.benchmark.functional import Functional
from wide_compiler.benchmark.peers import loop, peers_of
from wide_compiler.benchmark.problem import Problem, inference

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _compile_without_code(monkeypatch):
    """The real backend takes many seconds; what is compiled is the same."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))


def row_of(name: str, train: bool = False) -> BenchmarkRow:
    options = Options(lanes=(3,), batch=2, seconds=0.001, peers=True, train=train)
    return next(run(plan(find(name), options), options))


@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_inference_peers_agree_with_the_loop(name):
    row = row_of(name)
    assert {"compiled loop", "vmap", "vmap compiled"} <= set(row.errors), row.failures
    assert all(error < 1e-5 for error in row.errors.values())
    assert set(row.ms) == {"loop", "ours", *row.errors}
    assert row.best_peer in row.ms and row.peer_ratio > 0


@pytest.mark.parametrize("name", ["mlp", "batchnorm2d"])
def test_training_peers_agree_with_the_loop(name):
    row = row_of(name, train=True)
    peers = {"compiled loop", "loop, one fused Adam", "vmap", "vmap compiled"}
    assert set(row.errors) == peers, row.failures
    assert all(error < 1e-4 for error in row.errors.values()), row.errors


@pytest.mark.parametrize("train", [False, True])
def test_a_peer_that_raises_is_shown_as_its_error(train):
    row = row_of("primitive:lstm", train)
    assert row.ok and "vmap" not in row.ms
    assert row.failures["vmap"].startswith("RuntimeError: Batching rule not implemented")
    assert "\n" not in row.failures["vmap"]


def test_a_peer_that_is_wrong_is_never_the_best(monkeypatch):
    monkeypatch.setattr(Functional, "together", lambda self, compiled: lambda: torch.zeros_like(self.x))
    row = row_of("mlp")
    assert row.errors["vmap"] > 0.5 and row.ms["vmap"] < row.ms["loop"]
    assert row.best_peer not in ("vmap", "vmap compiled")


def test_the_loop_in_training_starts_again_from_the_same_weights():
    problem = Problem.of(MODELS["mlp"], 2, 3, CPU, train=True)
    candidate = loop(problem)
    first = candidate.results()
    for _ in range(5):
        candidate.call()
    again = candidate.results()
    assert torch.equal(first["losses"][0], again["losses"][0])
    assert all(map(torch.equal, first["gradients"], again["gradients"]))
    losses = first["losses"][0]
    assert losses.shape == (2, 3) and (losses[:, -1] < losses[:, 0]).all()


def test_training_leaves_the_problem_as_it_was():
    problem = Problem.of(MODELS["mlp"], 2, 3, CPU, train=True)
    before = [p.clone() for member in problem.members for p in member.parameters()]
    for build in peers_of(problem).values():
        build().results()
    after = [p for member in problem.members for p in member.parameters()]
    assert all(map(torch.equal, before, after)) and all(p.grad is None for p in after)


def test_results_are_copies():
    output = torch.ones(2)
    results = inference(lambda: output).results()
    output.zero_()  # what a captured graph does at its next replay
    assert results["outputs"][0].tolist() == [1, 1]
