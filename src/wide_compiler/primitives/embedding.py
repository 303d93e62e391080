"""Embedding tables of N lanes as one table of N*V rows.

Shapes: N lanes, V rows of a table, D width of a row, `*` any number of axes.

An index must never reach another lane's rows. Lane n's rows are `n*V ... n*V + V - 1` of the joined table, so
index V of lane 0 or -1 of lane 1 would be a valid row. Every index outside `[0, V)` is therefore mapped to
row N*V, which does not exist: torch's lookup raises an IndexError on the CPU and a device-side assertion on
CUDA, as it does for one `nn.Embedding`. This needs no device synchronisation and no branch on data, so the
same code can be compiled (on the CPU a compiled lookup raises RuntimeError).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ArgumentError, LaneIndexError, WrongTypeError
from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._lanes import check_lanes, resolve
from ._module import WideModule

EMBEDDING_STRATEGIES = ("indexed", "gather", "sequential")


def check_indices(op: str, indices: Tensor) -> None:
    """Raise WrongTypeError unless the indices are int32 or int64, the dtypes torch's lookup accepts."""
    if indices.dtype not in (torch.int32, torch.int64):
        raise WrongTypeError(f"{op}: expected indices of dtype int32 or int64, got {indices.dtype}")


def guarded_indices(indices: Tensor, rows: int) -> Tensor:
    """Return the indices with those outside `[0, rows)` replaced by `rows`.

    Negative indices are replaced too: eager lookup rejects them, but compiled code may count them from the
    end of the table.
    """
    return torch.where((indices >= 0) & (indices < rows), indices, rows)


def flat_indices(indices: Tensor, rows: int) -> Tensor:
    """Return row numbers of indices `[N, *]` in the joined table of N*`rows` rows.

    An index outside `[0, rows)` gives N*rows, one past the last row. The result is int64, because N*rows may
    not fit the dtype of the indices.
    """
    n = indices.shape[0]
    first = torch.arange(n, device=indices.device) * rows
    shifted = indices + first.view(n, *(1,) * (indices.dim() - 1))
    return torch.where((indices >= 0) & (indices < rows), shifted, n * rows)


def renorm_(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> None:
    """Scale the rows of `weight` that are looked up down to `max_norm`, in place and outside autograd."""
    with torch.no_grad():
        rows = flat_indices(indices, weight.shape[1]).flatten()
        torch.embedding_renorm_(weight.detach().view(-1, weight.shape[-1]), rows, max_norm, norm_type)


@contextmanager
def naming_the_index(op: str, indices: Tensor, rows: int) -> Iterator[None]:
    """Turn torch's error for a bad index into a LaneIndexError that names the lane and the index."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        bad = ((indices < 0) | (indices >= rows)).nonzero()
        if not len(bad):
            raise
        at = tuple(bad[0].tolist())
        raise LaneIndexError(
            f"{op}: lane {at[0]}: index {int(indices[at])} is outside the table of {rows} rows; "
            f"expected 0 to {rows - 1}"
        ) from error


def positive_padding(op: str, padding_idx: int | None, rows: int) -> int | None:
    """Return `padding_idx` counted from the front, or None; raise ArgumentError if it is out of range."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise ArgumentError(f"{op}: padding_idx {padding_idx} is outside the table of {rows} rows")
    return padding_idx % rows


def wide_embedding(
    indices: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    strategy: str = "auto",
    *,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """Look up rows of weight `[N, V, D]` by indices `[N, *]`, each lane in its own table: `[N, *, D]`.

    Args:
        padding_idx: the row of every lane that gets no gradient; it is looked up like any other.
        strategy: "indexed" (one lookup in the joined table), "gather" (`torch.gather` along V), "sequential"
            (one `F.embedding` per lane), or "auto", which is "indexed".
        max_norm, norm_type: scale the rows that are looked up down to this norm, in place in `weight`.
        scale_grad_by_freq: divide a row's gradient by its number of lookups in the lane.

    Raises:
        IndexError: an index is outside `[0, V)` (on CUDA: a device-side assertion, as torch does).
    """
    op = "wide_embedding"
    check_lanes(op, indices=indices, weight=weight)
    check_indices(op, indices)
    kind = resolve(strategy, EMBEDDING_STRATEGIES, auto="indexed", op=op)
    rows = weight.shape[1]
    padding_idx = positive_padding(op, padding_idx, rows)
    with naming_the_index(op, indices, rows):
        if max_norm is not None:
            renorm_(weight, indices, max_norm, norm_type)
        y = _lookup(indices, weight, padding_idx, kind, scale_grad_by_freq)
    return _without_padding_grad(y, indices, None if kind == "sequential" else padding_idx)


def _lookup(indices: Tensor, weight: Tensor, padding_idx: int | None, kind: str, by_freq: bool) -> Tensor:
    """Run `wide_embedding` with checked arguments."""
    if kind == "indexed":
        rows = flat_indices(indices, weight.shape[1])
        return F.embedding(rows, weight.flatten(0, 1), scale_grad_by_freq=by_freq)
    indices = guarded_indices(indices, weight.shape[1])
    if kind == "sequential":
        lanes = zip(indices.unbind(0), weight.unbind(0), strict=True)
        return torch.stack([F.embedding(i, w, padding_idx, scale_grad_by_freq=by_freq) for i, w in lanes])
    if by_freq:
        raise ArgumentError("wide_embedding: strategy 'gather' cannot scale_grad_by_freq; use 'indexed'")
    index_NMD = indices.long().reshape(indices.shape[0], -1, 1).expand(-1, -1, weight.shape[2])
    return weight.gather(1, index_NMD).view(*indices.shape, weight.shape[2])


def _without_padding_grad(y: Tensor, indices: Tensor, padding_idx: int | None) -> Tensor:
    """Return y `[N, *, D]`, detached where the index (`[N, *]` or `[*]`) is `padding_idx`.

    F.embedding supports one padding row and the joined table has N, so the gradient is cut at the output.
    """
    if padding_idx is None or not torch.is_grad_enabled():
        return y
    return torch.where((indices == padding_idx).unsqueeze(-1), y.detach(), y)


def shared_embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Run `wide_embedding` on indices `[*]` shared by all lanes: one selection along V."""
    op = "shared_embedding"
    check_indices(op, indices)
    n, rows, width = weight.shape
    padding_idx = positive_padding(op, padding_idx, rows)
    with naming_the_index(op, indices.unsqueeze(0), rows):
        y = weight.index_select(1, guarded_indices(indices, rows).flatten())
    return _without_padding_grad(y.view(n, *indices.shape, width), indices, padding_idx)


class WideTable(WideModule):
    """Base class of wide embedding tables."""

    CONFIG: ClassVar[tuple[str, ...]] = (
        *("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type"),
        *("scale_grad_by_freq", "sparse"),
    )

    def setup(self, members: list[Any]) -> None:
        if self.sparse:
            raise ArgumentError(
                f"{type(self).__name__}: sparse=True is not supported: a stacked table has no sparse "
                f"gradient; build the members with sparse=False"
            )

    def _call(self, indices: Tensor, *args: Any) -> Tensor:
        """Call the kernel with the arguments that both kinds of table have in common."""
        norm = {"max_norm": self.max_norm, "norm_type": self.norm_type}
        by_freq = self.scale_grad_by_freq
        return self.kernel(indices, self.weight, *args, self.strategy, **norm, scale_grad_by_freq=by_freq)


class WideEmbedding(WideTable):
    """N `nn.Embedding` tables: indices `[N, *]` -> `[N, *, D]`."""

    kernel = staticmethod(wide_embedding)
    MEMBER = nn.Embedding
    STRATEGIES = EMBEDDING_STRATEGIES

    def forward(self, indices: Tensor) -> Tensor:
        """Look up indices `[N, *]`; returns `[N, *, D]`."""
        return self._call(indices, self.padding_idx)


@rule(*ops("embedding.default"))
def embedding_rule(
    b: Builder,
    weight: Val,
    indices: Val,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Val | None:
    # `sparse` is ignored: a stacked table has a dense gradient with the same values.
    if scale_grad_by_freq:
        return None
    if not weight.wide:
        return b.call(torch.ops.aten.embedding.default, weight, indices, padding_idx)
    padding = None if padding_idx < 0 else padding_idx
    strategy = b.choose(WideEmbedding, "indexed")
    if not indices.wide and strategy != "sequential":
        b.strategy = "one gather"
        return b.call(shared_embedding, indices, weight, padding)
    return b.call(WideEmbedding.kernel, b.wide(indices), weight, padding, strategy)
