"""Rules of ops with `dim` arguments: non-negative dims are shifted by one, past the lane axis."""

from typing import Any

import torch
from torch import Tensor

from ..widen.builder import Builder, Val, is_tensor_val
from ..widen.classify import op_name
from ..widen.rules import ops, rule

_DIM_NAMES = {"dim", "dims", "dim0", "dim1", "dim2", "start_dim", "end_dim", "source", "destination"}
_DIM_NAMES |= {"axis0", "axis1"}

_SHIFTED = ops(
    """
    transpose.int transpose_ select.int slice.Tensor narrow.default unbind.int flatten.using_ints
    unflatten.int unsqueeze.default unsqueeze_ squeeze.dim squeeze.dims split.Tensor split.sizes
    split_with_sizes.default chunk.default tensor_split.sections tensor_split.indices unsafe_split
    diagonal.default diag_embed.default movedim flip.default swapaxes swapdims unsafe_chunk softmax.int
    log_softmax.int _softmax _log_softmax softmin cumsum cumprod logcumsumexp cummax cummin cumsum_
    sort.default sort.stable argsort topk.default kthvalue glu max.dim min.dim median.dim nanmedian.dim
    mode prod.dim_int all.dim any.dim all.dims any.dims logsumexp.default sum.dim_IntList mean.dim nansum
    nanmean amax amin var.dim std.dim var.correction std.correction var_mean.correction
    std_mean.correction var_mean.dim std_mean.dim norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype
    linalg_vector_norm count_nonzero.dim_IntList fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_fft2
    fft_ifft2 fft_rfft2 fft_irfft2 fft_hfft2 fft_ihfft fft_ihfft2 diff gather.default scatter.src
    scatter.value scatter_.src scatter_.value scatter_add scatter_add_ scatter_reduce.two scatter_reduce_.two
    scatter.reduce scatter.value_reduce take_along_dim select_scatter slice_scatter linalg_cross cross
    rot90 gradient linalg_matrix_norm squeeze_.dim squeeze_.dims swapaxes_ swapdims_
    """
)


_RESHAPING = {"unsqueeze", "unsqueeze_", "flatten", "squeeze", "squeeze_", "diag_embed"}


def shifted(op: Any) -> Any:
    """Return a rule that shifts the dims in the op's schema; an omitted list means all of the member's."""
    arguments = op._schema.arguments
    dim_arguments = [a for a in arguments if a.name in _DIM_NAMES and "int" in str(a.type)]

    def run(b: Builder, *args: Any, **kwargs: Any) -> Val:
        named = {a.name: value for a, value in zip(arguments, args, strict=False)} | kwargs
        rank = max(v.rank for v in named.values() if is_tensor_val(v))
        if rank == 0 and op_name(op) not in _RESHAPING:
            return _on_numbers(b, run, named)
        for argument in dim_arguments:
            given = named.get(argument.name, argument.default_value if argument.has_default_value() else None)
            named[argument.name] = shift(given, rank)
        lanes = {k: b.wide(v) for k, v in named.items()}
        positional = []
        for argument in arguments:  # by position up to the first that is omitted
            if argument.kwarg_only or argument.name not in lanes:
                break
            positional.append(lanes.pop(argument.name))
        return b.call(op, *positional, **lanes)

    return run


def _on_numbers(b: Builder, run: Any, named: dict[str, Any]) -> Val:
    """Run the rule on 0-d members as `[N, 1]`: PyTorch treats a 0-d tensor as having one dim of size 1."""
    raised = {k: b.call(torch.unsqueeze, b.wide(v), 1) if is_tensor_val(v) else v for k, v in named.items()}
    return b.call(drop_last_one, run(b, **raised))


def drop_last_one(results: Any) -> Any:
    if isinstance(results, Tensor):
        return results.squeeze(1) if results.dim() == 2 else results
    return tuple(drop_last_one(result) for result in results)


def shift(dim: Any, rank: int) -> Any:
    """Return the wide tensor's dim or dims for those of a member of rank `rank`; None or [] means all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(1, rank + 1))
    if isinstance(dim, (list, tuple)):
        return [shift(d, rank) for d in dim]
    return dim + 1 if dim >= 0 else dim


for _op in _SHIFTED:
    rule(_op)(shifted(_op))


@rule(*ops("cosine_similarity"))
def cosine_similarity(b: Builder, x: Val, y: Val, dim: int = 1, eps: float = 1e-8) -> Val:
    x, y = b.alike(x, y)
    return b.call(torch.cosine_similarity, x, y, shift(dim, x.rank), eps)


def _fft_of_all(op: Any) -> Any:
    """Return a rule of an n-dimensional FFT: without `dim`, the last len(s) dims, or all if `s` is None."""

    def run(b: Builder, x: Val, s: Any = None, dim: Any = None, norm: str | None = None) -> Val:
        dim = range(x.rank - len(s), x.rank) if dim is None and s is not None else dim
        return b.call(op, x, s, shift(dim if dim is None else list(dim), x.rank), norm)

    return run


for _op in ops("fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_hfftn fft_ihfftn"):
    rule(_op)(_fft_of_all(_op))
