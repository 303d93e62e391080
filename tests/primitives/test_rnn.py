from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from primitives.loop import DEVICE, N, assert_near, check_module, make_members, rand
from wide_compiler.primitives import WideGRU, WideLSTM, WideRNN, wide_gru, wide_lstm, wide_rnn

KINDS: dict[str, tuple[Any, Any]] = {
    "lstm": (WideLSTM, nn.LSTM),
    "gru": (WideGRU, nn.GRU),
    "tanh": (WideRNN, nn.RNN),
    "relu": (WideRNN, lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k)),
}
STRATEGIES = WideLSTM.STRATEGIES
B, T, I, H = 2, 4, 3, 5


def states(kind: str, options: dict[str, Any], batch: tuple[int, ...]) -> Any:
    count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    h = rand(N, count, *batch, options.get("proj_size", 0) or H)
    return (h, rand(N, count, *batch, H)) if kind == "lstm" else h


def check(
    kind: str, options: dict[str, Any], strategy: str, batch: tuple[int, ...], given: bool, **rest: Any
):
    wide, member = KINDS[kind]
    first = options.get("batch_first", False)
    x = rand(N, *batch, T, I) if first else rand(N, T, *batch, I)
    hx = states(kind, options, batch) if given else None
    check_module(wide, lambda: member(I, H, **options), [x, hx], strategy, **rest)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("batch", [(B,), ()])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True, "bias": False},
        {"num_layers": 2, "bidirectional": True},
        {"num_layers": 2, "batch_first": True, "bidirectional": True, "bias": False},
    ],
    ids=str,
)
def test_module_is_the_loop(
    kind: str, strategy: str, given: bool, batch: tuple[int, ...], options: dict[str, Any]
) -> None:
    check(kind, options, strategy, batch, given)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    "options",
    [{"proj_size": 2}, {"proj_size": 2, "bias": False, "num_layers": 2, "bidirectional": True}],
    ids=str,
)
def test_lstm_with_a_projection(strategy: str, given: bool, options: dict[str, Any]) -> None:
    check("lstm", options, strategy, (B,), given)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", WideLSTM.STRATEGIES)
def test_dropout_between_layers(kind: str, strategy: str) -> None:
    """With probability 1 dropout is not random: only what the second layer makes of zeros is left."""
    check(kind, {"num_layers": 3, "dropout": 1.0}, strategy, (B,), True)
    if DEVICE == "cpu":  # cuDNN differentiates in training mode only
        check(kind, {"num_layers": 2, "dropout": 0.5}, strategy, (B,), True, train=False)
    wide, member = KINDS[kind]
    layer = wide.from_modules(make_members(lambda: member(I, H, num_layers=2, dropout=0.5)), strategy)
    x = rand(N, T, B, I)
    assert not torch.allclose(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", WideLSTM.STRATEGIES)
def test_float32_and_one_lane(kind: str, strategy: str) -> None:
    wide, member = KINDS[kind]
    check_module(wide, lambda: member(I, H), [rand(N, T, B, I)], strategy, torch.float32)
    check_module(wide, lambda: member(I, H), [rand(1, 1, 1, I)], strategy, n=1)


@pytest.mark.parametrize("kind", KINDS)
def test_auto(kind: str) -> None:
    check(kind, {"num_layers": 2, "bidirectional": True}, "auto", (B,), True)


def test_kernels_take_the_flat_list() -> None:
    for kernel, member in ((wide_lstm, nn.LSTM), (wide_gru, nn.GRU), (wide_rnn, nn.RNN)):
        members: list[Any] = make_members(lambda member=member: member(I, H, num_layers=2))
        weights = [torch.stack(list(w)) for w in zip(*(m._flat_weights for m in members), strict=True)]
        x = rand(N, T, B, I)
        y = kernel(x, None, weights, num_layers=2)[0]  # type: ignore[operator]
        assert_near(y, torch.stack([m(x[i])[0] for i, m in enumerate(members)]))


def test_bad_input() -> None:
    layer = WideLSTM.from_modules(make_members(lambda: nn.LSTM(I, H)))
    packed: Any = pack_sequence([rand(T, I), rand(T - 1, I)])
    with pytest.raises(TypeError, match="PackedSequence is not supported"):
        layer(packed)
    with pytest.raises(
        ValueError, match=r"expected x \[N, T, B, I\], or \[N, T, I\] unbatched, got \(3, 3\)"
    ):
        layer(rand(N, I))
    with pytest.raises(ValueError, match="at least one time step"):
        layer(rand(N, 0, B, I))
    with pytest.raises(ValueError, match=r"expected states of shape .*\(3, 1, 2, 5\).*got .*\(3, 2, 2, 5\)"):
        layer(rand(N, T, B, I), (rand(N, 2, B, H), rand(N, 2, B, H)))
    weights: list[Tensor] = [layer.weight_ih_l0, layer.weight_hh_l0]
    with pytest.raises(ValueError, match=r"expected 4 tensors for each of 1 layers and 1 directions.*got 2"):
        wide_lstm(rand(N, T, B, I), None, weights)
    with pytest.raises(ValueError, match="'tanh' or 'relu', got 'gelu'"):
        wide_rnn(rand(N, T, B, I), None, weights, nonlinearity="gelu")
