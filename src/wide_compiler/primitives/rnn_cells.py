"""One time step of each kind of recurrent layer, for all lanes; and what tells the kinds apart.

Shapes: B batch, I in-features, H hidden features, G gates * H, W lanes * directions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

State = tuple[Tensor, ...]  # (h,) or (h, c); h is what a step puts out


class LayerWeights(NamedTuple):
    """The tensors of one layer, both directions of it: `[W, ...]`."""

    w_ih: Tensor  # [W, G, I]
    w_hh: Tensor  # [W, G, H]
    b_ih: Tensor | None  # [W, G]
    b_hh: Tensor | None  # [W, G]
    w_hr: Tensor | None  # [W, projection, H], LSTM with a projection only


Cell = Callable[[Tensor, State, LayerWeights], State]


def _one_kernel(gates_x: Tensor, state: State) -> bool:
    """Whether torch's own pointwise cell can run: on CUDA a step is mostly launches, and it is one for ten.

    Compiled, the plain formula is fused anyway; under autocast the dtypes differ.
    """
    return gates_x.is_cuda and not torch.compiler.is_dynamo_compiling() and state[-1].dtype == gates_x.dtype


def _lstm_cell(gates_x: Tensor, state: State, w: LayerWeights) -> State:
    h, c = state
    if _one_kernel(gates_x, state):
        # Its rows know no lane: those of all lanes go in as one batch.
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
    # The new gate's hidden part is scaled by the reset gate, its bias with it: so b_hh comes in here.
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
    """What tells one recurrent network from another."""

    name: str
    cell: Cell
    native: Callable[..., tuple[Tensor, ...]]
    gates: int
    states: int
    bias_in_step: bool  # the cell adds b_hh itself


LSTM = Kind("wide_lstm", _lstm_cell, torch.lstm, 4, 2, False)
GRU = Kind("wide_gru", _gru_cell, torch.gru, 3, 1, True)
RNN = {
    "tanh": Kind("wide_rnn", _tanh_cell, torch.rnn_tanh, 1, 1, False),
    "relu": Kind("wide_rnn", _relu_cell, torch.rnn_relu, 1, 1, False),
}
