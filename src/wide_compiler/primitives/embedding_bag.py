"""Embedding bags of N lanes as the bags of one table of N*V rows.

Shapes: N lanes, V rows of a table, D width of a row, B bags, L indices of a bag of fixed length, T indices of
a lane whose bags are given by offsets.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ArgumentError
from ..guards.modes import plain_world
from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._lanes import check_lanes, flat, per_lane, resolve
from .embedding import (
    WideTable,
    check_indices,
    flat_indices,
    guarded_indices,
    naming_the_index,
    positive_padding,
    renorm_,
)

EMBEDDING_BAG_STRATEGIES = ("indexed", "sequential")


def _flat_offsets(offsets: Tensor, length: int, include_last_offset: bool) -> Tensor:
    """Return the starts of all lanes' bags in the concatenated indices of all lanes, `[N, B + 1]`.

    After each lane's bags comes one for its remaining indices, so that the next lane's first bag starts at
    that lane's first index. `offsets` are `[N, B]`, or `[N, B + 1]` if `include_last_offset`; `length` is T.
    """
    n = offsets.shape[0]
    offsets = offsets.long()
    plain = not torch.compiler.is_dynamo_compiling() and plain_world()
    if plain and offsets.device.type == "cpu" and offsets.numel():
        # torch checks the first and last offset of one call; after concatenation it would miss those of each
        # lane.
        op, first, last = "wide_embedding_bag", offsets[:, 0], offsets[:, -1]
        if bool((first != 0).any()):
            raise ArgumentError(f"{op}: the first offset of every lane must be 0, got {first}")
        if bool((last > length).any()):
            raise ArgumentError(
                f"{op}: the last offset of a lane must not exceed its {length} indices, got {last}"
            )
    ends = offsets[:, -1:] if include_last_offset else offsets.new_full((n, 1), length)
    starts = offsets[:, :-1] if include_last_offset else offsets
    # Where offsets are not checked, a bad offset must still stay within its lane.
    starts = torch.cat([torch.zeros_like(ends), starts[:, 1:], ends], 1).clamp(0, length)
    return starts + torch.arange(n, device=offsets.device).unsqueeze(1) * length


def wide_embedding_bag(
    indices: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
    include_last_offset: bool = False,
    strategy: str = "auto",
    *,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Tensor:
    """Sum, mean or maximum of the rows of each bag, each lane with its own table: `[N, B, D]`.

    Args:
        indices: `[N, B, L]`, bags of one length, or `[N, T]` with `offsets`; int32 or int64.
        weight: `[N, V, D]`.
        offsets: `[N, B]`, the start of each bag within its lane's T indices (`[N, B + 1]` if
            `include_last_offset`: the end of the last bag too). None with `[N, B, L]`.
        per_sample_weights: the shape of indices, or None; "sum" only.
        strategy: "indexed" (one call over the joined table), "sequential" (one call per lane), or "auto",
            which is "sequential" if `scale_grad_by_freq`, else "indexed".
        scale_grad_by_freq: as in `F.embedding_bag`, "sequential" only: torch's gradient then depends on the
            order of all indices of a call (pytorch issue 190063), so one call cannot replace N.

    Raises:
        IndexError: an index is outside `[0, V)` (on CUDA: a device-side assertion, as torch does).
    """
    op = "wide_embedding_bag"
    check_lanes(op, indices=indices, weight=weight, offsets=offsets, per_sample_weights=per_sample_weights)
    check_indices(op, indices)
    if (indices.dim(), offsets is None) not in ((3, True), (2, False)):
        raise ArgumentError(
            f"{op}: expected indices [N, B, L] without offsets or [N, T] with offsets, got indices "
            f"{tuple(indices.shape)} {'without' if offsets is None else 'with'} offsets"
        )
    auto = "sequential" if scale_grad_by_freq else "indexed"
    kind = resolve(strategy, EMBEDDING_BAG_STRATEGIES, auto, op)
    if scale_grad_by_freq and kind == "indexed":
        raise ArgumentError(f"{op}: strategy 'indexed' cannot scale_grad_by_freq; use 'sequential'")
    rows = weight.shape[1]
    padding_idx = positive_padding(op, padding_idx, rows)
    options: dict[str, Any] = {"mode": mode, "padding_idx": padding_idx}
    options["scale_grad_by_freq"] = scale_grad_by_freq
    with naming_the_index(op, indices, rows):
        if max_norm is not None:
            renorm_(weight, indices, max_norm, norm_type)
        if kind == "sequential":
            n = indices.shape[0]
            indices = guarded_indices(indices, rows)
            lanes = zip(indices, weight, per_lane(offsets, n), per_lane(per_sample_weights, n), strict=True)
            options["include_last_offset"] = include_last_offset
            bags = [F.embedding_bag(i, w, o, per_sample_weights=s, **options) for i, w, o, s in lanes]
            return torch.stack(bags)
        return _flat_bags(indices, weight, offsets, per_sample_weights, include_last_offset, options)


def _flat_bags(
    indices: Tensor,
    weight: Tensor,
    offsets: Tensor | None,
    per_sample_weights: Tensor | None,
    include_last_offset: bool,
    options: dict[str, Any],
) -> Tensor:
    """Run all lanes' bags in one call; arguments and result as in `wide_embedding_bag`."""
    rows = flat_indices(indices, weight.shape[1])
    padding_idx = options["padding_idx"]
    if padding_idx is not None:
        # Padding entries are left out regardless of the row's values, so lane 0's padding row serves all
        # lanes.
        rows = torch.where(indices == padding_idx, padding_idx, rows)
    starts = None if offsets is None else _flat_offsets(offsets, indices.shape[1], include_last_offset)
    flat_starts, samples = None if starts is None else starts.flatten(), flat(per_sample_weights)
    table = weight.flatten(0, 1)
    bags = F.embedding_bag(rows.flatten(0, 1), table, flat_starts, per_sample_weights=samples, **options)
    bags = bags.unflatten(0, (indices.shape[0], -1))
    return bags if starts is None else bags[:, :-1]


class WideEmbeddingBag(WideTable):
    """N `nn.EmbeddingBag` tables: indices `[N, B, L]`, or `[N, T]` with offsets `[N, B]` -> `[N, B, D]`."""

    kernel = staticmethod(wide_embedding_bag)
    MEMBER = nn.EmbeddingBag
    CONFIG = (*WideTable.CONFIG, "mode", "include_last_offset")
    STRATEGIES = EMBEDDING_BAG_STRATEGIES

    def forward(
        self, indices: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Reduce bags of indices `[N, B, L]`, or `[N, T]` with offsets `[N, B]`; returns `[N, B, D]`."""
        options = (self.mode, per_sample_weights, self.padding_idx, self.include_last_offset)
        return self._call(indices, offsets, *options)


_MODES = ("sum", "mean", "max")


@rule(*ops("embedding_bag.default", "embedding_bag.padding_idx"))
def embedding_bag_rule(
    b: Builder,
    weight: Val,
    indices: Val,
    offsets: Val,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights=None,
    include_last_offset: bool = False,
    padding_idx=None,
) -> Val | None:
    if scale_grad_by_freq:
        return None
    strategy = b.choose(WideEmbeddingBag, "indexed")
    padding = None if padding_idx is None or padding_idx < 0 else padding_idx
    indices, weight, offsets, samples = map(b.wide, (indices, weight, offsets, per_sample_weights))
    settings = (_MODES[mode], samples, padding, include_last_offset, strategy)
    return b.call(bags_alone, indices, weight, offsets, *settings)


def bags_alone(*args):
    """Return the bags in place of the op's four results; the other three are used only by its backward."""
    return WideEmbeddingBag.kernel(*args), None, None, None
