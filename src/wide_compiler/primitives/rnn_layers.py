"""Recurrent layers of N lanes: the cell of each network type, and the loop over layers and time steps.

Shapes: N lanes, B batch, T time steps, I in-features, H hidden features, G gates * H, K layers * directions,
W lanes * directions.

The two directions of a bidirectional layer run as twice as many lanes, the second half on the input reversed
in time. This halves the number of steps and needs no separate code.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels
from ..errors import ArgumentError
from ._lanes import autocast_dtype
from .linear import wide_linear

State = tuple[Tensor, ...]  # (h,) or (h, c); h is the output of a step


class LayerWeights(NamedTuple):
    """The tensors of one layer, both directions: `[W, ...]`."""

    w_ih: Tensor  # [W, G, I]
    w_hh: Tensor  # [W, G, H]
    b_ih: Tensor | None  # [W, G]
    b_hh: Tensor | None  # [W, G]
    w_hr: Tensor | None  # [W, projection, H], LSTM with a projection only


Cell = Callable[[Tensor, State, LayerWeights], State]


def _one_kernel(gates_x: Tensor, state: State) -> bool:
    """Return whether torch's fused pointwise cell can run.

    On CUDA launches dominate a step, and the fused cell is one launch instead of ten. When compiling, the
    plain formula is fused anyway; under autocast the dtypes differ.
    """
    return gates_x.is_cuda and not torch.compiler.is_dynamo_compiling() and state[-1].dtype == gates_x.dtype


def _lstm_cell(gates_x: Tensor, state: State, w: LayerWeights) -> State:
    h, c = state
    if _one_kernel(gates_x, state):
        # The fused cell has no lane axis: the rows of all lanes are one batch.
        rows = (gates_x, torch.bmm(h, w.w_hh.mT), c)
        h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(*(t.flatten(0, 1) for t in rows))
        h, c = (t.unflatten(0, gates_x.shape[:2]) for t in (h, c))
    else:
        i, f, g, o = torch.baddbmm(gates_x, h, w.w_hh.mT).chunk(4, -1)
        c = torch.addcmul(torch.sigmoid(f) * c, torch.sigmoid(i), torch.tanh(g))
        h = torch.sigmoid(o) * torch.tanh(c)
    return (h if w.w_hr is None else torch.bmm(h, w.w_hr.mT)), c


def _gru_cell(gates_x: Tensor, state: State, w: LayerWeights) -> State:
    (h,) = state
    # The reset gate also scales the bias of the new gate's hidden part, so b_hh is added here.
    if w.b_hh is None:
        gates_h = torch.bmm(h, w.w_hh.mT)
    else:
        gates_h = torch.baddbmm(w.b_hh.unsqueeze(1), h, w.w_hh.mT)
    if _one_kernel(gates_x, state):
        rows = (gates_x, gates_h, h)
        h, _ = torch.ops.aten._thnn_fused_gru_cell(*(t.flatten(0, 1) for t in rows))
        return (h.unflatten(0, gates_x.shape[:2]),)
    size = h.shape[-1]
    rz_x, n_x = gates_x.split([2 * size, size], -1)
    rz_h, n_h = gates_h.split([2 * size, size], -1)
    r, z = torch.sigmoid(rz_x + rz_h).chunk(2, -1)
    new = torch.tanh(torch.addcmul(n_x, r, n_h))
    return (torch.lerp(new, h, z),)


def _tanh_cell(gates_x: Tensor, state: State, w: LayerWeights) -> State:
    return (torch.tanh(torch.baddbmm(gates_x, state[0], w.w_hh.mT)),)


def _relu_cell(gates_x: Tensor, state: State, w: LayerWeights) -> State:
    return (torch.relu(torch.baddbmm(gates_x, state[0], w.w_hh.mT)),)


class Kind(NamedTuple):
    """The differences between the recurrent networks."""

    name: str
    cell: Cell
    native: Callable[..., tuple[Tensor, ...]]
    gates: int
    states: int
    bias_in_step: bool  # the cell adds b_hh


LSTM = Kind("wide_lstm", _lstm_cell, torch.lstm, 4, 2, False)
GRU = Kind("wide_gru", _gru_cell, torch.gru, 3, 1, True)
RNN = {
    "tanh": Kind("wide_rnn", _tanh_cell, torch.rnn_tanh, 1, 1, False),
    "relu": Kind("wide_rnn", _relu_cell, torch.rnn_relu, 1, 1, False),
}


def layer_weights(
    kind: Kind, weights: Sequence[Tensor], num_layers: int, directions: int, has_biases: bool
) -> list[LayerWeights]:
    """Group the flat list of tensors by layer; the directions are concatenated along the lanes."""
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
        # tensor j of this layer, for every direction
        tensors = [weights[first + j : first + per * directions : per] for j in range(per)]
        joined = [t[0] if directions == 1 else torch.cat(list(t)) for t in tensors]
        b_ih, b_hh = joined[2:4] if has_biases else (None, None)
        layers.append(LayerWeights(joined[0], joined[1], b_ih, b_hh, joined[-1] if projected else None))
    return layers


def _run_layer(
    kind: Kind, x: Tensor, state: State, w: LayerWeights, time: int, persistent: bool
) -> tuple[Tensor, State]:
    """Run one layer over all time steps; returns the output and the last state.

    x and the output are `[W, T, B, I]` (time = 1) or `[W, B, T, I]` (time = 2); each state is `[W, B, H]`.
    """
    bias = w.b_ih
    if bias is not None and w.b_hh is not None and not kind.bias_in_step:
        bias = bias + w.b_hh
    gates_x = wide_linear(x, w.w_ih, bias)  # for all time steps at once
    if persistent and _persistent_fits(kind, gates_x, w):
        return _run_persistent(kind, gates_x, state, w, time)
    outputs = []
    # Time is moved in front once, so that each step reads contiguous memory. unbind, not gates_x[t]: the
    # backward of T selects would fill T tensors of the size of gates_x.
    for gates_t in gates_x.movedim(time, 0).contiguous().unbind(0):
        state = kind.cell(gates_t, state, w)
        outputs.append(state[0])
    return torch.stack(outputs, time), state


def _persistent_fits(kind: Kind, gates_x: Tensor, w: LayerWeights) -> bool:
    if kind.name not in ("wide_lstm", "wide_gru") or w.w_hr is not None or not gates_x.is_cuda:
        return False
    if autocast_dtype(gates_x) or not kernels.can_run(gates_x, w.w_hh):
        return False
    from ..kernels.lane_rnn import fits

    return fits(gates_x, w.w_hh.shape[-1])


def _run_persistent(
    kind: Kind, gates_x: Tensor, state: State, w: LayerWeights, time: int
) -> tuple[Tensor, State]:
    """Run `_run_layer` from the input gates on: all time steps in one kernel that keeps the state on chip."""
    from ..kernels.lane_rnn import lane_gru, lane_lstm

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
    """Run all layers; x as in `_run_layer` with N lanes, state `[N, K, B, H]` each."""
    n = x.shape[0]
    finals: list[State] = []
    for index, w in enumerate(layers):
        first = index * directions
        # [N, D, B, H] -> [D*N, B, H], the order in which `layer_weights` concatenates the directions.
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
