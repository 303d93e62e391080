"""`module`: a frozen dataclass that is a pytree."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils import _pytree

from wide_compiler.xcs import get_tree_functions, module, static


@module
class Scorer:
    weights: np.ndarray
    bias: float = 0.0
    name: str = static(default="scorer")


def test_frozen_with_identity_comparison():
    scorer = Scorer(weights=np.ones(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        scorer.bias = 1.0
    assert scorer == scorer and scorer != Scorer(weights=np.ones(3))  # comparing arrays would not give a bool
    assert len({scorer, Scorer(np.ones(3))}) == 2


def test_leaves_are_the_fields_that_are_not_static():
    flatten, unflatten = get_tree_functions(Scorer)
    weights = np.ones(3)
    leaves, structure = flatten(Scorer(weights, 2.0, "mine"))
    assert leaves[0] is weights and leaves[1:] == [2.0] and structure == ("mine",)
    again = unflatten(leaves, structure)
    assert type(again) is Scorer and again.weights is weights and again.name == "mine"
    assert get_tree_functions(int) is None


def test_known_to_torch_as_a_pytree():
    tree = {"a": Scorer(torch.ones(2), 3.0), "b": 4}
    doubled = _pytree.tree_map(lambda leaf: leaf * 2, tree)
    assert torch.equal(doubled["a"].weights, 2 * torch.ones(2)) and doubled["a"].bias == 6.0
    assert doubled["a"].name == "scorer"


def test_known_to_jax_where_it_is_installed():
    jax = pytest.importorskip("jax")

    def loss(scorer, x):
        return (x @ scorer.weights + scorer.bias).sum()

    scorer = Scorer(np.arange(3.0, dtype=np.float32), 2.0, "mine")
    doubled = jax.tree_util.tree_map(lambda leaf: 2 * leaf, {"a": scorer})["a"]
    assert type(doubled) is Scorer and doubled.name == "mine" and doubled.weights.tolist() == [0, 2, 4]
    x = np.ones((5, 3), np.float32)
    assert jax.jit(loss)(scorer, x) == 25.0
    gradient = jax.grad(loss)(scorer, x)
    assert type(gradient) is Scorer and gradient.weights.tolist() == [5, 5, 5] and gradient.bias == 5.0
