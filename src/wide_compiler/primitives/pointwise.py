"""Rules of elementwise ops: the same op on the wide tensors, ranks aligned behind the lane axis."""

import functools
from typing import Any

import torch

from .. import _tree
from ..widen.builder import HALF, Builder, LaneScalar, Val, is_tensor_val, vals_in, widest
from ..widen.classify import op_name
from ..widen.equivalents import functional_of, view_of
from ..widen.rules import find_rule, generic_rule, on_lanes, ops, rule

aten = torch.ops.aten

# Elementwise ops without PyTorch's pointwise tag.
_UNTAGGED = ops(
    """
    copy_ copy masked_fill masked_fill_ where lerp addcmul addcdiv fill_.Tensor hardswish hardswish_
    hardsigmoid hardsigmoid_ hardtanh hardtanh_ relu6 relu6_ leaky_relu leaky_relu_ elu elu_ celu selu
    selu_ gelu softplus silu silu_ mish threshold threshold_ log_sigmoid softshrink square square_ logit
    __and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ float_power true_divide floor_divide
    clip clip_ absolute negative arctan2 multiply subtract divide greater less greater_equal less_equal
    not_equal rsub fix isclose isfinite isreal logical_and_ logical_or_ logical_not_ arccos arcsin arctan
    arccosh arcsinh arctanh positive special_expit complex polar angle _conj conj_physical
    """
)


def _is_pointwise(op: Any) -> bool:
    # PReLU is tagged, but its weight lies along the channels. Some in-place ops lack the tag of their
    # functional form.
    forms = [op, functional_of(op)] if hasattr(op, "_schema") else []
    return "prelu" not in op_name(op) and any(torch.Tag.pointwise in f.tags for f in forms if f is not None)


@generic_rule(_is_pointwise, lane_scalars=True)
def pointwise(op: Any) -> Any:
    def aligned(b: Builder, *args: Any, **kwargs: Any) -> Val:
        tensors = [v for v in vals_in((args, kwargs)) if is_tensor_val(v)]
        rank = max(v.rank for v in tensors)
        beside = widest(tensors)
        scalars = any(isinstance(v, LaneScalar) for v in vals_in((args, kwargs)))

        def place(x: Any) -> Any:
            if isinstance(x, LaneScalar):
                return b.aligned(b.lane_tensor(x, like=_dominant(tensors)), rank)
            return b.aligned(_as_number(b, x, tensors), rank, beside) if is_tensor_val(x) else x

        # A per-lane number is a tensor, so another overload of the op is needed.
        function = op.overloadpacket if scalars else op
        result = b.call(function, *map(place, args), **{k: place(v) for k, v in kwargs.items()})
        own = _promoted([t.value for t in tensors if t.rank > 0] or [t.value for t in tensors])
        if own in HALF and is_tensor_val(result) and result.dtype == torch.float32:
            # The per-lane numbers were not rounded to 16 bits; round the result as the member does.
            return b.call(torch.Tensor.to, result, dtype=own)
        return result

    return aligned


def _as_number(b: Builder, x: Val, tensors: list[Val]) -> Val:
    """Cast x, a 0-d tensor of each member, to the dtype that type promotion gives a 0-d tensor.

    Its lanes `[N]` would promote as a tensor with dims. Next to 16-bit tensors it stays float32, as a Python
    number does inside an op.
    """
    beside = [t.value for t in tensors if t.rank > 0]
    if x.rank or not x.wide or not beside:
        return x
    dtype = torch.result_type(torch.empty(0, dtype=_promoted(beside)), torch.empty((), dtype=x.dtype))
    if dtype in HALF and x.dtype.itemsize > dtype.itemsize:
        dtype = torch.float32
    kinds = {(d.is_floating_point, d.is_complex) for d in (dtype, x.dtype)}
    return x if dtype == x.dtype or len(kinds) > 1 else b.call(torch.Tensor.to, x, dtype=dtype)


def _promoted(tensors: list[torch.Tensor]) -> torch.dtype:
    return functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])


def _dominant(tensors: list[Val]) -> Val:
    """Return the operand whose dtype a plain number takes: floating point first, bool last."""
    return max(tensors, key=lambda v: (v.value.is_floating_point(), v.dtype != torch.bool, v.dtype.itemsize))


for _op in _UNTAGGED:
    rule(_op, lane_scalars=True)(pointwise(_op))


def _is_copied_view(op: Any) -> bool:
    view = view_of(op) if hasattr(op, "_schema") else None
    return view is not None and find_rule(view) is not None


@generic_rule(_is_copied_view)
def copied_view(op: Any) -> Any:
    """Return a rule of a `*_copy` op such as `permute_copy`: the rule of the view, then a copy."""
    view = find_rule(view_of(op))
    assert view is not None

    def run(b: Builder, *args: Any, **kwargs: Any) -> Val | None:
        kwargs.pop("memory_format", None)
        found = view.function(b, *args, **kwargs)
        return found if found is None else b.call(copies, found, wide=found.wide)

    return run


def copies(views: Any) -> Any:
    return _tree.tree_map(lambda x: x.clone(memory_format=torch.contiguous_format), views)


_AS_IS = ops(
    """
    clone contiguous detach detach_ alias lift_fresh_copy lift_fresh view.dtype to.dtype to.device
    to.dtype_layout _to_copy zeros_like ones_like full_like empty_like zero_ fill_.Scalar view_as_real
    view_as_complex nan_to_num pixel_shuffle pixel_unshuffle triu tril triu_ tril_ matrix_exp inverse
    linalg_inv_ex linalg_inv linalg_det linalg_cholesky linalg_cholesky_ex linalg_qr linalg_svd
    linalg_eigh linalg_slogdet linalg_eigvalsh linalg_svdvals linalg_pinv linalg_matrix_exp
    linalg_matrix_power linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_ldl_factor
    linalg_ldl_factor_ex geqrf cholesky cholesky_inverse constant_pad_nd resolve_conj resolve_neg
    conj real imag logdet det
    """
)


def as_is(op: Any) -> Any:
    """Return a rule of ops on the last dims or on each element: the leading lane axis is preserved."""

    def run(b: Builder, x: Val, *args: Any, **kwargs: Any) -> Val:
        if kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
            kwargs.pop("memory_format")  # channels_last needs 4 dims; the layout changes no value
        return b.call(op, x, *args, **kwargs)

    return run


for _op in _AS_IS:
    rule(_op)(as_is(_op))


# Linear algebra with several operands, whose leading dims must be equal.
for _op in ops(
    "ormqr lu_solve linalg_ldl_solve linalg_lu_solve cholesky_solve lu_unpack linalg_householder_product"
):
    rule(_op)(on_lanes(_op))


@rule(*ops("type_as", "to.other"))
def type_as(b: Builder, x: Val, other: Val, *args: Any, **kwargs: Any) -> Val:
    return b.call(aten.to.dtype, x, other.dtype, wide=x.wide)


def new_tensor(op: Any) -> Any:
    def run(b: Builder, x: Val, *args: Any, **kwargs: Any) -> Val:
        return b.call(op, x, *args, wide=False, **kwargs)  # shared until a lane writes to it

    return run


for _op in ops("new_zeros", "new_ones", "new_full", "new_empty"):
    rule(_op)(new_tensor(_op))


@rule(*ops("sym_size.int"))
def sym_size(b: Builder, x: Val, dim: int) -> Val:
    return b.call(aten.sym_size.int, x, dim + 1 if x.wide and dim >= 0 else dim, wide=False)


@rule(*ops("sym_numel.default"))
def sym_numel(b: Builder, x: Val) -> Val:
    numel, n = (member_numel, (b.n,)) if x.wide else (aten.sym_numel.default, ())
    return b.call(numel, x, *n, wide=False)


def member_numel(x: torch.Tensor, n: int) -> int:
    return x.numel() // n


@rule(*ops("masked_fill.Tensor"))
def masked_fill(b: Builder, x: Val, mask: Val, value: Val) -> Val:
    rank = max(x.rank, mask.rank)
    lanes = (b.aligned(v, rank, widest([x, mask])) for v in (mask, _as_number(b, value, [x]), x))
    return b.call(torch.where, *lanes)


@rule(*ops("clamp.Tensor", "clip.Tensor"))
def clamp(b: Builder, x: Val, low: Val | None = None, high: Val | None = None, **named: Val) -> Val:
    bounds: dict[str, Any] = {"min": low, "max": high, **named}
    given = [name for name, bound in bounds.items() if bound is not None]
    # All wide: the gradient of a bound fails if the other bound has more dims.
    x, *lanes = b.alike(x, *(bounds[name] for name in given))
    found: dict[str, Any] = dict(zip(given, lanes, strict=True))
    return b.call(torch.clamp, x, **found)


@rule(*ops("fill_.Tensor"))
def fill(b: Builder, x: Val, value: Val) -> Val:
    return b.call(torch.Tensor.copy_, x, b.aligned(value, x.rank))


@rule(*ops("fill.Tensor"))
def filled(b: Builder, x: Val, value: Val) -> Val:
    return b.call(filled_like, b.wide(x), b.aligned(b.wide(value), x.rank))


def filled_like(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return `value` in the shape of x; `where` gives x a gradient of zeros, as the op does, not None."""
    return torch.where(torch.ones_like(x, dtype=torch.bool), value.to(x.dtype), x)


@rule(*ops("broadcast_to.default"))
def broadcast_to(b: Builder, x: Val, size: list[Any]) -> Val:
    return b.call(torch.broadcast_to, b.aligned(x, len(size)), [b.n, *size])
