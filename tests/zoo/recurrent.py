"""Recurrent networks: built-in layers of every setting, and cells unrolled by hand."""

import torch
from torch import nn

from .case import zoo_case
from .convs import random_input


@zoo_case("lstm_last_step", random_input(7, 5))
class LstmClassifier(nn.Module):
    """One LSTM layer; the last step is classified."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 12, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        output, _ = self.lstm(x)
        return self.head(output[:, -1, :])


@zoo_case("lstm_two_layers_bidirectional", random_input(6, 5))
class BidirectionalLstm(nn.Module):
    """Two bidirectional LSTM layers; the last hidden states of both directions are joined."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 8, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        _, (hidden, _) = self.lstm(x)
        return self.head(torch.cat([hidden[-2], hidden[-1]], dim=1))


@zoo_case("gru_two_layers", random_input(6, 4))
class GruForecaster(nn.Module):
    """Two GRU layers without biases; forecasts every step and also returns the final state."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 10, num_layers=2, batch_first=True, bias=False)
        self.head = nn.Linear(10, 4)

    def forward(self, x):
        output, hidden = self.gru(x)
        return self.head(output), hidden.transpose(0, 1)


@zoo_case("gru_bidirectional_tagger", lambda batch: ((torch.randint(0, 30, (batch, 7)),), {}))
class GruTagger(nn.Module):
    """Embeds tokens and tags each one from a bidirectional GRU."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 8, padding_idx=0)
        self.gru = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(16, 5)

    def forward(self, tokens):
        return self.tag(self.gru(self.embedding(tokens))[0])


class RnnRegressor(nn.Module):
    """A plain RNN whose mean output is regressed."""

    def __init__(self, nonlinearity: str, layers: int):
        super().__init__()
        self.rnn = nn.RNN(3, 10, num_layers=layers, nonlinearity=nonlinearity, batch_first=True)
        self.head = nn.Linear(10, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0].mean(dim=1)).squeeze(-1)


@zoo_case("rnn_tanh", random_input(8, 3))
def rnn_tanh():
    """Two layers with tanh."""
    return RnnRegressor("tanh", layers=2)


@zoo_case("rnn_relu", random_input(8, 3))
def rnn_relu():
    """One layer with ReLU."""
    return RnnRegressor("relu", layers=1)


@zoo_case("lstm_time_first_with_state", lambda batch: ((torch.randn(batch, 6, 4), torch.randn(batch, 3)), {}))
class ConditionedLstm(nn.Module):
    """A time-first LSTM that starts from a state computed from a condition."""

    def __init__(self):
        super().__init__()
        self.to_hidden = nn.Linear(3, 9)
        self.to_cell = nn.Linear(3, 9)
        self.lstm = nn.LSTM(4, 9)
        self.head = nn.Linear(9, 4)

    def forward(self, x, condition):
        state = (torch.tanh(self.to_hidden(condition)).unsqueeze(0), self.to_cell(condition).unsqueeze(0))
        output, _ = self.lstm(x.transpose(0, 1), state)
        return self.head(output).transpose(0, 1)


@zoo_case("lstm_cell_loop", random_input(6, 5))
class LstmCellLoop(nn.Module):
    """An LSTM cell unrolled by a Python loop from a zero state, with a learned gate over its outputs."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(5, 11)
        self.gate = nn.Linear(11, 1)
        self.head = nn.Linear(11, 3)

    def forward(self, x):
        hidden = x.new_zeros(x.size(0), 11)
        cell = torch.zeros_like(hidden)
        outputs = []
        for step in range(x.size(1)):
            hidden, cell = self.cell(x[:, step], (hidden, cell))
            outputs.append(hidden * torch.sigmoid(self.gate(hidden)))
        return self.head(torch.stack(outputs, dim=1))


@zoo_case("gru_cell_loop", random_input(6, 5))
class GruCellLoop(nn.Module):
    """A GRU cell and an RNN cell unrolled together, starting from learned states."""

    def __init__(self):
        super().__init__()
        self.slow = nn.GRUCell(5, 8)
        self.fast = nn.RNNCell(8, 6, nonlinearity="relu")
        self.slow_start = nn.Parameter(0.1 * torch.randn(8))
        self.fast_start = nn.Parameter(0.1 * torch.randn(1, 6))

    def forward(self, x):
        slow = self.slow_start.expand(x.shape[0], -1)
        fast = self.fast_start.repeat(x.shape[0], 1)
        for step in x.unbind(dim=1):
            slow = self.slow(step, slow)
            fast = self.fast(slow, fast)
        return torch.cat([slow, fast], dim=-1)


@zoo_case("seq2seq_gru", lambda batch: ((torch.randint(0, 20, (batch, 6)),), {}))
class Seq2Seq(nn.Module):
    """A GRU encoder, and a GRU-cell decoder that attends over it and feeds back its own guesses softly."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.encoder = nn.GRU(8, 10, batch_first=True)
        self.decoder = nn.GRUCell(8 + 10, 10)
        self.vocabulary = nn.Linear(10, 20)

    def forward(self, source):
        memory, final = self.encoder(self.embedding(source))
        hidden = final.squeeze(0)
        word = self.embedding(torch.zeros_like(source[:, 0]))
        logits = []
        for _ in range(4):
            weights = torch.softmax(torch.bmm(memory, hidden.unsqueeze(2)), dim=1)
            hidden = self.decoder(torch.cat([word, (weights * memory).sum(dim=1)], dim=1), hidden)
            logits.append(self.vocabulary(hidden))
            word = logits[-1].softmax(dim=-1) @ self.embedding.weight
        return torch.stack(logits, dim=1)


@zoo_case("conv_lstm_projected", random_input(4, 16))
class ConvLstm(nn.Module):
    """A convolution shortens the signal, then an LSTM with projected states reads it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(4, 8, 5, stride=2, bias=False), nn.BatchNorm1d(8), nn.ReLU())
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True, proj_size=6)
        self.head = nn.Linear(6, 3)

    def forward(self, signal):
        output, (hidden, cell) = self.lstm(self.conv(signal).permute(0, 2, 1))
        return self.head(output[:, -1] + hidden[0]), cell[-1]
