"""Recurrent networks of N lanes: one batched product per time step for all lanes.

Shapes: N lanes, B batch, T time steps, I in-features, H hidden features, K layers * directions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, WrongTypeError
from ._lanes import check_lanes, resolve
from .rnn_layers import GRU, LSTM, RNN, Kind, State, layer_weights, run_layers

RNN_STRATEGIES = ("batched", "persistent", "sequential")


def _wide_rnn(
    kind: Kind, x: Tensor, hx: State | None, weights: Sequence[Tensor], settings: tuple[Any, ...]
) -> tuple[Tensor, State]:
    """Run any of the three networks; returns the output and the last states, `[N, K, B, H]` each."""
    op, (num_layers, bidirectional, batch_first, has_biases, dropout, train, strategy) = kind.name, settings
    if not isinstance(x, Tensor):
        raise WrongTypeError(
            f"{op}: expected a tensor, got {type(x).__name__}; a PackedSequence is not supported, "
            "pad the sequences and mask the loss instead"
        )
    if x.dim() not in (3, 4):
        axes = "[N, B, T, I]" if batch_first else "[N, T, B, I]"
        raise ArgumentError(f"{op}: expected x {axes}, or [N, T, I] unbatched, got {tuple(x.shape)}")
    n = check_lanes(op, x=x, w_ih=weights[0], w_hh=weights[1])
    chosen = resolve(strategy, RNN_STRATEGIES, auto="batched", op=op)
    directions = 2 if bidirectional else 1
    layers = layer_weights(kind, weights, num_layers, directions, has_biases)

    time = 2 if batch_first else 1
    batched = x.dim() == 4
    if not batched:
        x = x.unsqueeze(3 - time)
    if x.shape[time] == 0:
        raise ArgumentError(f"{op}: expected at least one time step, got {tuple(x.shape)}")
    hidden = layers[0].w_hh.shape[1] // kind.gates
    sizes = (layers[0].w_hh.shape[2], hidden)[: kind.states]
    shapes = [(n, num_layers * directions, x.shape[3 - time], size) for size in sizes]
    if hx is None:
        state: State = tuple(x.new_zeros(shape) for shape in shapes)
    else:
        state = tuple(s if batched else s.unsqueeze(2) for s in hx)
        got = [tuple(s.shape) for s in state]
        if got != shapes:
            raise ArgumentError(f"{op}: expected states of shape {shapes} ([N, K, B, H]), got {got}")

    if chosen == "sequential":
        results = []
        for lane in range(n):
            own = tuple(s[lane] for s in state)
            flat = [w[lane] for w in weights]
            options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
            results.append(kind.native(x[lane], own if kind.states > 1 else own[0], flat, *options))
        y, *final = (torch.stack(parts) for parts in zip(*results, strict=True))
        last: State = tuple(final)
    else:
        rate = dropout if train else 0.0
        y, last = run_layers(kind, x, state, layers, directions, time, rate, chosen == "persistent")
    if batched:
        return y, last
    return y.squeeze(3 - time), tuple(s.squeeze(2) for s in last)


def wide_lstm(
    x: Tensor,
    hx: tuple[Tensor, Tensor] | None,
    weights: Sequence[Tensor],
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    has_biases: bool = True,
    dropout: float = 0.0,
    train: bool = False,
    strategy: str = "auto",
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """LSTM, each lane with its own weights.

    Args:
        x: `[N, B, T, I]` if batch_first, else `[N, T, B, I]`; unbatched `[N, T, I]`.
        hx: `(h, c)`, `[N, K, B, H]` each (unbatched `[N, K, H]`; with a projection h has its width), or None
            for zeros. K is layers * directions.
        weights: the list `nn.LSTM._flat_weights`, each tensor stacked to `[N, ...]`.
        train: whether to apply dropout between layers.
        strategy: "batched" (one batched product per step for all lanes), "persistent" (one Triton kernel on
            CUDA for all steps if the layer is narrow enough; else "batched"), "sequential" (torch's LSTM, one
            call per lane), or "auto", which is "batched".

    Returns:
        `(output, (h_n, c_n))` as from `nn.LSTM`, with a lane axis in front.
    """
    settings = (num_layers, bidirectional, batch_first, has_biases, dropout, train, strategy)
    y, (h, c) = _wide_rnn(LSTM, x, hx, weights, settings)
    return y, (h, c)


def wide_gru(
    x: Tensor,
    hx: Tensor | None,
    weights: Sequence[Tensor],
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    has_biases: bool = True,
    dropout: float = 0.0,
    train: bool = False,
    strategy: str = "auto",
) -> tuple[Tensor, Tensor]:
    """GRU, each lane with its own weights; arguments as in `wide_lstm`, with one state `[N, K, B, H]`."""
    settings = (num_layers, bidirectional, batch_first, has_biases, dropout, train, strategy)
    y, (h,) = _wide_rnn(GRU, x, None if hx is None else (hx,), weights, settings)
    return y, h


def wide_rnn(
    x: Tensor,
    hx: Tensor | None,
    weights: Sequence[Tensor],
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    has_biases: bool = True,
    dropout: float = 0.0,
    train: bool = False,
    nonlinearity: str = "tanh",
    strategy: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Elman network with nonlinearity "tanh" or "relu"; other arguments as in `wide_gru`."""
    if nonlinearity not in RNN:
        raise ArgumentError(f"wide_rnn: expected nonlinearity 'tanh' or 'relu', got {nonlinearity!r}")
    settings = (num_layers, bidirectional, batch_first, has_biases, dropout, train, strategy)
    y, (h,) = _wide_rnn(RNN[nonlinearity], x, None if hx is None else (hx,), weights, settings)
    return y, h
