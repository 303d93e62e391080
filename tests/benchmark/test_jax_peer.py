"""The JAX peer computes the same models."""

import importlib.util

import pytest
import torch

from wide_compiler.benchmark import MODELS, jax_peer
from wide_compiler.benchmark.benchmark_row import largest_error
from wide_compiler.benchmark.peers import loop, peers_of
from wide_compiler.benchmark.problem import Problem

pytest.importorskip("jax")


def problem_of(name):
    return Problem.of(MODELS[name], 2, 2, torch.device("cpu"), train=False)


@pytest.mark.parametrize("name", ["mlp", "deep_mlp", "big_mlp", "resblock", "block"])
def test_the_same_numbers_as_the_loop(name):
    problem = problem_of(name)
    with torch.no_grad():
        candidate = jax_peer.build(problem)
        assert largest_error(candidate.results(), loop(problem).results()) < 1e-5
    assert candidate.repeats == jax_peer.REPEATS  # one call is many runs, and its time is shared among them


@pytest.mark.parametrize("there", [False, True])
def test_a_peer_only_where_jax_is_installed_and_has_the_model(monkeypatch, there):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if there else None)
    assert ("jax jit(vmap)" in peers_of(problem_of("mlp"))) == there
    assert "jax jit(vmap)" not in peers_of(problem_of("lstm"))
