"""`module`: a frozen dataclass that is a pytree."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.modules import module as pytorch
from torch.utils import _pytree

from wide_compiler import _tree
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


@module
class Holder:
    data: object
    held: object = static(default=None)


def structure_of(held):
    return _pytree.tree_structure(Holder(1.0, held))


def test_leaves_have_the_names_of_their_fields():
    tree = {"a": Scorer(torch.ones(2), 3.0)}
    pairs, _ = _pytree.tree_flatten_with_path(tree)
    assert [_pytree.keystr(path) for path, _ in pairs] == ["['a'].weights", "['a'].bias"]
    assert [path[1].get(tree["a"]) is leaf for path, leaf in pairs] == [True, True]
    assert _tree.leaf_paths(tree) == ["['a'].weights", "['a'].bias"]


def test_leaves_have_the_names_of_their_fields_in_jax():
    jax = pytest.importorskip("jax")
    pairs, _ = jax.tree_util.tree_flatten_with_path({"a": Scorer(np.ones(2), 3.0)})
    assert [jax.tree_util.keystr(path) for path, _ in pairs] == ["['a'].weights", "['a'].bias"]


class Linear(torch.nn.Module):
    def forward(self, scorer, x):
        return x @ scorer.weights + scorer.bias


@pytest.mark.parametrize("strict", [False, True])
def test_exported_saved_and_loaded(tmp_path, strict, monkeypatch):
    # PyTorch's strict export fails under any hook on all modules, and workers of other tests may run.
    monkeypatch.setattr(pytorch, "_global_forward_pre_hooks", type(pytorch._global_forward_pre_hooks)())
    scorer, x = Scorer(torch.arange(3.0), torch.tensor(2.0), "mine"), torch.ones(5, 3)
    exported = torch.export.export(Linear(), (scorer, x), strict=strict)
    torch.export.save(exported, tmp_path / "linear.pt2")
    with torch.serialization.safe_globals([Scorer]):
        loaded = torch.export.load(tmp_path / "linear.pt2")
    for program in (exported, loaded):
        assert torch.equal(program.module()(scorer, x), torch.full((5,), 5.0))


def test_a_compiled_function_takes_modules_apart():
    def product(a, b):
        return _pytree.tree_map(lambda x, y: x * y, a, b)

    a, b = Scorer(torch.arange(3.0), torch.ones(())), Scorer(torch.ones(3), torch.ones(()))
    made = torch.compile(product, backend="eager", fullgraph=True)(a, b)
    assert type(made) is Scorer and torch.equal(made.weights, torch.arange(3.0)) and made.name == "scorer"


@pytest.mark.parametrize(
    "held", [None, True, 3, 0.5, "text", [1, [2]], (1, ("a", None)), {"a": (1, 2), 3: []}, {"tuple": [1]}, ()]
)
def test_structures_are_written_and_read_back(held):
    structure = structure_of(held)
    again = _pytree.treespec_loads(_pytree.treespec_dumps(structure))
    assert again == structure
    back = _pytree.tree_unflatten([1.0], again).held
    assert type(back) is type(held) and repr(back) == repr(held)


def test_a_static_field_that_cannot_be_written_is_named():
    with pytest.raises(TypeError, match=r"static fields .*held.* of Holder must be Python literals"):
        _pytree.treespec_dumps(structure_of(np.ones(2)))


@pytest.mark.parametrize("given, words", [(3, "3"), (len, "len"), (lambda: 1, "lambda")])
def test_module_takes_a_class(given, words):
    with pytest.raises(TypeError, match=f"module takes a class, got .*{words}"):
        module(given)


def test_module_twice_is_module_once():
    assert module(Scorer) is Scorer


@pytest.mark.parametrize("frozen", [False, True])
def test_a_dataclass_is_told_to_be_none(frozen):
    @dataclasses.dataclass(frozen=frozen)
    class Point:
        x: float

    with pytest.raises(TypeError, match="Point is a dataclass already; remove @dataclass"):
        module(Point)


def test_a_subclass_is_a_module_if_it_is_decorated():
    class Plain(Scorer):
        pass

    @module
    class Longer(Scorer):
        scale: float = 2.0

    plain, longer = Plain(np.ones(2)), Longer(np.ones(2))
    assert _pytree.tree_leaves(plain) == [plain] and get_tree_functions(Plain) is None
    assert _pytree.tree_leaves(longer) == [longer.weights, 0.0, 2.0]


@pytest.mark.parametrize("leaves", [[], [1.0], [1.0, 2.0, 3.0]])
def test_a_wrong_number_of_leaves(leaves):
    _, unflatten = get_tree_functions(Scorer)
    with pytest.raises(ValueError, match=rf"Scorer has leaves .*weights.*, got {len(leaves)} and 1 values"):
        unflatten(leaves, ("mine",))
    with pytest.raises(ValueError, match=r"Scorer has .*static fields .*name.*, got 2 and 0 values"):
        unflatten([1.0, 2.0], ())


@pytest.mark.parametrize("given", [[], 3, Scorer(1.0)])
def test_tree_functions_are_those_of_a_class(given):
    with pytest.raises(TypeError, match=r"takes a class, got .*: give its type"):
        get_tree_functions(given)
