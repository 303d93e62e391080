"""Modules and rules of N recurrent networks, and rules of single cells."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..widen.builder import Builder, Val, map_leaves
from ..widen.rules import lane_rule, ops, rule
from ._module import WideModule
from .linear import wide_linear
from .rnn import RNN_STRATEGIES, wide_gru, wide_lstm, wide_rnn


class _WideRecurrent(WideModule):
    CONFIG: ClassVar[tuple[str, ...]] = (
        *("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"),
        "proj_size",
    )
    ARGUMENTS: ClassVar[tuple[str, ...]] = (
        *("weights", "num_layers", "bidirectional", "batch_first", "bias", "dropout", "training"),
    )
    STRATEGIES = RNN_STRATEGIES

    def setup(self, members: list[Any]) -> None:
        self.weight_names: tuple[str, ...] = tuple(members[0]._flat_weights_names)

    @property
    def weights(self) -> list[Tensor]:
        return [getattr(self, name) for name in self.weight_names]

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """Run on x `[N, B, T, I]` or `[N, T, B, I]`; returns the output and the last state, as the member."""
        return self.kernel(x, hx, *self.arguments(), strategy=self.strategy)


class WideLSTM(_WideRecurrent):
    """N `nn.LSTM` networks; see `wide_lstm` for the shapes."""

    kernel = staticmethod(wide_lstm)
    MEMBER = nn.LSTM


class WideGRU(_WideRecurrent):
    """N `nn.GRU` networks; see `wide_gru` for the shapes."""

    kernel = staticmethod(wide_gru)
    MEMBER = nn.GRU


class WideRNN(_WideRecurrent):
    """N `nn.RNN` networks; see `wide_rnn` for the shapes."""

    kernel = staticmethod(wide_rnn)
    MEMBER = nn.RNN
    CONFIG = (*_WideRecurrent.CONFIG, "nonlinearity")
    ARGUMENTS = (*_WideRecurrent.ARGUMENTS, "nonlinearity")


def flat_lstm(*args):
    """Run `wide_lstm`; returns output, h_n and c_n in one tuple, as the ATen op does."""
    output, (h, c) = WideLSTM.kernel(*args)
    return output, h, c


def _network_rule(primitive: Any, *extra: str):
    def run(b: Builder, x: Val, hx: Any, weights: list[Val], *given: Any) -> Val:
        has_biases, num_layers, dropout, train, bidirectional, batch_first = given  # in the order of the op
        strategy = b.choose(primitive, "batched", RNN_STRATEGIES if x.value.is_cuda else _ON_CPU)
        settings = (num_layers, bidirectional, batch_first, has_biases, dropout, train, *extra, strategy)
        kernel = flat_lstm if primitive is WideLSTM else primitive.kernel
        return b.call(kernel, *map_leaves(b.wide, (x, hx, weights)), *settings)

    return run


_ON_CPU = ("batched", "sequential")
rule(*ops("lstm.input"))(_network_rule(WideLSTM))
rule(*ops("gru.input"))(_network_rule(WideGRU))
rule(*ops("rnn_tanh.input"))(_network_rule(WideRNN, "tanh"))
rule(*ops("rnn_relu.input"))(_network_rule(WideRNN, "relu"))


def _gates(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return wide_linear(x, w_ih, b_ih), wide_linear(h, w_hh, b_hh)


@lane_rule("lstm_cell")
def lstm_cell(x: Tensor, state: tuple[Tensor, Tensor], *weights) -> tuple[Tensor, Tensor]:
    gx, gh = _gates(x, state[0], *weights)
    i, f, g, o = (gx + gh).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@lane_rule("gru_cell")
def gru_cell(x: Tensor, h: Tensor, *weights) -> Tensor:
    gx, gh = _gates(x, h, *weights)
    (rx, zx, nx), (rh, zh, nh) = gx.chunk(3, -1), gh.chunk(3, -1)
    z = torch.sigmoid(zx + zh)
    return torch.tanh(nx + torch.sigmoid(rx + rh) * nh) * (1 - z) + h * z


@lane_rule("rnn_tanh_cell")
def rnn_tanh_cell(x: Tensor, h: Tensor, *weights) -> Tensor:
    return torch.tanh(torch.add(*_gates(x, h, *weights)))


@lane_rule("rnn_relu_cell")
def rnn_relu_cell(x: Tensor, h: Tensor, *weights) -> Tensor:
    return torch.relu(torch.add(*_gates(x, h, *weights)))
