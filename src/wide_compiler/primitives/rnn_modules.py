"""Modules that hold the weights of N recurrent networks."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from ._module import WideModule
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
        """x: `[N, B, T, I]` or `[N, T, B, I]` -> output and `(h_n, c_n)`."""
        return self.kernel(x, hx, *self._arguments(), strategy=self.strategy)


class WideGRU(_WideRecurrent):
    """N `nn.GRU` networks; see `wide_gru` for the shapes."""

    kernel = staticmethod(wide_gru)

    MEMBER = nn.GRU

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x: `[N, B, T, I]` or `[N, T, B, I]` -> output and h_n."""
        return self.kernel(x, hx, *self._arguments(), strategy=self.strategy)


class WideRNN(_WideRecurrent):
    """N `nn.RNN` networks; see `wide_rnn` for the shapes."""

    kernel = staticmethod(wide_rnn)

    MEMBER = nn.RNN
    CONFIG = (*_WideRecurrent.CONFIG, "nonlinearity")

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x: `[N, B, T, I]` or `[N, T, B, I]` -> output and h_n."""
        return self.kernel(x, hx, *self._arguments(), nonlinearity=self.nonlinearity, strategy=self.strategy)
