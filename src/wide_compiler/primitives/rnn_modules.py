"""Modules and rules of N recurrent networks, and rules of single cells."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._module import WideModule
from .linear import wide_linear
from .rnn import RNN_STRATEGIES, wide_gru, wide_lstm, wide_rnn


class _WideRecurrent(WideModule):
    CONFIG: ClassVar[tuple[str, ...]] = (
        "input_size",
        "hidden_size",
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
        "proj_size",
    )
    STRATEGIES = RNN_STRATEGIES

    def setup(self, members: list[Any]) -> None:
        self.weight_names: tuple[str, ...] = tuple(members[0]._flat_weights_names)

    def _arguments(self) -> tuple[list[Tensor], int, bool, bool, bool, float, bool]:
        weights = [getattr(self, name) for name in self.weight_names]
        return (
            weights,
            self.num_layers,
            self.bidirectional,
            self.batch_first,
            self.bias,
            self.dropout,
            self.training,
        )


class WideLSTM(_WideRecurrent):
    """N `nn.LSTM` networks; see `wide_lstm` for the shapes."""

    kernel = staticmethod(wide_lstm)

    MEMBER = nn.LSTM

    def forward(
        self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the LSTM on x `[N, B, T, I]` or `[N, T, B, I]`; returns the output and `(h_n, c_n)`."""
        return self.kernel(x, hx, *self._arguments(), strategy=self.strategy)


class WideGRU(_WideRecurrent):
    """N `nn.GRU` networks; see `wide_gru` for the shapes."""

    kernel = staticmethod(wide_gru)

    MEMBER = nn.GRU

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the GRU on x `[N, B, T, I]` or `[N, T, B, I]`; returns the output and h_n."""
        return self.kernel(x, hx, *self._arguments(), strategy=self.strategy)


class WideRNN(_WideRecurrent):
    """N `nn.RNN` networks; see `wide_rnn` for the shapes."""

    kernel = staticmethod(wide_rnn)

    MEMBER = nn.RNN
    CONFIG = (*_WideRecurrent.CONFIG, "nonlinearity")

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the RNN on x `[N, B, T, I]` or `[N, T, B, I]`; returns the output and h_n."""
        return self.kernel(x, hx, *self._arguments(), nonlinearity=self.nonlinearity, strategy=self.strategy)


def flat_lstm(*args):
    """Run `wide_lstm`; returns output, h_n and c_n in one tuple, as the ATen op does."""
    output, (h, c) = WideLSTM.kernel(*args)
    return output, h, c


def _choices(x: Val) -> tuple[str, ...]:
    return RNN_STRATEGIES if x.value.is_cuda else ("batched", "sequential")


@rule(*ops("lstm.input"))
def lstm_rule(
    b: Builder, x: Val, hx: list[Val], weights: list[Val], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Val:  # fmt: skip
    strategy = b.choose(WideLSTM, "batched", _choices(x))
    return b.call(
        flat_lstm,
        *(b.wide(x), tuple(b.wide(h) for h in hx), [b.wide(w) for w in weights], num_layers, bidirectional),
        *(batch_first, has_biases, dropout, train, strategy),
    )


def _one_state_rule(primitive: Any, *extra: str):
    def run(
        b: Builder, x: Val, hx: Val, weights: list[Val], has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool,
    ) -> Val:  # fmt: skip
        strategy = b.choose(primitive, "batched", _choices(x))
        return b.call(
            primitive.kernel,
            *(b.wide(x), b.wide(hx), [b.wide(w) for w in weights], num_layers, bidirectional, batch_first),
            *(has_biases, dropout, train, *extra, strategy),
        )

    return run


rule(*ops("gru.input"))(_one_state_rule(WideGRU))
rule(*ops("rnn_tanh.input"))(_one_state_rule(WideRNN, "tanh"))
rule(*ops("rnn_relu.input"))(_one_state_rule(WideRNN, "relu"))


def _cell_rule(step):
    def run(
        b: Builder, x: Val, hx, w_ih: Val, w_hh: Val, b_ih: Val | None = None, b_hh: Val | None = None
    ) -> Val:
        state = tuple(b.wide(h) for h in hx) if isinstance(hx, (list, tuple)) else b.wide(hx)
        return b.call(step, b.wide(x), state, *(b.wide(t) for t in (w_ih, w_hh, b_ih, b_hh)))

    return run


def _gates(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih, b_hh) -> tuple[Tensor, Tensor]:
    return wide_linear(x, w_ih, b_ih), wide_linear(h, w_hh, b_hh)


def lstm_cell(x: Tensor, state: tuple[Tensor, Tensor], *weights) -> tuple[Tensor, Tensor]:
    gx, gh = _gates(x, state[0], *weights)
    i, f, g, o = (gx + gh).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_cell(x: Tensor, h: Tensor, *weights) -> Tensor:
    gx, gh = _gates(x, h, *weights)
    (rx, zx, nx), (rh, zh, nh) = gx.chunk(3, -1), gh.chunk(3, -1)
    z = torch.sigmoid(zx + zh)
    return torch.tanh(nx + torch.sigmoid(rx + rh) * nh) * (1 - z) + h * z


def rnn_tanh_cell(x: Tensor, h: Tensor, *weights) -> Tensor:
    return torch.tanh(torch.add(*_gates(x, h, *weights)))


def rnn_relu_cell(x: Tensor, h: Tensor, *weights) -> Tensor:
    return torch.relu(torch.add(*_gates(x, h, *weights)))


for _step in (lstm_cell, gru_cell, rnn_tanh_cell, rnn_relu_cell):
    rule(*ops(_step.__name__))(_cell_rule(_step))
