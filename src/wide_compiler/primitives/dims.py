"""Ops that name dimensions: every dim that counts from the front moves one up, past the lane axis."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..widen.builder import Builder, Val, is_tensor_val
from ..widen.classify import op_name
from ..widen.rules import ops, rule

aten = torch.ops.aten

_DIM_NAMES = {"dim", "dims", "dim0", "dim1", "dim2", "start_dim", "end_dim", "source", "destination"}
_DIM_NAMES |= {"axis0", "axis1"}

_SHIFTED = ops(
    *(
        "transpose.int",
        "transpose_",
        "select.int",
        "slice.Tensor",
        "narrow.default",
        "unbind.int",
        "flatten.using_ints",
    ),
    *(
        "unflatten.int",
        "unsqueeze.default",
        "unsqueeze_",
        "squeeze.dim",
        "squeeze.dims",
        "split.Tensor",
        "split.sizes",
    ),
    *(
        "split_with_sizes.default",
        "chunk.default",
        "tensor_split.sections",
        "tensor_split.indices",
        "unsafe_split",
    ),
    *(
        "diagonal.default",
        "diag_embed.default",
        "movedim",
        "flip.default",
        "swapaxes",
        "swapdims",
        "unsafe_chunk",
    ),
    *(
        "softmax.int",
        "log_softmax.int",
        "_softmax",
        "_log_softmax",
        "softmin",
        "cumsum",
        "cumprod",
        "logcumsumexp",
    ),
    *(
        "cummax",
        "cummin",
        "cumsum_",
        "sort.default",
        "sort.stable",
        "argsort",
        "topk.default",
        "kthvalue",
        "glu",
    ),
    *(
        "max.dim",
        "min.dim",
        "median.dim",
        "nanmedian.dim",
        "mode",
        "prod.dim_int",
        "all.dim",
        "any.dim",
        "all.dims",
    ),
    *(
        "any.dims",
        "logsumexp.default",
        "sum.dim_IntList",
        "mean.dim",
        "nansum",
        "nanmean",
        "amax",
        "amin",
    ),
    *("var.dim", "std.dim", "var.correction", "std.correction", "var_mean.correction", "std_mean.correction"),
    *("var_mean.dim", "std_mean.dim", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "linalg_vector_norm"),
    *("count_nonzero.dim_IntList", "fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft"),
    *(
        "fft_fft2",
        "fft_ifft2",
        "fft_rfft2",
        "fft_irfft2",
        "diff",
        "gather.default",
        "scatter.src",
        "scatter.value",
    ),
    *(
        "scatter_.src",
        "scatter_.value",
        "scatter_add",
        "scatter_add_",
        "scatter_reduce.two",
        "scatter_reduce_.two",
    ),
    *("scatter.reduce", "scatter.value_reduce", "take_along_dim", "select_scatter", "slice_scatter"),
    *(
        "linalg_cross",
        "cross",
        "quantile.scalar",
        "rot90",
        "gradient",
        "linalg_matrix_norm",
    ),
)


_RESHAPING = {"unsqueeze", "unsqueeze_", "flatten", "squeeze", "diag_embed"}


def shifted(op: Any) -> Any:
    """A rule that shifts the op's dims by its own schema. A missing list of dims means all the member's."""
    arguments = op._schema.arguments
    dim_arguments = [a for a in arguments if a.name in _DIM_NAMES and "int" in str(a.type)]

    def run(b: Builder, *args: Any, **kwargs: Any) -> Val:
        named = {a.name: value for a, value in zip(arguments, args, strict=False)} | kwargs
        rank = max(v.rank for v in named.values() if is_tensor_val(v))
        if rank == 0 and op_name(op) not in _RESHAPING:
            return _on_numbers(b, run, named)
        for argument in dim_arguments:
            given = named.get(argument.name, argument.default_value if argument.has_default_value() else None)
            named[argument.name] = _shift(given, rank)
        lanes = {k: b.wide(v) if is_tensor_val(v) else v for k, v in named.items()}
        positional = [
            lanes.pop(a.name)
            for a in arguments
            if not a.kwarg_only and a.name in lanes and _leads(a, lanes, arguments)
        ]
        return b.call(op, *positional, **lanes)

    return run


def _on_numbers(b: Builder, run: Any, named: dict[str, Any]) -> Val:
    """A member's 0-d tensor counts as having one dim of size 1; lanes of it are `[N, 1]`."""
    raised = {k: b.call(torch.unsqueeze, b.wide(v), 1) if is_tensor_val(v) else v for k, v in named.items()}
    return b.call(drop_last_one, run(b, **raised))


def drop_last_one(results: Any) -> Any:
    if isinstance(results, Tensor):
        return results.squeeze(1) if results.dim() == 2 else results
    return tuple(drop_last_one(result) for result in results)


def _leads(argument: Any, named: dict[str, Any], arguments: list[Any]) -> bool:
    """Arguments are given by position as long as none before them is left out."""
    for other in arguments:
        if other.name == argument.name:
            return True
        if not other.kwarg_only and other.name not in named and other.has_default_value():
            return False
    return True


def _shift(dim: Any, rank: int) -> Any:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(1, rank + 1))
    if isinstance(dim, (list, tuple)):
        return [_shift(d, rank) for d in dim]
    return dim + 1 if dim >= 0 else dim


for _op in _SHIFTED:
    rule(_op)(shifted(_op))


@rule(*ops("permute.default"))
def permute(b: Builder, x: Val, dims: list[int]) -> Val:
    return b.call(torch.permute, x, [0, *(d % x.rank + 1 for d in dims)])


@rule(*ops("t.default", "numpy_T", "mT", "t_"))
def transpose_matrix(b: Builder, x: Val) -> Val:
    return b.call(torch.transpose, x, -1, -2) if x.rank >= 2 else x


@rule(*ops("adjoint", "matrix_H", "mH"))
def adjoint(b: Builder, x: Val) -> Val:
    return b.call(torch.adjoint, x) if x.rank >= 2 else x


@rule(*ops("squeeze.default"))
def squeeze(b: Builder, x: Val) -> Val:
    return b.call(squeeze_member, x)


def squeeze_member(x: Tensor) -> Tensor:
    """Drop the member's dims of size 1, whatever the number of lanes."""
    return x.squeeze(tuple(d for d in range(1, x.dim()) if x.shape[d] == 1))


@rule(*ops("view.default", "reshape.default", "_unsafe_view", "view_copy.default", "_reshape_alias"))
def reshape(b: Builder, x: Val, size: list[Any], *_: Any) -> Val:
    return b.call(torch.reshape, x, [b.n, *size])


@rule(*ops("view_as", "reshape_as"))
def reshape_as(b: Builder, x: Val, other: Val) -> Val:
    return b.call(torch.reshape, b.wide(x), [b.n, *other.shape])


@rule(*ops("expand.default"))
def expand(b: Builder, x: Val, size: list[Any], **_: Any) -> Val:
    return b.call(torch.Tensor.expand, b.aligned(x, len(size)), [b.n, *size])


@rule(*ops("expand_as.default"))
def expand_as(b: Builder, x: Val, other: Val) -> Val:
    target = b.wide(other)
    return b.call(torch.Tensor.expand_as, b.aligned(b.wide(x), target.rank), target)


@rule(*ops("repeat.default", "tile.default"))
def repeat(b: Builder, x: Val, repeats: list[Any]) -> Val:
    missing = max(x.rank - len(repeats), 0)  # tile may be given fewer numbers than there are dims
    return b.call(torch.Tensor.repeat, b.aligned(x, len(repeats)), [1] * (1 + missing) + list(repeats))


@rule(*ops("repeat_interleave.self_int"))
def repeat_interleave(b: Builder, x: Val, repeats: Any, dim: int | None = None, **kwargs: Any) -> Val:
    if dim is None:
        x, dim = b.call(torch.reshape, x, [b.n, -1]), 0
    return b.call(torch.repeat_interleave, x, repeats, dim=_shift(dim, x.rank), **kwargs)


@rule(*ops("roll.default"))
def roll(b: Builder, x: Val, shifts: list[Any], dims: Sequence[int] = ()) -> Val:
    if dims:
        return b.call(torch.roll, x, shifts, _shift(dims, x.rank))
    return b.call(roll_flat, x, shifts)


def roll_flat(x: Tensor, shifts: list[int]) -> Tensor:
    return x.flatten(1).roll(shifts, 1).view(x.shape)


@rule(*ops("unfold.default"))
def unfold(b: Builder, x: Val, dimension: int, size: int, step: int) -> Val:
    return b.call(torch.Tensor.unfold, x, _shift(dimension, x.rank), size, step)


@rule(*ops("cat.default", "concat.default", "concatenate.default"))
def cat(b: Builder, tensors: list[Val], dim: int = 0) -> Val:
    # An empty 1-D tensor may stand beside anything, for the sake of old code.
    tensors = [t for t in tensors if t.shape != (0,)] or tensors
    return b.call(torch.cat, [b.wide(t) for t in tensors], _shift(dim, 0))


@rule(*ops("stack.default"))
def stack(b: Builder, tensors: list[Val], dim: int = 0) -> Val:
    return b.call(torch.stack, [b.wide(t) for t in tensors], _shift(dim, 0))


@rule(*ops("meshgrid.indexing", "meshgrid.default"))
def meshgrid(b: Builder, tensors: list[Val], indexing: str = "ij") -> Val:
    return b.call(lane_meshgrid, [b.wide(t) for t in tensors], indexing)


def lane_meshgrid(tensors: list[Tensor], indexing: str) -> list[Tensor]:
    """Each tensor `[N, size]` along a dim of its own; "xy" swaps the first two."""
    order = list(range(len(tensors)))
    if indexing == "xy" and len(tensors) > 1:
        order[:2] = [1, 0]
    sizes = [tensors[i].shape[1] for i in order]
    grids = []
    for i, tensor in enumerate(tensors):
        place = order.index(i)
        shape = [tensor.shape[0], *(tensor.shape[1] if k == place else 1 for k in range(len(tensors)))]
        grids.append(tensor.reshape(shape).expand(tensor.shape[0], *sizes))
    return grids


@rule(*ops("hstack"))
def hstack(b: Builder, tensors: list[Val]) -> Val | None:
    if any(t.rank == 0 for t in tensors):
        return None
    return b.call(torch.cat, [b.wide(t) for t in tensors], 1 if tensors[0].rank == 1 else 2)


@rule(*ops("vstack"))
def vstack(b: Builder, tensors: list[Val]) -> Val | None:
    if any(t.rank == 0 for t in tensors):
        return None
    return b.call(torch.cat, [b.aligned(b.wide(t), 2) for t in tensors], 1)


@rule(*ops("diag.default"))
def diag(b: Builder, x: Val, diagonal: int = 0) -> Val:
    if x.rank == 1:
        return b.call(torch.diag_embed, x, diagonal)
    return b.call(torch.clone, b.call(torch.diagonal, x, diagonal, 1, 2))  # the member's is a copy too


@rule(*ops("ravel"))
def ravel(b: Builder, x: Val) -> Val:
    return b.call(torch.reshape, x, [b.n, -1])


@rule(*ops("broadcast_tensors.default"))
def broadcast_tensors(b: Builder, tensors: list[Val]) -> Val:
    rank = max(t.rank for t in tensors)
    return b.call(torch.broadcast_tensors, *[b.aligned(b.wide(t), rank) for t in tensors])


@rule(*ops("pad.default"))
def pad(b: Builder, x: Val, padding: list[int], mode: str = "constant", value: float | None = None) -> Val:
    if mode == "constant":
        return b.call(aten.pad.default, x, padding, mode, value)
    return b.call(pad_folded, x, padding, mode)


def pad_folded(x: Tensor, padding: list[int], mode: str) -> Tensor:
    """Reflect, replicate and circular padding accept at most one dim before the channels."""
    kept = len(padding) // 2 + 1
    out = torch.nn.functional.pad(x.flatten(0, x.dim() - kept - 1), padding, mode=mode)
    return out.unflatten(0, x.shape[: x.dim() - kept])


@rule(*ops("cosine_similarity"))
def cosine_similarity(b: Builder, x: Val, y: Val, dim: int = 1, eps: float = 1e-8) -> Val:
    rank = max(x.rank, y.rank)
    x, y = b.aligned(b.wide(x), rank), b.aligned(b.wide(y), rank)
    return b.call(torch.cosine_similarity, x, y, _shift(dim, rank), eps)
