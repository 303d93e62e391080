"""A whole MLP in one kernel against float64 torch, and its gradient kernel against autograd."""

from itertools import pairwise

import pytest
import torch

from kernels.device import DEVICE, needs_kernels, triton
from wide_compiler.kernels import chain_backward, chain_forward, chain_tiles
from wide_compiler.kernels import lane_chain as chain
from wide_compiler.kernels._triton import sound_wgmma
from wide_compiler.kernels.activations import ACTIVATIONS
from wide_compiler.kernels.lane_chain import fits, lane_chain

pytestmark = needs_kernels


def make(dims, n=2, b=5, unbiased=(), grad=True):
    """x, the weights, and the biases, None for the layers of `unbiased`."""

    def rand(*shape):
        return (torch.randn(shape, device=DEVICE) / shape[-1] ** 0.5).requires_grad_(grad)

    weights = [rand(n, o, i) for i, o in pairwise(dims)]
    biases = [None if l in unbiased else rand(n, o) for l, o in enumerate(dims[1:])]
    return torch.randn(n, b, dims[0], device=DEVICE).requires_grad_(grad), weights, biases


def reference(x, weights, biases, activations):
    x = x.double()
    for w, b, act in zip(weights, biases, activations, strict=True):
        x = x @ w.double().mT
        x = ACTIVATIONS[act](x if b is None else x + b.double().unsqueeze(1))
    return x


def leaves(x, weights, biases):
    return [x, *weights, *(b for b in biases if b is not None)]


def check(actual, expected, tol=2e-5):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tol, atol=tol)


def check_all(x, weights, biases, activations):
    """Output without grad, output with it, and every gradient."""
    expected = reference(x, weights, biases, activations)
    with torch.no_grad():
        check(lane_chain(x, weights, biases, activations), expected)
    y = lane_chain(x, weights, biases, activations)
    check(y, expected)
    dy = torch.randn_like(y)
    inputs = [t for t in leaves(x, weights, biases) if t.requires_grad]
    grads = torch.autograd.grad(y, inputs, dy)
    for got, want in zip(grads, torch.autograd.grad(expected, inputs, dy.double()), strict=True):
        check(got, want)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_activation_inside_and_at_the_end(activation):
    check_all(*make((33, 17, 20)), [activation, activation])


@pytest.mark.parametrize(
    "dims, batch, unbiased, activations",
    [
        ((7, 3), 5, (), ["none"]),
        ((7, 3), 1, (0,), ["gelu"]),
        ((16, 64, 16), 17, (), ["relu", "none"]),
        ((7, 50, 20, 3), 33, (1,), ["gelu", "tanh", "sigmoid"]),
        ((5, 70, 1), 20, (0, 1), ["silu", "relu"]),
        ((1, 128, 2), 16, (), ["sigmoid", "gelu_tanh"]),
        ((4,) * 13, 3, (), ["tanh"] * 12),
    ],
)
def test_shapes(dims, batch, unbiased, activations):
    x, weights, biases = make(dims, b=batch, unbiased=unbiased)
    assert fits(x, weights)
    check_all(x, weights, biases, activations)


# With the wider ones ptxas 12.8 takes an operand's address from a register that nothing has set.
@pytest.mark.parametrize("compute", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch", [5, 16, 70])
@pytest.mark.parametrize("dims", [(33, 17, 20), (34, 36, 36), (17, 64, 64, 5), (16, 20, 64, 64, 32)], ids=str)
def test_in_16_bits_with_float32_weights(compute, batch, dims):
    if DEVICE == "cpu" and len(dims) > 3:
        pytest.skip("slow in the interpreter")
    x, weights, biases = make(dims, b=batch)
    activations = ["gelu"] * (len(dims) - 2) + ["none"]
    y = lane_chain(x, weights, biases, activations, compute)
    expected = reference(x, weights, biases, activations)
    assert y.dtype == compute
    check(y, expected, 3e-2)
    dy, inputs = torch.randn_like(y), leaves(x, weights, biases)
    grads = torch.autograd.grad(y, inputs, dy)
    for got, want in zip(grads, torch.autograd.grad(expected, inputs, dy.double()), strict=True):
        assert got.dtype == torch.float32
        assert (got - want).norm() < 2e-2 * want.norm()


@pytest.mark.skipif(DEVICE == "cpu", reason="no GPU")
def test_16_bit_chains_use_no_instruction_that_is_miscompiled():
    x, weights, _ = make((34, 36, 36), n=895, b=155, grad=False)
    y = lane_chain(x, weights, None, ["tanh", "tanh"], torch.bfloat16)
    check(y, reference(x, weights, [None, None], ["tanh", "tanh"]), 3e-2)
    wide = [torch.empty(2, 128, 34, device=DEVICE)]
    assert fits(x[:2], wide) and fits(x[:2], wide, torch.bfloat16) == sound_wgmma()


def test_a_large_batch_trains_layer_by_layer(monkeypatch):
    calls = []
    monkeypatch.setattr(chain, "_chain_backward", lambda *_: calls.append(1))
    check_all(*make((7, 20, 3), b=70), ["gelu", "none"])
    assert not calls


def test_the_kernel_takes_the_gradient_of_a_small_batch(monkeypatch):
    x, weights, biases = make((7, 20, 3))
    monkeypatch.setattr(chain, "_layerwise", lambda *_: pytest.fail("ran layer by layer"))
    lane_chain(x, weights, biases).sum().backward()
    assert all(t.grad is not None for t in leaves(x, weights, biases))


def test_shared_and_strided_inputs():
    x, weights, biases = make((7, 20, 3))
    shared = torch.randn(5, 7, device=DEVICE).requires_grad_()
    check_all(shared.expand(2, 5, 7), weights, biases, ["relu", "none"])
    check_all(
        torch.randn(2, 7, 5, device=DEVICE).mT, [w.mT.contiguous().mT for w in weights], biases, ["relu"] * 2
    )
    check_all(x.detach(), weights, biases, ["relu", "none"])  # x needs no gradient: none is computed


def test_one_weight_for_two_layers():
    x, (w,), biases = make((6, 6))
    check_all(x, [w, w], [*biases, None], ["tanh", "gelu"])


def test_defaults_and_an_empty_batch():
    x, weights, biases = make((7, 20, 3))
    check(lane_chain(x, weights), reference(x, weights, [None, None], ["relu", "none"]))
    y = lane_chain(x[:, :0], weights, biases)
    assert y.shape == (2, 0, 3)
    y.sum().backward()
    assert all(not t.grad.any() for t in leaves(x, weights, biases))


@pytest.mark.parametrize("shared", [False, True])
def test_double_backward(shared):
    x, weights, biases = make((6, 6, 6))
    if shared:
        weights = [weights[0], weights[0]]

    def second(y):
        (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return torch.autograd.grad(dx.pow(2).sum(), [x, weights[0]])

    activations = ["gelu", "tanh"]
    actual = second(lane_chain(x, weights, biases, activations))
    for got, want in zip(actual, second(reference(x, weights, biases, activations)), strict=True):
        check(got, want)


@pytest.mark.parametrize("keep", [False, True])
def test_the_ops_keep_torchs_rules(keep):
    x, weights, biases = make((6, 5, 3))
    torch.library.opcheck(chain._chain, (x, weights, biases[:1], [True, False], "silu,gelu", keep, x.dtype))


def test_the_gradient_op_keeps_torchs_rules():
    x, weights, biases = make((6, 5, 3), grad=False)
    y, saved = chain._chain(x, weights, biases, [True, True], "silu,none", True, x.dtype)
    torch.library.opcheck(
        chain._chain_backward,
        (y, x, weights, saved, [True, True], "silu,none", True, x.dtype),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_compiled_without_a_graph_break():
    x, weights, biases = make((6, 5, 3))
    activations = ["gelu", "none"]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(x, weights, biases):
        return lane_chain(x, weights, biases, activations)

    y = run(x, weights, biases)
    expected = reference(x, weights, biases, activations)
    check(y, expected)
    inputs = leaves(x, weights, biases)
    grads = torch.autograd.grad(y.sum(), inputs)
    for got, want in zip(grads, torch.autograd.grad(expected.sum(), inputs), strict=True):
        check(got, want)


def test_what_fits():
    x, weights, _ = make((6, 5, 3), grad=False)
    assert fits(x, weights)
    assert not fits(x, [])
    assert fits(x.bfloat16(), [w.bfloat16() for w in weights]) and fits(x.bfloat16(), weights)
    assert not fits(x.double(), weights)
    assert not fits(x, [weights[0].double(), weights[1]])
    assert not fits(x[0], weights)
    assert not fits(x, [torch.empty(2, 129, 6, device=DEVICE)])
    assert not fits(x, [torch.empty(2, 6, 6, device=DEVICE)] * 13)


def test_bad_lists():
    x, weights, biases = make((6, 5, 3))
    with pytest.raises(ValueError, match="one activation per layer"):
        lane_chain(x, weights, biases, ["relu"])
    with pytest.raises(ValueError, match="unknown activation 'swish'"):
        lane_chain(x, weights, biases, ["swish", "none"])


@pytest.mark.parametrize("config", range(3))
def test_every_way_to_cut_the_work(config, monkeypatch):
    """Batch tiles, a program that walks over lanes, and one that stores some layers' gradients."""
    forward = [(16, 1), (32, 1), (32, 3)][config]
    backward = [1, 4, 2][config]
    monkeypatch.setattr(
        chain_forward.forward_kernel, "configs", [triton.Config({"BB": forward[0], "STAGES": forward[1]})]
    )
    monkeypatch.setattr(chain_backward.backward_kernel, "configs", [triton.Config({"PARTS": backward})])
    x, weights, biases = make((7, 20, 12, 9, 3), n=3, b=37)
    check_all(x, weights, biases, ["gelu", "relu", "none", "silu"])


def test_gradients_of_any_strides():
    x, weights, biases = make((7, 20, 3))
    expected = reference(x, weights, biases, ["gelu", "tanh"])
    for dy in (
        torch.ones(1, 1, 1, device=DEVICE).expand(2, 5, 3),
        torch.randn(3, 5, 2, device=DEVICE).permute(2, 1, 0),
    ):
        y = lane_chain(x, weights, biases, ["gelu", "tanh"])
        inputs = leaves(x, weights, biases)
        grads = torch.autograd.grad(y, inputs, dy)
        wanted = torch.autograd.grad(expected, inputs, dy.double(), retain_graph=True)
        for got, want in zip(grads, wanted, strict=True):
            check(got, want)


@pytest.mark.parametrize("lanes", [1, 128, 1024])
@pytest.mark.parametrize("batch", [1, 16, 32, 1024])
@pytest.mark.parametrize("pads", [(16, 16), (64, 128, 64), (64,) * 9, (128, 128, 16)])
@pytest.mark.parametrize("precision, sound", [("tf32x3", True), ("bf16", True), ("bf16", False)])
def test_pruning_leaves_something(lanes, batch, pads, precision, sound, monkeypatch):
    monkeypatch.setattr(chain_tiles, "sound_wgmma", lambda: sound)
    if not sound and max(pads) > chain.SAFE_WIDTH:
        pytest.skip("layer by layer")
    forward = [triton.Config({"BB": bb, "STAGES": st}, num_warps=w) for bb, st, w in chain_forward.TILES]
    backward = [triton.Config({"PARTS": p}, num_warps=w) for p, w in chain_backward.SHARES]
    named = {"N_KEY": lanes, "B_KEY": batch, "SMS": 132}
    left = chain_forward._prune(forward, named, PADS=pads, PRECISION=precision)
    assert left and all(c.kwargs["BB"] <= max(batch, 16) for c in left)
    left = chain_backward._prune(backward, named, PADS=pads, PRECISION=precision)
    assert left and (lanes < 128 or all(c.kwargs["PARTS"] == 1 for c in left))
    assert all((c.num_warps == 2) != sound for c in left)


def test_what_is_kept_for_the_gradient():
    x, weights, _ = make((7, 20, 12, 9), grad=False)
    plan = chain._plan(x, weights, [True] * 3, "relu,gelu,silu", x.dtype)
    assert plan["KEPT"] == (0, 20, -1) and plan["SLOPES"] == (0, 32, 44) and plan["ROWS"] == 53
    plan = chain._plan(x, weights, [True] * 3, "none,none,tanh", x.dtype)
    assert plan["KEPT"] == (0, 20, 32) and plan["SLOPES"] == (-1, -1, 32) and plan["ROWS"] == 41
