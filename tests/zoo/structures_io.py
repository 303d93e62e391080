"""Models whose inputs and outputs are structures: dicts, named tuples, optional and non-tensor arguments."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .case import zoo_case


def floats(*shape):
    """Inputs of one float tensor [batch, *shape]."""
    return lambda batch: ((torch.randn(batch, *shape),), {})


def nested_inputs(batch):
    """Categorical and dense features in nested dicts, with a list inside."""
    ids = {"user": torch.randint(0, 20, (batch,)), "items": torch.randint(0, 20, (batch, 3))}
    return ({"ids": ids, "dense": [torch.randn(batch, 4), torch.randn(batch, 6)]},), {}


def dict_inputs(batch):
    """A dict of two modalities."""
    return ({"x": torch.randn(batch, 8), "y": torch.randn(batch, 6)},), {}


@zoo_case("io_dict_in_dict_out", dict_inputs)
class DictInDictOut(nn.Module):
    """A dict of modalities to a dict of heads, through a ModuleDict."""

    def __init__(self):
        super().__init__()
        self.encoders = nn.ModuleDict({"x": nn.Linear(8, 16), "y": nn.Linear(6, 16)})
        self.heads = nn.ModuleDict({"mean": nn.Linear(16, 2), "log_var": nn.Linear(16, 2)})

    def forward(self, features):
        h = torch.relu(sum(self.encoders[name](value) for name, value in features.items()))
        return {name: head(h) for name, head in self.heads.items()}


@zoo_case("io_nested_dict_list_out", nested_inputs)
class NestedInputs(nn.Module):
    """Nested dicts, with integer ids inside, to a list."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.dense = nn.ModuleList([nn.Linear(4, 8), nn.Linear(6, 8)])

    def forward(self, features):
        ids = features["ids"]
        user, items = self.embedding(ids["user"]), self.embedding(ids["items"])
        dense = [layer(value) for layer, value in zip(self.dense, features["dense"], strict=True)]
        return [(items * user.unsqueeze(1)).sum(-1), *[torch.tanh(value + user) for value in dense]]


def keyword_inputs(batch):
    """No positional argument at all."""
    return (), {"query": torch.randn(batch, 8), "keys": torch.randn(batch, 5, 8)}


@zoo_case("io_kwargs_only", keyword_inputs)
class KwargsOnly(nn.Module):
    """Keyword-only arguments, one left at its default; a tuple inside a tuple comes out."""

    def __init__(self):
        super().__init__()
        self.to_query, self.to_key = nn.Linear(8, 12), nn.Linear(8, 12)

    def forward(self, *, query, keys, temperature=2.0):
        scores = torch.einsum("bd,btd->bt", self.to_query(query), self.to_key(keys)) / temperature
        weights = scores.softmax(dim=-1)
        return (weights[:, None] @ keys).squeeze(1), (scores, weights)


class Distribution(NamedTuple):
    """What the encoder of a variational model says."""

    mean: torch.Tensor
    std: torch.Tensor


@zoo_case("io_named_tuple_out", floats(10))
class NamedTupleOut(nn.Module):
    """A NamedTuple comes out."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(10, 24), nn.Linear(24, 8)

    def forward(self, x):
        mean, raw = self.head(F.silu(self.hidden(x))).chunk(2, dim=-1)
        return Distribution(mean=mean, std=F.softplus(raw) + 1e-3)


def masked_inputs(batch):
    """Token ids, a bool mask that keeps the first token of every row, and None for the optional bias."""
    mask = torch.rand(batch, 6) > 0.4
    mask[:, 0] = True
    return (torch.randint(0, 30, (batch, 6)), mask), {"bias": None}


@zoo_case("io_int_ids_bool_mask_none", masked_inputs)
class MaskedPooling(nn.Module):
    """Integer ids and a bool mask; the optional argument is None, and None comes back."""

    def __init__(self):
        super().__init__()
        self.embedding, self.score, self.head = nn.Embedding(30, 12), nn.Linear(12, 1), nn.Linear(12, 3)

    def forward(self, ids, mask, bias=None):
        x = self.embedding(ids)
        scores = self.score(x).squeeze(-1).masked_fill(~mask, float("-inf"))
        if bias is not None:
            scores = scores + bias
        pooled = (scores.softmax(dim=1).unsqueeze(-1) * x).sum(dim=1)
        return {"logits": self.head(pooled), "lengths": mask.sum(dim=1), "bias": bias}


@zoo_case("io_python_scalars", lambda batch: ((torch.randn(batch, 8), 3), {"slope": 0.2, "mode": "leaky"}))
class PythonScalars(nn.Module):
    """A python int, float and str beside the tensor; an int and a str come out."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x, repeats, slope=0.1, mode="relu"):
        for _ in range(repeats):
            h = self.layer(x)
            x = x + (F.leaky_relu(h, slope) if mode == "leaky" else F.relu(h))
        return {"logits": self.head(x), "repeats": repeats, "mode": mode}


@zoo_case("io_sort_topk_argmax", floats(7))
class SortTopkArgmax(nn.Module):
    """Values and indices of sort, topk and argmax."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(7, 20), nn.Tanh(), nn.Linear(20, 9))

    def forward(self, x):
        logits = self.layer(x)
        ordered, order = torch.sort(logits, dim=-1, descending=True)
        best = torch.topk(logits, k=3, dim=1)
        return ordered, order, best.values, best.indices, logits.argmax(dim=-1)


@zoo_case("io_shapes_cumsum_where", floats(6, 8))
class ShapesCumsumWhere(nn.Module):
    """Sizes unpacked and used in permute and view, then a running mean and a `where`."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(6, 6), nn.Linear(4, 4)

    def forward(self, x):
        B, T, C = x.shape
        x = x + self.mix(x.permute(0, 2, 1)).transpose(1, 2)
        x = self.head(x.view(B, T, 2, C // 2).permute(0, 2, 1, 3).contiguous())
        running = torch.cumsum(x, dim=2) / torch.arange(1, T + 1, device=x.device).view(1, 1, T, 1)
        return torch.where(running > 0, running, x * 0.1).permute(0, 2, 1, 3).reshape(B, T, C)


@zoo_case("io_data_dependent_if", floats(8), "loop")
class DataDependentIf(nn.Module):
    """Which layer runs depends on the data."""

    def __init__(self):
        super().__init__()
        self.positive, self.negative = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        if x.sum() > 0:
            return self.positive(x)
        return self.negative(x).tanh()


@zoo_case("io_numpy_call", floats(8), "loop")
class NumpyCall(nn.Module):
    """A statistic taken in numpy."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        scale = float(abs(x.detach().numpy()).max())
        return self.head(torch.relu(self.hidden(x / (1.0 + scale))))
