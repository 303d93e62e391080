"""Recurrent layers of N lanes, one after another, each over all time steps.

Shapes: N lanes, B batch, T time steps, I in-features, H hidden features, K layers * directions,
W lanes * directions.

The two directions of a bidirectional layer are run as twice as many lanes, the second half on the input
turned round in time: half as many steps, and no code of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels
from ..errors import ArgumentError
from ._lanes import autocast_dtype
from .linear import wide_linear
from .rnn_cells import LSTM, Kind, LayerWeights, State


def layer_weights(
    kind: Kind, weights: Sequence[Tensor], num_layers: int, directions: int, has_biases: bool
) -> list[LayerWeights]:
    """The tensors of each layer out of the flat list, its directions laid end to end along the lanes."""
    hidden = weights[1].shape[1] // kind.gates
    projected = kind is LSTM and weights[1].shape[2] != hidden
    per = 2 + 2 * has_biases + projected
    if len(weights) != num_layers * directions * per:
        raise ArgumentError(
            f"{kind.name}: expected {per} tensors for each of {num_layers} layers and {directions} "
            f"directions, in the order of nn.LSTM's _flat_weights; got {len(weights)} tensors"
        )
    layers = []
    for first in range(0, len(weights), per * directions):
        # Tensor j of this layer, of every direction.
        tensors = [weights[first + j : first + per * directions : per] for j in range(per)]
        joined = [t[0] if directions == 1 else torch.cat(list(t)) for t in tensors]
        b_ih, b_hh = joined[2:4] if has_biases else (None, None)
        layers.append(LayerWeights(joined[0], joined[1], b_ih, b_hh, joined[-1] if projected else None))
    return layers


def _run_layer(
    kind: Kind, x: Tensor, state: State, w: LayerWeights, time: int, persistent: bool
) -> tuple[Tensor, State]:
    """One layer over all time steps.

    Args:
        x: `[W, T, B, I]` (time = 1) or `[W, B, T, I]` (time = 2).
        state: each `[W, B, H]`.

    Returns:
        `[W, T, B, H]` (or `[W, B, T, H]`) and the last state.
    """
    bias = w.b_ih
    if bias is not None and w.b_hh is not None and not kind.bias_in_step:
        bias = bias + w.b_hh
    gates_x = wide_linear(x, w.w_ih, bias)  # of all time steps at once
    if persistent and _persistent_fits(kind, gates_x, w):
        return _run_persistent(kind, gates_x, state, w, time)
    outputs = []
    # Time in front, once, so that what a step reads is contiguous. unbind, not gates_x[t]: the backward
    # of T selects would fill T tensors of the size of gates_x.
    for gates_t in gates_x.movedim(time, 0).contiguous().unbind(0):
        state = kind.cell(gates_t, state, w)
        outputs.append(state[0])
    return torch.stack(outputs, time), state


def _persistent_fits(kind: Kind, gates_x: Tensor, w: LayerWeights) -> bool:
    if kind.name not in ("wide_lstm", "wide_gru") or w.w_hr is not None or not gates_x.is_cuda:
        return False
    if autocast_dtype(gates_x) or not kernels.can_run(gates_x, w.w_hh):
        return False
    from ..kernels.rnn import fits

    return fits(gates_x, w.w_hh.shape[-1])


def _run_persistent(
    kind: Kind, gates_x: Tensor, state: State, w: LayerWeights, time: int
) -> tuple[Tensor, State]:
    """`_run_layer` from the gates on: all time steps in one kernel, which keeps the state on the chip."""
    from ..kernels.rnn import lane_gru, lane_lstm

    gates_NTB = gates_x if time == 1 else gates_x.transpose(1, 2)
    if kind.states == 2:
        y_NTB, cell = lane_lstm(gates_NTB, w.w_hh, *state)
        last: State = (y_NTB[:, -1], cell)
    else:
        y_NTB = lane_gru(gates_NTB, w.w_hh, w.b_hh, *state)
        last = (y_NTB[:, -1],)
    return (y_NTB if time == 1 else y_NTB.transpose(1, 2)), last


def run_layers(
    kind: Kind,
    x: Tensor,
    state: State,
    layers: list[LayerWeights],
    directions: int,
    time: int,
    dropout: float,
    persistent: bool,
) -> tuple[Tensor, State]:
    """All layers; x as in `_run_layer` with N lanes, state each `[N, K, B, H]`."""
    n = x.shape[0]
    finals: list[State] = []
    for index, w in enumerate(layers):
        first = index * directions
        # [N, D, B, H] -> [D*N, B, H], the order in which the directions' weights were joined.
        own = tuple(s[:, first : first + directions].transpose(0, 1).flatten(0, 1) for s in state)
        if index and dropout > 0:
            x = F.dropout(x, dropout)
        both = x if directions == 1 else torch.cat([x, x.flip(time)])
        y, last = _run_layer(kind, both, own, w, time, persistent)
        if directions == 2:
            ahead, back = y.chunk(2)
            y = torch.cat([ahead, back.flip(time)], -1)
        x = y
        finals.append(tuple(s.unflatten(0, (directions, n)).transpose(0, 1) for s in last))
    return x, tuple(torch.cat(parts, 1) for parts in zip(*finals, strict=True))
