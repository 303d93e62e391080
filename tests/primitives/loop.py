"""The plain loop over N members, and a wide module or kernel held against it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from wide_compiler.primitives import WideModule

DEVICE = os.environ.get("WIDE_TEST_DEVICE", "cpu")
N = 3
# Relative to the largest value of the tensor. cuDNN's recurrent cells are not that exact in float32.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5 if DEVICE == "cpu" else 1e-4}


def assert_near(got: Tensor, want: Tensor, what: str = "") -> None:
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, expected {want.dtype}"
    if want.numel() == 0:
        return
    tolerance = TOLERANCE.get(want.dtype, 0.0)
    scale = want.detach().abs().max().clamp(min=1e-3)
    error = ((got - want).detach().abs().max() / scale).item()
    assert error <= tolerance, f"{what}: relative error {error:.2e}"


def randomise_(module: nn.Module) -> nn.Module:
    """Tensors that a mistake would show in: no zero biases, no unit scales, no fresh statistics."""
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
        for name, b in module.named_buffers():
            if b.is_floating_point():
                b.copy_(torch.rand_like(b) + 0.5 if "var" in name else torch.randn_like(b))
    return module


def make_members(
    make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64, n: int = N
) -> list[nn.Module]:
    return [randomise_(make().to(DEVICE, dtype)) for _ in range(n)]


def rand(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def randint(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, high, shape, device=DEVICE, dtype=dtype)


def _grads(outputs: Any, leaves: list[Tensor], cotangents: list[Tensor]) -> list[Tensor]:
    outs = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
    grads = torch.autograd.grad(outs, leaves, cotangents, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True)]


def check_module(
    wide_class: type[WideModule],
    make: Callable[[], nn.Module],
    inputs: Sequence[Any],
    strategy: str = "auto",
    dtype: torch.dtype = torch.float64,
    train: bool = True,
    call: Callable[..., Any] = lambda module, *args: module(*args),
    shared: Sequence[int] = (),
    n: int = N,
    steps: int = 1,
) -> WideModule:
    """Run a wide module and the loop over its members; compare results, gradients and buffers.

    Args:
        inputs: wide arguments, lane axis in front; None and the positions in `shared` go to all lanes as
            they are.
        call: how a module (wide or member) is run on its arguments.
        steps: how often to run before comparing (for running statistics).
    """
    members = [m.train(train) for m in make_members(make, dtype, n)]
    wide = wide_class.from_modules(members, strategy)
    assert wide.training == train and wide.n == n and wide.strategy == strategy
    inputs = [x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]

    def differentiable(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(differentiable(t) for t in x)
        if isinstance(x, Tensor) and x.is_floating_point():
            return x.detach().clone().requires_grad_()
        return x

    def lane(x: Any, i: int) -> Any:
        if isinstance(x, tuple):
            return tuple(lane(t, i) for t in x)
        return x[i] if isinstance(x, Tensor) else x

    wide_args = [differentiable(x) for x in inputs]
    loop_args = [differentiable(x) for x in inputs]
    for _ in range(steps):
        got = call(wide, *wide_args)
        per_lane = [
            call(m, *(x if j in shared else lane(x, i) for j, x in enumerate(loop_args)))
            for i, m in enumerate(members)
        ]
    got_leaves = [t for t in tree_leaves(got) if t is not None]
    want_leaves = [
        torch.stack(parts)
        for parts in zip(*(tree_leaves(p) for p in per_lane), strict=True)
        if parts[0] is not None
    ]
    assert len(got_leaves) == len(want_leaves)
    for j, (a, b) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        assert_near(a, b, f"output {j}")

    cotangents = [torch.randn_like(t) for t in want_leaves if t.requires_grad]
    wide_xs = [t for t in tree_leaves(wide_args) if isinstance(t, Tensor) and t.requires_grad]
    loop_xs = [t for t in tree_leaves(loop_args) if isinstance(t, Tensor) and t.requires_grad]
    names = [name for name, _ in wide.named_parameters()]
    lanes = [dict(m.named_parameters()) for m in members]
    assert names == list(lanes[0])
    if cotangents:
        got_grads = _grads(got_leaves, [*wide_xs, *wide.parameters()], cotangents)
        want_all = _grads(want_leaves, [*loop_xs, *(l[name] for name in names for l in lanes)], cotangents)
        want_grads = want_all[: len(loop_xs)]
        for j in range(len(names)):
            start = len(loop_xs) + j * n
            want_grads.append(torch.stack(want_all[start : start + n]))
        labels = [*(f"input {j}" for j in range(len(loop_xs))), *names]
        for label, a, b in zip(labels, got_grads, want_grads, strict=True):
            assert_near(a, b, f"gradient of {label}")

    check_same_state(wide, members)
    return wide


def check_same_state(wide: WideModule, members: list[nn.Module]) -> None:
    """The stacked tensors are the members', and `to_modules` gives modules that hold the same."""
    back = wide.to_modules()
    assert len(back) == len(members)
    for i, (a, b) in enumerate(zip(back, members, strict=True)):
        assert type(a) is type(b) and a.training == b.training and a.extra_repr() == b.extra_repr()
        mine, theirs, stacked = a.state_dict(), b.state_dict(), wide.state_dict()
        assert list(mine) == list(theirs) == list(stacked)
        for name in theirs:
            assert_near(mine[name], theirs[name], name)
            assert_near(stacked[name][i], theirs[name], name)
        for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
            assert p.requires_grad == q.requires_grad, name
