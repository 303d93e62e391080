"""pack, unpack, stack, unstack: inverse of each other for any pytree, lane i in channel block i."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree

import wide_compiler
from untouched import refused
from wide_compiler import InputError, WideError, pack, stack, unpack, unstack
from wide_compiler.lanes import join_lanes, packed_to_stacked, split_lanes, stacked_to_packed

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)
Pair = namedtuple("Pair", "left right")


def equal(a, b):
    (mine, spec), (theirs, other) = _pytree.tree_flatten(a), _pytree.tree_flatten(b)
    assert spec == other
    for x, y in zip(mine, theirs, strict=True):
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y)
        else:
            assert x == y and type(x) is type(y)
    return True


def trees(leaf):
    inside = lambda t: st.one_of(  # noqa: E731
        st.lists(t, min_size=1, max_size=2),
        st.lists(t, min_size=1, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from("abz"), t, min_size=1, max_size=2),
    )
    return st.recursive(leaf, inside, max_leaves=4)


@st.composite
def lanes_of_trees(draw, min_dims):
    """N pytrees of one structure, with tensors of every size and dtype, and plain Python among them."""
    n = draw(st.integers(1, 4))
    shape = st.lists(st.integers(0, 3), min_size=min_dims, max_size=4).map(tuple)
    plain = st.sampled_from([None, 3, 2.5, "mode", True])
    template = draw(trees(st.one_of(st.builds(_Leaf, shape, st.sampled_from(DTYPES)), plain)))
    torch.manual_seed(draw(st.integers(0, 1000)))
    make = lambda leaf: leaf.make() if isinstance(leaf, _Leaf) else leaf  # noqa: E731
    return [_pytree.tree_map(make, template) for _ in range(n)]


class _Leaf:
    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype

    def make(self):
        return torch.randint(0, 2 if self.dtype is torch.bool else 99, self.shape).to(self.dtype)


@settings(max_examples=80, deadline=None)
@given(lanes_of_trees(min_dims=0))
def test_unstack_is_the_inverse_of_stack(members):
    stacked = stack(members)
    assert all(equal(a, b) for a, b in zip(unstack(stacked, len(members)), members, strict=True))
    equal(stack(unstack(stacked, len(members))), stacked)


@settings(max_examples=80, deadline=None)
@given(lanes_of_trees(min_dims=2))
def test_unpack_is_the_inverse_of_pack(members):
    packed = pack(members)
    assert all(equal(a, b) for a, b in zip(unpack(packed, len(members)), members, strict=True))
    equal(pack(unpack(packed, len(members))), packed)
    equal(stacked_to_packed(stack(members)), packed)
    equal(packed_to_stacked(packed, len(members)), stack(members))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(0, 4), st.integers(1, 4), st.lists(st.integers(1, 3), max_size=2))
def test_lane_i_is_channel_block_i(n, batch, channels, rest):
    members = [torch.full((batch, channels, *rest), float(lane)) for lane in range(n)]
    packed = pack(members)
    assert packed.shape == (batch, n * channels, *rest)
    for lane in range(n):
        assert (packed[:, lane * channels : (lane + 1) * channels] == lane).all()
    assert equal(join_lanes(split_lanes(packed, n)), packed)


def test_nested_structures_keep_their_kinds():
    def tree(i):
        return {"x": torch.full((2, 3), i), "more": (Pair(torch.full((2, 1), i), "k"), [torch.ones(1, 2)])}

    packed = pack([tree(0), tree(1)])
    assert packed["x"].shape == (2, 6)
    assert isinstance(packed["more"][0], Pair) and packed["more"][0].left.shape == (2, 2)
    assert packed["more"][0].right == "k"
    assert equal(unpack(packed, 2)[1], tree(1))
    ordered = OrderedDict(b=torch.zeros(2), a=torch.ones(2))
    assert list(stack([ordered, ordered])) == ["b", "a"]


def test_gradients_go_to_their_own_lane():
    members = [torch.ones(2, 3, requires_grad=True) for _ in range(3)]
    (pack(members)[:, 3:6] * 5.0).sum().backward()
    assert [m.grad.sum().item() for m in members] == [0.0, 30.0, 0.0]


def test_the_spec_names_are_the_same_functions():
    assert wide_compiler.pack_inputs is pack and wide_compiler.unpack_outputs is unpack


def test_the_view_back_shares_memory():
    packed = torch.randn(2, 6)
    assert packed_to_stacked(packed, 3).data_ptr() == packed.data_ptr()
    assert unpack(packed, 3)[1].data_ptr() == packed[:, 2:].data_ptr()


x = torch.zeros(2, 3)


@pytest.mark.parametrize("join", [stack, pack])
@pytest.mark.parametrize(
    ("given_lanes", "says"),
    [
        ([], ["at least one lane"]),
        (x, ["one entry per lane", "Tensor"]),
        (5, ["one entry per lane", "int"]),
        ([{"x": x}, {"y": x}], ["lane 1", "structure"]),
        ([(x, x), (x,)], ["lane 1", "structure"]),
        ([{"x": x}, {"x": x[:1]}], ["lane 1['x']", "(1, 3)", "(2, 3)"]),
        ([{"x": x}, {"x": x.double()}], ["lane 1['x']", "float64", "float32"]),
        ([{"x": x}, {"x": None}], ["lane 1", "['x']"]),
        ([[x, 1], [x, 2]], ["lane 1[1]", "is 2", "lane 0 has 1", "only tensors may differ"]),
        ([[x, True], [x, 1]], ["lane 1[1]", "is 1", "lane 0 has True"]),
        ([[x, 0.0], [x, -0.0]], ["lane 1[1]", "is -0.0", "lane 0 has 0.0"]),
        ([[x, 0.0j], [x, -0.0j]], ["lane 1[1]"]),
        ([[x], [4]], ["lane 1[0]", "int", "Tensor"]),
        ("aa", ["one entry per lane", "str"]),
    ],
)
def test_lanes_that_do_not_fit_together(join, given_lanes, says):
    with refused(InputError, *says):
        join(given_lanes)


def test_values_that_are_equal_are_one():
    nan, array = float("nan"), np.arange(2)
    assert stack([[x, nan, array, "a"], [x, float("nan"), array.copy(), "a"]])[2:] == [array, "a"]


def test_errors_are_of_both_families():
    assert issubclass(InputError, WideError) and issubclass(InputError, ValueError)


@pytest.mark.parametrize("leaf", [torch.zeros(3), torch.tensor(1.0)])
def test_packing_needs_two_dims_and_points_to_each(leaf):
    with refused(InputError, "['loss']", str(tuple(leaf.shape)), "at least 2 dims", ".each"):
        pack([{"loss": leaf}, {"loss": leaf}])
    with refused(InputError, "['loss']", ".each"):
        unpack({"loss": leaf}, 3)
    with refused(InputError, "['loss']", ".each"):
        stacked_to_packed({"loss": torch.stack([leaf, leaf])})


def test_channels_that_lanes_cannot_share():
    with refused(InputError, "['x']", "(2, 7)", "7 channels", "not divisible", "3 lanes", "pack"):
        unpack({"x": torch.zeros(2, 7)}, 3)


@pytest.mark.parametrize("tensor", [torch.zeros(1, 2), torch.zeros(2, 2), torch.tensor(1.0)])
def test_unstack_wants_all_lanes_on_axis_0(tensor):
    with refused(InputError, "['x']", str(tuple(tensor.shape)), "3 lanes", "axis 0"):
        unstack({"x": tensor}, 3)


@pytest.mark.parametrize("n", [0, -1, 2.0, "2", None, True])
@pytest.mark.parametrize("take_apart", [unpack, unstack])
def test_a_number_of_lanes_is_a_positive_integer(take_apart, n):
    with refused(InputError, "positive integer", repr(n)):
        take_apart({"x": torch.zeros(1, 6), "mode": "plain"}, n)
    with refused(InputError, "positive integer", repr(n)):
        take_apart({"mode": "plain"}, n)
