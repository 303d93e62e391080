"""The JAX peer computes the same models. Where JAX is not installed, NumPy and PyTorch stand in for it."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from wide_compiler.benchmark import MODELS, jax_peer
from wide_compiler.benchmark.compare import largest_error
from wide_compiler.benchmark.peers import inference_peers, loop
from wide_compiler.benchmark.problem import Problem

INSTALLED = importlib.util.find_spec("jax") is not None


def _conv(x, w, strides, padding, dimension_numbers):
    assert (strides, padding, dimension_numbers) == ((1, 1), "SAME", ("NCHW", "OIHW", "NCHW"))
    return F.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding="same").numpy()


def _attention(q, k, v, is_causal):
    heads_first = [torch.from_numpy(t).transpose(1, 2) for t in (q, k, v)]
    return F.scaled_dot_product_attention(*heads_first, is_causal=is_causal).transpose(1, 2).numpy()


def _vmap(function):
    def lanes(tensors, x):
        each = ({name: array[i] for name, array in tensors.items()} for i in range(len(x)))
        return np.stack([function(one, x[i]) for i, one in enumerate(each)])

    return lanes


def stand_in() -> ModuleType:
    jax = ModuleType("jax")
    jax.config = SimpleNamespace(update=lambda name, value: None)
    jax.devices = lambda kind: [kind]
    jax.device_put = lambda array, device: array
    jax.jit = lambda function: function
    jax.vmap = _vmap
    jax.block_until_ready = lambda output: output
    jax.lax = SimpleNamespace(rsqrt=lambda x: 1 / np.sqrt(x), conv_general_dilated=_conv)
    jax.nn = SimpleNamespace(
        relu=lambda x: np.maximum(x, 0),
        gelu=lambda x, approximate: F.gelu(torch.from_numpy(x)).numpy(),
        dot_product_attention=_attention,
    )
    return jax


@pytest.fixture
def problem_of(monkeypatch):
    if not INSTALLED:
        monkeypatch.setitem(sys.modules, "jax", stand_in())
    return lambda name: Problem.of(MODELS[name], 2, 2, torch.device("cpu"), train=False)


@pytest.mark.parametrize("name", ["mlp", "deep_mlp", "big_mlp", "resblock", "block"])
def test_the_same_numbers_as_the_loop(problem_of, name):
    problem = problem_of(name)
    with torch.no_grad():
        candidate = jax_peer.build(problem)
        assert largest_error(candidate.results(), loop(problem).results()) < 1e-5
    assert candidate.repeats == jax_peer.REPEATS  # one call is many runs, and its time is shared among them


@pytest.mark.parametrize("there", [False, True])
def test_a_peer_only_where_jax_is_installed_and_has_the_model(problem_of, monkeypatch, there):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if there else None)
    assert ("jax jit(vmap)" in inference_peers(problem_of("mlp"))) == there
    assert "jax jit(vmap)" not in inference_peers(problem_of("lstm"))
